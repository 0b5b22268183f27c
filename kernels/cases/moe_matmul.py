"""Cases of moe_matmul: gate and up of one choice a row, down of eight that are summed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from kernels.cases.case import Call, Case, Maker, Size, Work
from kernels.cases.linears import KINDS


@dataclass(frozen=True, slots=True)
class Shape:
    """`num_used`: experts that rows go to, the last ones; the others have none."""

    num_rows: int
    num_chosen: int
    num_experts: int
    num_out: int
    num_in: int
    num_used: int = 0

    def make(self, maker: Maker, dtype: torch.dtype) -> Call:
        num_used = self.num_used or self.num_experts
        x = maker.normal(self.num_rows, self.num_in, dtype=dtype, salt=1)
        shape = (self.num_experts, self.num_out, self.num_in)
        weight = maker.normal(*shape, dtype=dtype, std=self.num_in**-0.5, salt=2)
        order = maker.uniform(self.num_rows, num_used, salt=3).argsort(dim=1)
        ids = order[:, : self.num_chosen] + (self.num_experts - num_used)
        factors = maker.uniform(self.num_rows, self.num_chosen, salt=4)
        out = torch.empty(self.num_rows, self.num_out, dtype=dtype, device=maker.device)
        return Call((x, weight, ids, factors), {"out": out})

    def work(self, call: Call) -> Work:
        """Of the experts, those that rows are expected to go to are read, at even chances."""
        x = call.args[0]
        num_used = self.num_used or self.num_experts
        num_read = num_used * (1.0 - (1.0 - self.num_chosen / num_used) ** self.num_rows)
        num_values = num_read * self.num_out * self.num_in
        num_values += self.num_rows * (self.num_in + self.num_out)
        num_products = self.num_rows * self.num_chosen * self.num_out * self.num_in
        return Work(num_values * x.itemsize, 2.0 * num_products, KINDS[x.dtype])

    def truth(self, call: Call) -> tuple[Tensor, ...]:
        x, weight, ids, factors = call.args
        result = torch.zeros(self.num_rows, self.num_out, dtype=torch.float64)
        for expert in ids.unique().tolist():
            matrix = weight[expert].double().t()
            for chosen in range(self.num_chosen):
                rows = (ids[:, chosen] == expert).nonzero().flatten()
                product = x[rows].double() @ matrix
                result[rows] += product * factors[rows, chosen, None].double()
        return (result,)


def _case(name: str, size: Size, shape: Shape) -> Case:
    is_small = size == "small"
    return Case(
        "moe_matmul", name, size, shape.make, shape.work, shape.truth,
        dtypes=(torch.float32, torch.float16) if is_small else (torch.bfloat16,),
        has_matrix_products=True,
    )  # fmt: skip


def _up(num_rows: int) -> Shape:
    """gemma-4-26B-A4B: rows are repeated for each of the eight experts, gate and up in one."""
    return Shape(8 * num_rows, 1, 128, 2 * 704, 2816)


def _down(num_rows: int) -> Shape:
    return Shape(num_rows, 8, 128, 2816, 704)


CASES: tuple[Case, ...] = (
    _case("three of six", "small", Shape(5, 3, 6, 37, 53)),
    _case("one row", "small", Shape(1, 2, 5, 40, 70)),
    _case("one of five", "small", Shape(19, 1, 5, 20, 130)),
    _case("blocks full and in part, experts without rows", "small", Shape(50, 2, 9, 24, 33, 3)),
    _case("counted before", "small", Shape(130, 4, 7, 16, 32)),
    _case("gemma up, 32 rows", "main", _up(32)),
    *(_case(f"gemma up, {rows} rows", "serving", _up(rows)) for rows in (1, 5, 256, 2048)),
    *(_case(f"gemma down, {rows} rows", "serving", _down(rows)) for rows in (1, 5, 32, 256, 2048)),
)
