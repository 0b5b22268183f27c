"""What a case of an op is: one shape with its inputs, its truth and its work.

The same cases drive the tests under the interpreter, the ahead-of-time compile, the measurements
on a GPU, the doctor and the roofline.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

# "small": under the interpreter in seconds. "serving": one that a served model has; compiled for
# every architecture by `make aot`, measured, bounded. "main": the serving case of its op that
# `make test` compiles too.
Size = Literal["small", "serving", "main"]


@dataclass(frozen=True, slots=True)
class Maker:
    """Makes inputs on a device, the same for one seed; on "meta" they take no memory."""

    device: str
    seed: int = 0

    def normal(
        self, *shape: int, dtype: torch.dtype = torch.float32, std: float = 1.0, salt: int = 0
    ) -> Tensor:
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        values = torch.randn(shape, generator=self._generator(salt), device=self._drawn_on())
        return (values * std).to(device=self.device, dtype=dtype)

    def uniform(self, *shape: int, dtype: torch.dtype = torch.float32, salt: int = 0) -> Tensor:
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        values = torch.rand(
            shape, generator=self._generator(salt), device=self._drawn_on(), dtype=torch.float64
        )
        # Rounding up to 1 would leave the half-open interval.
        return values.to(device=self.device, dtype=dtype).clamp_(max=1.0 - 2.0**-24)

    def integers(
        self, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int64, salt: int = 0
    ) -> Tensor:
        """From `low` to below `high`."""
        if self.device == "meta":
            return torch.empty(shape, dtype=dtype, device="meta")
        generator, drawn_on = self._generator(salt), self._drawn_on()
        values = torch.randint(low, high, shape, generator=generator, device=drawn_on)
        return values.to(device=self.device, dtype=dtype)

    def permutation(self, size: int, *, dtype: torch.dtype = torch.int32, salt: int = 0) -> Tensor:
        if self.device == "meta":
            return torch.empty(size, dtype=dtype, device="meta")
        drawn_on = self._drawn_on()
        values = torch.randperm(size, generator=self._generator(salt), device=drawn_on)
        return values.to(device=self.device, dtype=dtype)

    def tensor(self, values: Sequence[Any], *, dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)

    def _drawn_on(self) -> str:
        """Gigabytes are drawn where they are wanted; a few values may differ between devices."""
        return self.device

    def _generator(self, salt: int) -> torch.Generator:
        return torch.Generator(self._drawn_on()).manual_seed(self.seed * 1_000_003 + salt)


@dataclass(frozen=True, slots=True)
class Call:
    """Arguments of one call of an op, as its signature in `kernels.specs` takes them."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Work:
    """What a call must do at the least: each input read once, each output written once."""

    num_bytes: float
    num_flops: float = 0.0
    kind: str = "fp32"  # of the products, as in `Target.peaks`


@dataclass(frozen=True, slots=True)
class Case:
    """`truth` gives in float64, on the CPU, what the op must give: slow and plain, and not by the
    op's own reference. Its results are in the order of the op's; None where equality with the
    reference is asked instead (`is_exact`: tokens and counts, which are equal or wrong).

    `dtypes`: what the inputs may be made in; `error_max` holds the largest error against the truth,
    relative to its largest value, by dtype.
    """

    op: str
    name: str
    size: Size
    make: Callable[[Maker, torch.dtype], Call]
    work: Callable[[Call], Work]
    truth: Callable[[Call], tuple[Tensor, ...]] | None = None
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    error_max: Mapping[torch.dtype, float] | None = None
    is_exact: bool = False
    has_matrix_products: bool = False  # then matrix instructions must be seen in what is compiled

    @property
    def is_serving(self) -> bool:
        return self.size != "small"
