"""A model's kernels through `kernels.doctor`: for `doctor` itself, and for `serve` on a GPU."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from backend.config import EngineConfig, KernelChoice, ModelConfig
from backend.errors import SetupError

if TYPE_CHECKING:
    from kernels.doctor.cache import VerdictCache
    from kernels.doctor.examine import Manner, Subject
    from kernels.doctor.shapes import Geometry
    from kernels.doctor.verdict import Verdict

Tell = Callable[[str], None]

# One number for whatever is drafted, so that `doctor` and `serve` ask for one verdict.
NUM_DRAFTS = 5


def geometry_of(model: ModelConfig, shown: str) -> Geometry:
    from kernels.doctor.shapes import Geometry

    return Geometry(
        shown=shown,
        hidden_size=model.hidden_size,
        num_heads=model.num_heads,
        num_kv_heads=model.num_kv_heads,
        head_dim=model.head_dim,
        rotary_dim=model.rope.rotary_dim,
        intermediate_size=model.intermediate_size,
        vocab_size=model.vocab_size,
        block_size=EngineConfig().block_size,
        num_drafts=NUM_DRAFTS,
        is_interleaved=model.rope.is_interleaved,
        has_qk_norm=model.has_qk_norm,
    )


def subject_of(device: str, dtype: str, path: Path | None) -> Subject:
    """Without a model the cases' own sizes serve. Raises SetupError for files that are no model."""
    from backend.models.loading import read_description
    from kernels.doctor.examine import Subject

    if path is None:
        return Subject(device=device, dtype=dtype)
    model, _ = read_description(path)
    return Subject(device=device, dtype=dtype, geometry=geometry_of(model, path.name))


def examined(config: EngineConfig, path: Path, tell: Tell) -> EngineConfig:
    """`config` with what is known, or now found, of the kernels on its GPU.

    Raises SetupError if the GPU stopped answering, and for files that are no model.
    """
    from kernels.dispatch import GRAPHS
    from kernels.doctor.examine import NothingToExamine, known

    if config.device == "cpu" or config.kernels.implementation not in ("auto", "triton", GRAPHS):
        return config
    subject, cache = subject_of(config.device, config.dtype.value, path), usable_cache(tell)
    verdict = known(subject, cache)
    if verdict is None:
        tell(
            "Trying the kernels on this GPU, once for each GPU, driver and version (a minute or "
            "two; --no-doctor leaves it out) …"
        )
        try:
            verdict = run(subject, cache, None, tell)
        except NothingToExamine as nothing:
            return replace(config, kernels=replace(config.kernels, verdict=str(nothing)))
        tell(f"Of the kernels: {verdict.summary}.")
    kernels = KernelChoice(config.kernels.implementation, verdict.withheld, verdict.summary)
    return replace(config, kernels=kernels)


def run(subject: Subject, cache: VerdictCache, manner: Manner | None, tell: Tell) -> Verdict:
    """`kernels.doctor.examine` with our errors. Raises NothingToExamine as it does."""
    from kernels.doctor.examine import examine
    from kernels.doctor.process import ChildFailed

    try:
        verdict = examine(subject, cache, manner=manner, tell=tell)
    except (ChildFailed, OSError) as error:
        raise SetupError(f"the kernels cannot be tried: {error}") from error
    if not verdict.is_whole:
        raise SetupError(
            f"the GPU does not answer any more since {verdict.reports[-1].op} was tried; reset it "
            "or start the machine anew, then start again: that op is left to torch, the others "
            "are tried then (`looprouter-backend doctor` shows what was found)"
        )
    return verdict


def usable_cache(tell: Tell) -> VerdictCache:
    """The platform's folder; where that cannot be written, one for this run alone."""
    from kernels.doctor.cache import VerdictCache

    try:
        cache = VerdictCache()
        cache.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(cache.folder, os.W_OK):
            raise OSError(f"{cache.folder} cannot be written")
    except OSError as error:
        tell(f"What is found of the kernels is forgotten at the end: {error}")
        return VerdictCache(Path(tempfile.mkdtemp(prefix="looprouter-doctor-")))
    return cache
