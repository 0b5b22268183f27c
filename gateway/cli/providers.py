"""`looprouter providers …`: what is known, what is configured, what answers."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import rich_click as click

from gateway.cli.support import print_json, print_table, run
from gateway.settings import Settings

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def providers() -> None:
    """Providers and endpoints."""


@providers.command("list")
@click.option("--policy", "policy_file", type=FILE, help="Show this policy's endpoints instead.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_(policy_file: Path | None, as_json: bool) -> None:
    """Show the well-known providers and whether their key is set, or a policy's endpoints."""
    settings = Settings.from_environment()
    rows = _known(settings) if policy_file is None else _configured(settings, policy_file)
    if as_json:
        print_json(rows)
    elif rows:
        print_table([list(row.values()) for row in rows], [name.upper() for name in rows[0]])


def _known(settings: Settings) -> list[dict[str, str]]:
    from gateway.catalogue.lookup import entries_of, key_env_in
    from gateway.catalogue.providers import PROVIDERS

    rows = []
    for provider in PROVIDERS:
        key_env = key_env_in(provider, settings.environ)
        is_set = bool(key_env) and settings.secret(key_env) is not None
        rows.append(
            {
                "provider": provider.name,
                "api": provider.api.value,
                "key": f"{key_env} ({'set' if is_set else 'not set'})"
                if key_env
                else "none needed",
                "models": str(len(entries_of(provider.name))),
                "base url": provider.base_url or "–",
            }
        )
    return rows


def _configured(settings: Settings, policy_file: Path) -> list[dict[str, str]]:
    from gateway.app.policy_source import read_policy_file
    from gateway.policy.load import load_policy

    policy = load_policy(
        read_policy_file(policy_file), environ=settings.environ, source=str(policy_file)
    )
    rows = []
    for endpoint in policy.endpoints.values():
        names = [name for name, ids in policy.models.items() if endpoint.id in ids]
        has_key = not endpoint.key_env or settings.secret(endpoint.key_env) is not None
        rows.append(
            {
                "endpoint": endpoint.id,
                "models": ", ".join(names),
                "api": endpoint.api.value,
                "canonical model": endpoint.canonical_model or "unknown",
                "quantisation": endpoint.quantisation,
                "key": "ok" if has_key else f"{endpoint.key_env} not set",
            }
        )
    return rows


@providers.command()
@click.argument("policy_file", type=FILE)
@click.option("--endpoint", "wanted", multiple=True, help="Only this endpoint; repeatable.")
@click.option("--yes", is_flag=True, help="Do not ask; a probe costs a few tokens an endpoint.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def probe(policy_file: Path, wanted: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Send one tiny request to each endpoint of a policy; exit 1 if one does not answer.

    Each probe asks for at most 8 tokens and is billed by the provider, outside any budget.
    """
    from gateway.app.probing import ProbeResult, probe_endpoints, probed_endpoints

    settings = Settings.from_environment()
    policy, endpoints = probed_endpoints(settings, policy_file, wanted)
    real = [each for each in endpoints if not each.is_simulated]
    if real and not yes:
        if not sys.stdin.isatty():
            raise click.UsageError(
                f"{len(real)} of {len(endpoints)} endpoints bill a few tokens for a probe, and "
                "nobody is here to be asked; --yes probes them"
            )
        click.confirm(
            f"Probe {len(endpoints)} endpoints? {len(real)} of them bill a few tokens",
            abort=True,
            err=True,
        )

    def progress(result: ProbeResult) -> None:
        if not as_json:
            mark = "✓" if result.ok else "✗"
            click.echo(f"{mark} {result.endpoint:<44} {result.summary}")

    results = run(probe_endpoints(settings, policy, endpoints, progress))
    if as_json:
        print_json([msgspec.to_builtins(result) for result in results])
    sys.exit(0 if all(result.ok for result in results) else 1)
