"""Makes the test bundle from nothing: texts, tokenizer, target, and a head for each method.

    python -m tests.bundle.make_bundle --seed 0

Everything follows from the seed; on another machine the last bits, and so the fingerprints, differ.
A run that was stopped goes on where it was if it gets the same `--work`. Takes about 20 minutes on
one core. What it makes belongs into the repository: `tests/bundle/data`.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import torch

from backend.speculate.heads.identity import IDENTITY_FILE
from backend.train.prompts.files import write_prompts
from tests.bundle.corpus import NUM_PROMPTS, prompts
from tests.bundle.target import Recipe, save_target, train_target
from tests.bundle.tokenizer import save_tokenizer, train_tokenizer
from tests.support.bundle import (
    DATA,
    METHODS,
    WEIGHTS,
    head_directory,
    pack_target,
    packed_target,
    unpack_target,
)

# A few hundred kilobytes each.
_HEAD_OPTIONS = (
    *("--features", "1,3,5"),
    *("--drafts", "5"),
    *("--draft-vocabulary", "512"),
    *("--answer-tokens", "128"),
    *("--epochs", "8"),
    *("--rows", "2048"),
    *("--quantization", "none"),
    *("--dtype", "float32"),
    *("--device", "cpu"),
    *("--threads", "1"),
    "--int8",
)
# DFlash's masks are all alike: in a first layer they can ask by their place alone, and only with
# what they found there (the newest token) ask a second one for what goes with it. With one layer it
# learns 1.3 tokens a round at this rate, 1.2 at a quarter of it.
_OWN_OPTIONS = {
    "eagle3": ("--layers", "1", "--learning-rate", "3e-3"),
    "dflash": (
        *("--layers", "2", "--learning-rate", "1.2e-2"),
        *("--anchors", "0.5", "--distil", "1"),
    ),
    "dspark": ("--layers", "1", "--learning-rate", "3e-3", "--anchors", "0.7"),
}
_started_s = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - _started_s:6.0f} s  {text}", flush=True)


def make_target(work: Path, data: Path, seed: int) -> Path:
    """Tokenizer and target; the folder of the float32 model, as tests unpack it."""
    if not (packed_target(data) / WEIGHTS).exists():
        made = work / "trained"
        made.mkdir(parents=True, exist_ok=True)
        fast = train_tokenizer(seed)
        model = train_target(fast, Recipe(seed=seed), say)
        say(f"{sum(each.numel() for each in model.parameters())} parameters")
        save_target(model, made)
        save_tokenizer(fast, made)
        pack_target(made, packed_target(data))
    return unpack_target(work, data)


def make_head(method: str, model: Path, work: Path, data: Path, seed: int) -> None:
    """With the project's own command; what it leaves to go on from stays in `work`."""
    out = work / "heads" / method
    command = [sys.executable, "-m", "backend", "train", method, "--target", str(model)]
    command += ["--data", str(work / "prompts.jsonl"), "--out", str(out)]
    command += ["--work", str(work / "states"), "--seed", str(seed), *_HEAD_OPTIONS]
    command += _OWN_OPTIONS[method]
    say(f"training {method}")
    subprocess.run(command, check=True)
    kept = head_directory(method, data)
    kept.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", WEIGHTS, IDENTITY_FILE):
        shutil.copyfile(out / name, kept / name)


def make(work: Path, data: Path, seed: int, methods: Sequence[str] = METHODS) -> None:
    torch.set_num_threads(1)
    model = make_target(work, data, seed)
    write_prompts(work / "prompts.jsonl", prompts(seed, NUM_PROMPTS))
    for method in methods:
        make_head(method, model, work, data, seed)
    size = sum(each.stat().st_size for each in data.rglob("*") if each.is_file())
    say(f"{size / 1e6:.2f} MB in {data}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=DATA, help="emptied first without --heads and --work"
    )
    parser.add_argument(
        "--heads", nargs="+", choices=METHODS, help="only these, for the target that --out holds"
    )
    parser.add_argument("--work", type=Path, help="kept, to go on from; else a temporary folder")
    given = parser.parse_args()
    heads = given.heads or METHODS
    if given.work is None:
        if given.heads is None:
            shutil.rmtree(given.out, ignore_errors=True)
        with tempfile.TemporaryDirectory() as work:
            make(Path(work), given.out, given.seed, heads)
    else:
        make(given.work, given.out, given.seed, heads)


if __name__ == "__main__":
    main()
