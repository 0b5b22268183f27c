"""`looprouter up` and `looprouter serve`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click

from gateway.settings import Settings

if TYPE_CHECKING:
    from gateway.app.up import Choice
    from gateway.store.engine import Store

DEFAULT_PORT = 8000


def _logs(settings: Settings, *, quiet: bool) -> None:
    from gateway.measure.logs import configure_logs

    is_json = settings.log_format == "json" or (
        settings.log_format == "auto" and not sys.stderr.isatty()
    )
    level = "warning" if quiet and settings.log_level == "info" else settings.log_level
    configure_logs(level=level, json=is_json)


@click.command()
@click.option("--policy", required=True, help="A policy file, or `store` for the one in SQL.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; 0 = any that is free.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--shadow-policy",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A policy file that is asked beside it and obeyed in nothing; `policy shadow` shows it.",
)
def serve(policy: str, port: int, host: str, shadow_policy: Path | None) -> None:
    """Serve a policy: the command for production.

    SQLite means exactly one serving process; more need PostgreSQL and Redis. SIGHUP reloads the
    policy, SIGTERM drains (the policy says how long).
    """
    from gateway.app.compose import open_policy, running_store
    from gateway.app.server import listen
    from gateway.app.serving import run_in_uvloop, serve_gateway

    settings = Settings.from_environment()
    if shadow_policy is not None:
        settings = replace(settings, shadow_policy=shadow_policy)
    _logs(settings, quiet=False)
    _warn_unknown(settings)

    async def main() -> None:
        async with running_store(settings) as store:
            source = await open_policy(settings, store, policy)
            for warning in source.current.warnings:
                click.echo(f"policy: {warning}", err=True)
            missing = await _missing(store)
            sock, bound = listen(host, port)
            await serve_gateway(
                settings, store, source, sock, on_ready=lambda _: _say_serving(host, bound, missing)
            )

    run_in_uvloop(main())


async def _missing(store: Store) -> tuple[str, ...]:
    """What a first start lacks, and the commands that make it; a later one has keys."""
    from gateway.store.tenancy import has_keys

    async with store.read() as connection:
        if await has_keys(connection):
            return ()
    return (
        "there is no API key yet: looprouter keys create --name NAME",
        "for the dashboard at /admin: looprouter admins create NAME --role owner",
    )


def _say_serving(host: str, port: int, missing: tuple[str, ...]) -> None:
    shown = f"[{host}]" if ":" in host else host
    for each in missing:
        click.echo(each, err=True)
    click.echo(f"LoopRouter serves on http://{shown}:{port}", err=True)


def _warn_unknown(settings: Settings) -> None:
    for name in settings.unknown_names:
        click.echo(f"warning: nothing reads {name}; is it misspelt? (docs/settings.md)", err=True)


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=DEFAULT_PORT,
    show_default=True,
    help="Port to listen on; the next free one if it is busy.",
)
@click.option("--yes", is_flag=True, help="Use the provider keys found, without asking.")
@click.option("--demo", is_flag=True, help="Simulated providers only, whatever keys are set.")
@click.option("--policy", type=click.Path(dir_okay=False, path_type=Path), help="Use this file.")
@click.option("--lite", is_flag=True, help="Leave out the model that this machine would serve.")
def up(port: int, yes: bool, demo: bool, policy: Path | None, lite: bool) -> None:
    """Start everything on this machine and print how to use it.

    Uses the provider keys found in the environment after asking, else three simulated providers.
    Where torch is installed and `looprouter-backend models fetch smollm2` was run, it also serves
    that model, as `smollm2-135m-instruct`, at the policy's provider `own`. Listens on 127.0.0.1,
    keeps keys and data in ~/.looprouter (LOOPROUTER_HOME).
    """
    from gateway.app.own_backend import missing, with_key
    from gateway.app.up import choose_policy, own_port

    settings = Settings.from_environment()
    _logs(settings, quiet=True)
    _warn_unknown(settings)
    settings.make_home()
    ask: Callable[[str], bool] | None = None
    if sys.stdin.isatty():
        ask = click.confirm
    choice = choose_policy(
        settings,
        policy=policy,
        demo=demo,
        yes=yes,
        ask=ask,
        say=click.echo,
        has_own=not lite and not missing(settings.home),
    )
    model_port = None
    if not lite:
        model_port = own_port(settings, choice, free_port=_free_port, say=click.echo)
    if model_port is not None:
        settings = replace(settings, environ=with_key(settings.environ))
    _run_up(settings, choice, port, model_port)


def _free_port(first: int) -> int:
    from gateway.app.server import listen

    sock, port = listen("127.0.0.1", first, take_next=True)
    sock.close()
    return port


def _run_up(settings: Settings, choice: Choice, port: int, model_port: int | None) -> None:
    from gateway.app.serving import run_in_uvloop
    from gateway.app.up_run import UpRun

    up_run = UpRun(settings, choice, say=_say_now)
    try:
        if choice.is_demo:
            up_run.start_providers(_free_port)
        run_in_uvloop(up_run.run(port, model_port))
    except (KeyboardInterrupt, asyncio.CancelledError):
        pass
    finally:
        up_run.stop()


def _say_now(text: str) -> None:
    click.echo(text)
    sys.stdout.flush()
