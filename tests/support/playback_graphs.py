"""A stand-in for torch's graphs of a GPU, on a CPU: while it records, no memory is written, and a
replay does what was recorded, in the same memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.no_host_sync import READING


class PlaybackGraph:
    """As `torch.cuda.CUDAGraph`; `num_replays` is what tests look at."""

    made: ClassVar[list[PlaybackGraph]] = []

    def __init__(self) -> None:
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.num_replays = 0
        self.given_pool: object = None
        self.made.append(self)

    def pool(self) -> object:
        return self.given_pool or self

    def replay(self) -> None:
        self.num_replays += 1
        for func, args, kwargs, result in self.calls:
            again = func(*args, **kwargs)
            for own, new in zip(_each(result), _each(again), strict=True):
                if own is not new:
                    own.copy_(new)


class _Recording(TorchDispatchMode):
    def __init__(self, graph: PlaybackGraph) -> None:
        super().__init__()
        self._graph = graph

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.overloadpacket.__name__ in READING:
            raise RuntimeError("operation not permitted when stream is capturing\nand more of it")
        if func._schema.is_mutable:
            result = kwargs["out"] if "out" in kwargs else args[0]
        else:
            result = func(*args, **kwargs)
            given = {_storage(each) for each in args if isinstance(each, Tensor)}
            for each in _each(result):
                if _storage(each) in given:
                    return result  # a view
                if each.is_floating_point():
                    each.fill_(torch.nan)  # nothing is computed yet
        self._graph.calls.append((func, args, kwargs, result))
        return result


def _each(result: Any) -> tuple[Tensor, ...]:
    return tuple(result) if isinstance(result, tuple | list) else (result,)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


@contextmanager
def playback(graph: PlaybackGraph, *, pool: object, capture_error_mode: str) -> Iterator[None]:
    """As `torch.cuda.graph`."""
    assert capture_error_mode == "thread_local"
    graph.given_pool = pool
    with _Recording(graph):
        yield


@contextmanager
def no_device(device: torch.device) -> Iterator[None]:
    """As `torch.cuda.device`."""
    yield


def install(monkeypatch: Any) -> list[PlaybackGraph]:
    """The graphs that are made from now on."""
    PlaybackGraph.made = []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", PlaybackGraph)
    monkeypatch.setattr(torch.cuda, "graph", playback)
    monkeypatch.setattr(torch.cuda, "device", no_device)
    return PlaybackGraph.made
