"""The `looprouter` command: one module a group of commands; heavy imports wait until they run."""

from __future__ import annotations

import sys

import rich_click as click

from gateway import __version__
from gateway.cli.admins import admins
from gateway.cli.batch import batch
from gateway.cli.bench import bench
from gateway.cli.db import db
from gateway.cli.keys import keys
from gateway.cli.ledger import ledger
from gateway.cli.policy import policy
from gateway.cli.policy_cases import test
from gateway.cli.policy_shadow import shadow
from gateway.cli.policy_simulate import simulate
from gateway.cli.providers import providers
from gateway.cli.serve import serve, up
from gateway.errors import ApiError, LoopRouterError

EXIT_REFUSED = 1  # the answer is no: a policy that is not valid, a key that is not there
EXIT_SETUP = 3  # something is missing or wrong on this machine


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="looprouter")
def cli() -> None:
    """One API key in front of many LLM endpoints, each measured on your own requests.

    Streams go to the endpoint predicted to finish first, batch work to the cheapest.
    Start with `looprouter up`.

    Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 something on this machine is missing or
    wrong.
    """


for command in (up, serve, keys, admins, policy, providers, ledger, batch, db, bench):
    cli.add_command(command)
for command in (simulate, test, shadow):
    policy.add_command(command)


def main() -> None:
    """Run the command line; our own errors become one line and an exit code."""
    try:
        cli.main(prog_name="looprouter", standalone_mode=True)
    except ApiError as error:
        click.echo(f"looprouter: {error}", err=True)
        sys.exit(EXIT_REFUSED)
    except LoopRouterError as error:
        click.echo(f"looprouter: {error}", err=True)
        sys.exit(EXIT_SETUP)
