"""A guard for code that must be captured as a graph: nothing may wait for the device.

    with no_host_sync(lambda: {"tokens": engine.tokens}):
        step()

fails at the first call that reads a tensor's value on the host or whose result's shape depends on
values, and at the end if a named tensor lies elsewhere than at the beginning.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

# Operators (aten) that read values, or whose result has a shape that values decide.
READING = frozenset(
    ("_local_scalar_dense", "item", "equal", "is_nonzero", "nonzero", "nonzero_numpy", "argwhere",
     "masked_select", "unique_dim", "unique_consecutive", "_unique", "_unique2", "bincount",
     "histc", "resize_", "set_")
)  # fmt: skip
INDEXING = frozenset(("index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"))
# Methods that read a CPU tensor's memory without any operator.
READING_METHODS = ("tolist", "numpy", "item", "__array__", "__bool__", "__int__", "__float__")

Persistent = Callable[[], Mapping[str, Tensor]]


class HostSync(AssertionError):
    """What was called, and why it may not be."""


@contextmanager
def no_host_sync(persistent: Persistent | None = None) -> Iterator[None]:
    """`persistent` gives the tensors, by name, that a captured graph would write to."""
    before = _addresses(persistent)
    with _Methods(), _Operators():
        yield
    after = _addresses(persistent)
    moved = sorted(name for name in before if after.get(name) != before[name])
    if moved:
        raise HostSync(f"persistent tensors were allocated anew: {', '.join(moved)}")


class _Operators(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in READING:
            raise HostSync(f"{func} reads values of a tensor on the host")
        if name in INDEXING and any(_is_mask(each) for each in args[1]):
            raise HostSync(f"{func} with a mask: its shape depends on values")
        if name == "repeat_interleave" and kwargs.get("output_size") is None:
            raise HostSync(f"{func} without output_size: its shape depends on values")
        if name in ("_to_copy", "copy_") and _is_from_device(name, args, kwargs):
            raise HostSync(f"{func} from a device to the host waits for it")
        return func(*args, **kwargs)


class _Methods(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in READING_METHODS:
            raise HostSync(f"Tensor.{func.__name__} reads values of a tensor on the host")
        return func(*args, **(kwargs or {}))


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _is_from_device(name: str, args: Any, kwargs: Any) -> bool:
    if name == "copy_":
        return args[0].device.type == "cpu" and args[1].device.type != "cpu"
    target = kwargs.get("device")
    return target is not None and target.type == "cpu" and args[0].device.type != "cpu"


def _addresses(persistent: Persistent | None) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    if persistent is None:
        return {}
    return {
        name: (tensor.untyped_storage().data_ptr(), tensor.data_ptr(), tuple(tensor.shape))
        for name, tensor in persistent().items()
    }
