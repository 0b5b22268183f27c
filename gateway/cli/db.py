"""`looprouter db …`: the schema."""

from __future__ import annotations

import rich_click as click

from gateway.settings import Settings


@click.group()
def db() -> None:
    """The database's schema."""


@db.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def upgrade(as_json: bool) -> None:
    """Bring the database to this version's schema. Serving does this at start, too."""
    from gateway.cli.support import print_json
    from gateway.store import migrate

    settings = Settings.from_environment()
    settings.make_home()
    before = migrate.current(settings.database_url)
    migrate.upgrade(settings.database_url)
    after = migrate.current(settings.database_url)
    if as_json:
        print_json({"before": before, "after": after})
    elif before == after:
        click.echo(f"The schema is current: {after}")
    else:
        click.echo(f"Upgraded the schema: {before or 'empty'} → {after}")
