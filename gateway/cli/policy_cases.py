"""`looprouter policy test`: unit tests of a policy."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from gateway.cli.support import print_json, print_table

if TYPE_CHECKING:
    from gateway.policy.cases_run import CaseResult

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.command("test")
@click.argument("cases", type=FILE)
@click.option("--policy", type=FILE, help="Test this policy, whatever the file names.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def test(cases: Path, policy: Path | None, as_json: bool) -> None:
    """Run the tests of CASES (YAML) against a policy; exit 1 when one fails.

    Each names a request, the state of the fleet and who must be chosen, or that it must be refused.
    Nothing is sent, no key and no database is needed.
    """
    from gateway.app.policy_cases import run_cases

    results = run_cases(cases, policy)
    num_failed = sum(not each.has_passed for each in results)
    if as_json:
        print_json(
            {
                "passed": len(results) - num_failed,
                "failed": num_failed,
                "cases": [_as_json(each) for each in results],
            }
        )
    else:
        for each in results:
            _print(each)
        click.echo(f"{len(results) - num_failed} passed, {num_failed} failed")
    sys.exit(1 if num_failed else 0)


def _as_json(result: CaseResult) -> dict[str, Any]:
    return {
        "name": result.name,
        "passed": result.has_passed,
        "problems": list(result.problems),
        "chosen": result.chosen or None,
        **({"refusal": result.refusal, "message": result.message} if result.refusal else {}),
        **({"explain": result.shown} if result.shown is not None else {}),
    }


def _print(result: CaseResult) -> None:
    came = result.chosen or f"refused: {result.refusal}"
    click.echo(f"{'pass' if result.has_passed else 'FAIL'}  {result.name} → {came}")
    if result.has_passed:
        return
    for problem in result.problems:
        click.echo(f"      {problem}")
    if result.message:
        click.echo(f"      {result.message}")
    shown = result.shown
    if shown is None:
        return
    click.echo(f"      route {shown['route']} · prefer {shown['prefer']}")
    rows = []
    for each in shown["candidates"]:
        terms = each.get("terms")
        figures = ["–"] * 3
        if terms:
            figures = [f"{terms['score_s']:.3f}", f"{terms['time_s']:.3f}", terms["cost_usd"]]
        rows.append(["     ", each["endpoint"], each["outcome"], *figures, each["reason"]])
    print_table(rows, ("", "ENDPOINT", "OUTCOME", "SCORE s", "TIME s", "COST $", "WHY"))
