"""Ops in C++ for the CPU: compiled on first use, faster than torch at few rows, and exact by row.

Nothing is compiled at import. Where `load` gives None the torch reference serves every op.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kernels.native import build, known_answers
from kernels.native.attention import AttentionKernels
from kernels.native.dense import DenseKernel
from kernels.native.library import Library
from kernels.native.linear import Int8Kernels
from kernels.native.markov import MarkovKernel
from kernels.native.program import capture
from kernels.native.rows import RowKernels
from kernels.native.sampling import SampleKernel

_log = logging.getLogger(__name__)
_loaded: dict[Path, Library] = {}
_num_threads = 1


def load(
    cache_folder: Path | None = None, *, compiler: str | None = None
) -> Mapping[str, Callable[..., Any]] | None:
    """The ops by name, and `pack_int8` beside `linear_int8`. None, with the reason logged, where
    there is no compiler, it fails, or what it built does not give known answers.

    `cache_folder`: where the library is kept (the platform's cache by default). `compiler`: its
    name or path (the first of c++, g++, clang++ that is installed by default).
    """
    try:
        path = build.library(cache_folder, compiler=compiler)
        if path not in _loaded:
            library = Library(path)
            known_answers.check(_ops(library))
            library.brief("lr_set_num_threads")(_num_threads)
            _loaded[path] = library
        return _ops(_loaded[path])
    except (build.BuildError, known_answers.WrongAnswer) as error:
        _log.warning("native kernels are not used: %s", error)
    except (OSError, AttributeError) as error:  # no library; one without our functions
        _log.warning("native kernels are not used: the library does not load: %s", error)
    return None


def _ops(library: Library) -> Mapping[str, Callable[..., Any]]:
    int8, rows, attention = Int8Kernels(library), RowKernels(library), AttentionKernels(library)
    return {
        "rms_norm": rows.rms_norm,
        "rope_kv_write": attention.rope_kv_write,
        "paged_attention": attention.paged_attention,
        "gated_mul": rows.gated_mul,
        "linear_dense": DenseKernel(library).linear_dense,
        "linear_int8": int8.linear_int8,
        "pack_int8": int8.pack_int8,
        "sample": SampleKernel(library).sample,
        "markov_pick": MarkovKernel(library, int8).markov_pick,
        "capture": partial(capture, library),
    }


def set_num_threads(num_threads: int) -> None:
    """Threads of every op, the calling one counted; 1 (as at first) starts none."""
    global _num_threads
    _num_threads = max(1, num_threads)
    for library in _loaded.values():
        library.brief("lr_set_num_threads")(num_threads)
