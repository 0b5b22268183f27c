"""`looprouter policy …`: check a policy, export its schema, try a request against it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli.support import open_current_store, print_json, print_table, run
from gateway.errors import ApiError, PolicyError
from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.policy.policy import Policy

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def policy() -> None:
    """The routing policy: one YAML file that says what you want."""


@policy.command()
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def validate(file: Path, as_json: bool) -> None:
    """Check a policy; exit 1 with the path and the fix of every mistake."""
    from gateway.app.policy_source import read_policy_file

    settings = Settings.from_environment()
    found = _loaded(read_policy_file(file), settings, file, as_json=as_json)
    if as_json:
        print_json({"valid": True, "version": found.version, "warnings": list(found.warnings)})
        return
    for warning in found.warnings:
        click.echo(f"warning: {warning}", err=True)
    click.echo(
        f"{file} is valid: {len(found.endpoints)} endpoints, {len(found.models)} models, "
        f"{len(found.routes)} routes (version {found.version})"
    )


def _loaded(text: bytes, settings: Settings, file: Path, *, as_json: bool) -> Policy:
    """The policy, or its problems and the end of this process."""
    from gateway.policy.load import load_policy

    try:
        return load_policy(text, environ=settings.environ, source=str(file))
    except PolicyError as error:
        if as_json:
            print_json({"valid": False, "problems": list(error.problems)})
        else:
            click.echo(str(error), err=True)
        sys.exit(1)


@policy.command()
def schema() -> None:
    """Print the JSON Schema, for editors that complete and check YAML."""
    from gateway.policy.jsonschema import policy_schema

    print_json(policy_schema())


@policy.command("import")
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def import_(file: Path, as_json: bool) -> None:
    """Make a file the policy in SQL (for `serve --policy store`); its text is kept verbatim."""
    from gateway.app.policy_source import read_policy_file
    from gateway.store.policies import IMPORTED, activate_policy

    settings = Settings.from_environment()
    text = read_policy_file(file)
    found = _loaded(text, settings, file, as_json=as_json)

    async def main() -> None:
        async with open_current_store(settings) as store, store.begin() as connection:
            await activate_policy(
                connection,
                version=found.version,
                text=text.decode(),
                source="import",
                now=time.time(),
                actor="cli",
                action=IMPORTED,
            )

    run(main())
    if as_json:
        print_json({"version": found.version, "warnings": list(found.warnings)})
    else:
        click.echo(f"Imported {file} as version {found.version}")


@policy.command()
@click.argument("file", type=FILE)
@click.argument("request", type=FILE)
@click.option("--surface", default="chat", show_default=True, help="chat, messages, responses, …")
@click.option("--seed", type=int, default=1, show_default=True, help="Of the Thompson draw.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(file: Path, request: Path, surface: str, seed: int, as_json: bool) -> None:
    """Decide a REQUEST (its JSON body) under a policy FILE; nothing is sent.

    Uses what the gateway last learned of each endpoint, if there is a database.
    """
    from gateway.app.explaining import explain_request
    from gateway.stats.seeded import Seeded

    settings = Settings.from_environment()
    try:
        shown = run(
            explain_request(
                settings,
                file,
                request.read_bytes(),
                surface=surface,
                rng=Seeded(seed),
                seed=seed,
            )
        )
    except ApiError as error:
        if as_json:
            print_json({"refused": error.message, "code": error.code, "detail": error.detail})
        else:
            click.echo(f"refused: {error.message}", err=True)
        sys.exit(1)
    if as_json:
        print_json(shown)
        return
    click.echo(f"model {shown['model']} · route {shown['route']} · prefer {shown['prefer']}")
    candidates = shown["candidates"]
    assert isinstance(candidates, list)

    rows = []
    for each in candidates:
        terms, predicted = each.get("terms", {}), each.get("predicted")
        rows.append(
            [
                each["endpoint"],
                each["outcome"],
                f"{terms['score_s']:.3f}" if terms else "–",
                f"{terms['ttft_s']:.3f}" if terms else "–",
                f"{terms['decode_s']:.3f}" if terms else "–",
                terms.get("cost_usd", "–"),
                _span(predicted) if predicted else "–",
                each["reason"],
            ]
        )
    print_table(
        rows,
        ("ENDPOINT", "OUTCOME", "SCORE s", "TTFT s", "DECODE s", "COST $", "90 % OF TIMES", "WHY"),
    )


def _span(predicted: dict[str, Any]) -> str:
    """`0.8–3.1 s (held 91 %, n 240)`: where 90 % should lie, and how many did so far."""
    low_s, high_s = predicted["completion_p5_s"], predicted["completion_p95_s"]
    coverage = predicted["coverage_90"]
    held = f" (held {coverage:.0%}, n {predicted['n']:.0f})" if coverage is not None else ""
    return f"{low_s:.1f}–{high_s:.1f} s{held}"
