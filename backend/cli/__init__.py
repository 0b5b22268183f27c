"""`looprouter-backend`: one module a group of commands; heavy imports wait until they run."""

from __future__ import annotations

import sys

import rich_click as click

from backend.cli.bench import bench
from backend.cli.doctor import doctor
from backend.cli.models import models
from backend.cli.own_packages import check_own_packages
from backend.cli.serve import serve
from backend.cli.train import train
from backend.errors import BackendError

EXIT_SETUP = 3  # something is missing or wrong on this machine


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="looprouter", prog_name="looprouter-backend")
def cli() -> None:
    """An inference server of your own: paged, continuously batching, OpenAI's API.

    Start with `looprouter-backend models fetch smollm2`, then `looprouter-backend serve smollm2`.

    Exit codes: 0 done, 2 wrong usage, 3 something on this machine is missing or wrong.
    """


for command in (serve, models, bench, train, doctor):
    cli.add_command(command)


def main() -> None:
    """Run the command line; our own errors become one line and an exit code."""
    try:
        check_own_packages()
        cli.main(prog_name="looprouter-backend", standalone_mode=True)
    except BackendError as error:
        click.echo(f"looprouter-backend: {error}", err=True)
        sys.exit(EXIT_SETUP)
