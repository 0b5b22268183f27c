"""`looprouter-backend train`: draft heads for a model of your own, and prompts to train them on."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rich_click as click

from backend.cli.environment import Environment
from backend.cli.serve import check_installed, configure_logs, engine_config
from backend.errors import SetupError

if TYPE_CHECKING:
    from backend.train.counting import PlaceCounts
    from backend.train.run import Show
    from backend.train.trainer import Progress

_GIB = 1 << 30
_ANSWERS_SHOWN_EVERY, _STEPS_SHOWN_EVERY = 100, 10


@click.group()
def train() -> None:
    """Train a draft head for a model, on answers that the model writes itself.

    `train prompts` makes prompts where there are none; `train dspark` (or `eagle3`, `dflash`) has
    the model answer them and trains a head. A training that is stopped goes on where it stopped.
    """


def _common(command: Callable[..., None]) -> Callable[..., None]:
    for option in reversed(_COMMON):
        command = option(command)
    return command


_COMMON = (
    click.option("--target", required=True, metavar="MODEL", help="As `serve` takes it."),
    click.option(
        "--data",
        required=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="JSON lines with `messages` or `prompt`; answers in them are written anew.",
    ),
    click.option(
        "--out",
        required=True,
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the head, as `serve --draft` takes it; of the training state too.",
    ),
    click.option(
        "--work",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder for answers and states, which all heads of a target share.  [OUT/../work]",
    ),
    click.option("--layers", type=click.IntRange(1, 16), default=2, show_default=True),
    click.option(
        "--features",
        default="",
        metavar="LAYERS",
        help="Of the target, commas between; what enters them is read.  [early, middle, late]",
    ),
    click.option(
        "--drafts",
        type=click.IntRange(1, 32),
        default=5,
        show_default=True,
        help="Places that are trained; `serve --drafts` can ask for fewer.",
    ),
    click.option(
        "--draft-vocabulary",
        type=click.IntRange(1),
        default=6144,
        show_default=True,
        help="Tokens that can be drafted: the most frequent ones.",
    ),
    click.option("--answer-tokens", type=click.IntRange(8), default=256, show_default=True),
    click.option("--epochs", type=click.IntRange(1, 1000), default=3, show_default=True),
    click.option(
        "--rows",
        type=click.IntRange(16),
        default=4096,
        show_default=True,
        help="Positions in a step of training.",
    ),
    click.option(
        "--learning-rate", type=click.FloatRange(1e-6, 1.0), default=1e-3, show_default=True
    ),
    click.option("--held-out", type=click.IntRange(1), default=64, show_default=True),
    click.option(
        "--states-gib",
        type=click.FloatRange(0.0),
        default=16.0,
        show_default=True,
        help="Disk for the target's states; what does not fit is computed each time.",
    ),
    click.option(
        "--checkpoint",
        type=click.FloatRange(1.0),
        default=300.0,
        show_default=True,
        help="Seconds between checkpoints.",
    ),
    click.option("--seed", type=click.IntRange(0), default=0, show_default=True),
    click.option(
        "--distil",
        type=click.FloatRange(0.0, 10.0),
        default=0.0,
        show_default=True,
        help="Weight of the target's whole distribution, beside the published loss.",
    ),
    click.option(
        "--start-from",
        type=click.Path(exists=True, file_okay=False, path_type=Path),
        help="A head whose weights are taken where they fit.",
    ),
    click.option("--int8", is_flag=True, help="Write the head's matrices as int8."),
    click.option(
        "--quantization",
        type=click.Choice(["auto", "int8", "none"]),
        default="auto",
        show_default=True,
        help="Of the target, as it will be served.",
    ),
    click.option("--dtype", type=click.Choice(["bfloat16", "float32"]), default="bfloat16"),
    click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto"),
    click.option(
        "--threads", type=click.IntRange(0, 1024), default=0, help="0 = all cores but one."
    ),
)


@train.command()
@_common
def eagle3(**options: Any) -> None:
    """Train a head that drafts token after token (EAGLE-3)."""
    _train("eagle3", markov_rank=0, anchor_share=1.0, **options)


_ANCHORS = click.option(
    "--anchors",
    "anchor_share",
    type=click.FloatRange(0.01, 1.0),
    default=0.4,
    show_default=True,
    help="Share of positions that get a block in an epoch.",
)


@train.command()
@_common
@_ANCHORS
def dflash(**options: Any) -> None:
    """Train a head that drafts a block at once (DFlash)."""
    _train("dflash", markov_rank=0, **options)


@train.command()
@_common
@_ANCHORS
@click.option("--markov-rank", type=click.IntRange(0, 1024), default=32, show_default=True)
def dspark(**options: Any) -> None:
    """Train a head that drafts a block, then orders it (DSpark)."""
    _train("dspark", **options)


@train.command()
@click.option("--target", required=True, metavar="MODEL", help="As `serve` takes it.")
@click.option(
    "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="JSON lines."
)
@click.option("--chat", type=click.IntRange(0), default=1200, help="The model's own user turns.")
@click.option("--math", type=click.IntRange(0), default=3200, help="Its own word problems.")
@click.option("--code", type=click.IntRange(0), default=800, help="Out of the standard library.")
@click.option(
    "--more",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Prompt files whose lines come in too.",
)
@click.option(
    "--hold-out",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON lines with `prompt`; what shares 13 words in a row with one is left out.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option("--threads", type=click.IntRange(0, 1024), default=0, help="0 = all cores but one.")
def prompts(
    *,
    target: str,
    out: Path,
    chat: int,
    math: int,
    code: int,
    more: tuple[Path, ...],
    hold_out: tuple[Path, ...],
    seed: int,
    threads: int,
) -> None:
    """Make prompts: user turns that the model writes on its bare template, and library functions.

    No questions of anybody else are needed. Math and chat are turns that the model was tuned on,
    since it goes on with them by itself.
    """
    check_installed()
    from backend.serving.loading import prepare
    from backend.train.prompts.making import Recipe, make_prompts

    recipe = Recipe(chat=chat, math=math, code=code, more=more, hold_out=hold_out, seed=seed)
    prepared = prepare(_model(target), _config("auto", "bfloat16", "auto", threads))
    number = make_prompts(recipe, prepared, out, lambda said: click.echo(said, err=True))
    click.echo(f"{number} prompts: {out}")


def _train(method: str, *, target: str, data: Path, out: Path, **options: Any) -> None:
    check_installed()
    configure_logs()
    from backend.train.run import TrainJob, train

    config = _config(
        options["quantization"], options["dtype"], options["device"], options["threads"]
    )
    job = TrainJob(
        method=method,  # type: ignore[arg-type]  # one of the three commands
        target=_model(target),
        prompts=data,
        out=out,
        work=options["work"] or out.absolute().parent / "work",
        num_layers=options["layers"],
        num_drafts=options["drafts"],
        draft_vocab_size=options["draft_vocabulary"],
        markov_rank=options["markov_rank"],
        layer_ids=_layers(options["features"]),
        answer_tokens_max=options["answer_tokens"],
        epochs=options["epochs"],
        rows_per_step=options["rows"],
        learning_rate=options["learning_rate"],
        anchor_share=options["anchor_share"],
        held_out=options["held_out"],
        states_bytes_max=int(options["states_gib"] * _GIB),
        checkpoint_s=options["checkpoint"],
        seed=options["seed"],
        is_int8=options["int8"],
        distil=options["distil"],
        start_from=options["start_from"],
    )
    try:
        counts = train(job, config, _show())
    except KeyboardInterrupt:
        raise SetupError("stopped; the same command goes on from the last checkpoint") from None
    click.echo(f"{_accepted(counts)}\nServe it: looprouter-backend serve {target} "
               f"--speculation {method} --draft {out}")  # fmt: skip


def _model(name: str) -> Path:
    from backend.cli.model_store import ModelStore

    return ModelStore(Environment.read().models_folder).choose(name).path


def _config(quantization: str, dtype: str, device: str, threads: int) -> Any:
    return engine_config(
        dtype=dtype,
        quantization=quantization,
        device=device,
        threads=threads,
        kv_cache_mib=1024,
        context=0,
        sequences=16,
        waiting=64,
        no_prefix_cache=False,
    )


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(each) for each in text.split(",") if each.strip())
    except ValueError:
        raise click.UsageError(f"--features takes numbers with commas, not {text!r}") from None


def _show() -> Show:
    from backend.train.run import Show

    step_numbers = itertools.count(1)

    def on_answers(num_done: int, num_all: int, num_tokens: int) -> None:
        if num_done % _ANSWERS_SHOWN_EVERY == 0 or num_done == num_all:
            _say(f"answered {num_done} of {num_all}, {num_tokens} tokens")

    def on_step(found: Progress) -> None:
        if next(step_numbers) % _STEPS_SHOWN_EVERY == 0 or found.step == found.num_steps:
            _say(
                f"step {found.step} of {found.num_steps}  loss {found.loss:.4f}  "
                f"{found.mean_acceptance_length:.2f} tokens a round in training  "
                f"{found.tokens_per_s:.0f} tok/s  {found.left_s / 60:.0f} min left"
            )

    return Show(on_answers, on_step, lambda counts: _say(_accepted(counts)), _say)


def _accepted(counts: PlaceCounts) -> str:
    rates = " ".join(f"{each:.2f}" for each in counts.rates)
    return (
        f"held out: {counts.mean_acceptance_length:.2f} tokens a round; accepted by place, those "
        f"before it accepted: {rates}"
    )


def _say(text: str) -> None:
    click.echo(text, file=sys.stderr)
