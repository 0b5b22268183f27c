"""`looprouter-backend doctor`: which kernels may serve on this GPU."""

from __future__ import annotations

import rich_click as click

from backend.cli.environment import Environment
from backend.cli.serve import check_installed, device_for
from backend.config import DType
from backend.errors import SetupError


@click.command()
@click.option(
    "--model",
    default="",
    metavar="MODEL",
    help="Try them at the sizes of this model, named as for `serve`; else at those of Qwen3-8B.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="cuda is ROCm too.",
)
@click.option(
    "--dtype",
    type=click.Choice([each.value for each in DType]),
    default=DType.BFLOAT16.value,
    show_default=True,
    help="Of weights and states.",
)
@click.option("--again", is_flag=True, help="Try them even if the verdict is known.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict as JSON.")
def doctor(model: str, *, device: str, dtype: str, again: bool, as_json: bool) -> None:
    """Try every Triton kernel against torch on this GPU, each in a process of its own.

    What is wrong, hangs, crashes or is slower is left to torch, op by op. The verdict is kept until
    GPU, driver, torch, triton, model or version change; `serve` asks for it by itself. What is
    printed belongs into a bug report.
    """
    check_installed()
    from backend.cli.doctoring import run, subject_of, usable_cache
    from backend.cli.model_store import ModelStore
    from kernels.doctor.examine import Manner, NothingToExamine
    from kernels.doctor.verdict import report_text

    def tell(line: str) -> None:
        click.echo(line, err=True)

    store = ModelStore(Environment.read().models_folder)
    path = store.choose(model).path if model else None
    subject = subject_of(device_for(device), dtype, path)
    try:
        verdict = run(subject, usable_cache(tell), Manner(is_again=again), tell)
    except NothingToExamine as nothing:
        raise SetupError(str(nothing)) from nothing
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(verdict)).decode())
    else:
        click.echo(report_text(verdict))
