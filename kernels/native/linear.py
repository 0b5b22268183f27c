"""linear_int8 in C++: weights packed once, then read once a call for all rows."""

from __future__ import annotations

import ctypes
import struct
from ctypes import c_int64, c_void_p

import torch
from torch import Tensor

from kernels import memory
from kernels.interface import Int8Weight
from kernels.native.library import Function, Library, contiguous, kind_of
from kernels.reference.linear_int8 import quantize_int8

GROUP = 64  # kGroup in source/linear_int8.cpp
ROWS_QUANTIZED_AT_ONCE = 4096  # bounds the float32 copy while a weight is packed
BRIEF_PRODUCTS_MAX = 3_000_000  # some 100 us
_CALL = struct.Struct("@4Q3q2i").pack  # lr::Int8Call


class _Int8Struct(ctypes.Structure):
    """lr::Int8Weight in source/linear_int8.cpp."""

    _fields_ = (
        ("packed", c_void_p),
        ("scales", c_void_p),
        ("n", c_int64),
        ("k", c_int64),
    )


class PackedInt8:
    """A weight as the kernel reads it; `address` is that of its C description."""

    def __init__(self, n: int, k: int, panel: int) -> None:
        num_columns = -(-n // panel) * panel
        self.n, self.k, self.panel = n, k, panel
        self.brief_rows_max = BRIEF_PRODUCTS_MAX // max(1, n * k)
        self._panel_bytes = panel * (-(-k // 4) * 4)
        self._packed = memory.zeros((num_columns // panel * self._panel_bytes,), torch.int8)
        self._scales = torch.zeros(num_columns, dtype=torch.float32)
        self._struct = _Int8Struct(self._packed.data_ptr(), self._scales.data_ptr(), n, k)
        self.address = ctypes.addressof(self._struct)

    def fill(self, begin: int, part: Int8Weight, pack: Function) -> None:
        """Outputs from `begin` on, a multiple of the panel."""
        rows = part.qweight
        self._scales[begin : begin + rows.shape[0]] = part.scale
        pack(
            *(rows.data_ptr(), rows.stride(0), rows.shape[0], self.k),
            self._packed.data_ptr() + begin // self.panel * self._panel_bytes,
        )


class Int8Kernels:
    """The two functions that `kernels.dispatch` takes together."""

    def __init__(self, library: Library) -> None:
        self._panel = library.brief("lr_int8_panel")()
        self._pack = library.long("lr_pack_int8")
        self._brief = library.brief("lr_linear_int8")
        self._long = library.long("lr_linear_int8")

    def pack_int8(self, weight: Tensor) -> Int8Weight:
        """`quantize_int8` of [N, K], laid out for this processor.

        Only the packed form is kept: `qweight` has its shape and dtype on the meta device.
        """
        n, k = weight.shape
        packed = PackedInt8(n, k, self._panel)
        scales = []
        for begin in range(0, n, ROWS_QUANTIZED_AT_ONCE):
            part = quantize_int8(weight[begin : begin + ROWS_QUANTIZED_AT_ONCE])
            packed.fill(begin, part, self._pack)
            scales.append(part.scale)
        qweight = torch.empty(n, k, dtype=torch.int8, device="meta")
        return Int8Weight(qweight=qweight, scale=torch.cat(scales), packed=packed)

    def linear_int8(
        self,
        x: Tensor,
        weight: Int8Weight,
        *,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """[R, N] in the dtype of `out`, or of x.

        The int8 form of x has a scale for each GROUP of a row: s = absmax / 127, q = round(x · 127
        / absmax). result = (Σ over groups, in order, of (Σ q · qweight) · s) · scale + bias; the
        inner sums are exact and each step of the outer one rounds to float32. So a row's result is
        the same alone or among others, to the bit. (The reference has one scale a row and a second
        digit instead: as close to float32, but for twice the products.)
        """
        packed = self.packed_of(weight)
        rows, k = x.shape
        if out is None:
            out = torch.empty((rows, packed.n), dtype=x.dtype)
        if k != packed.k or out.shape != (rows, packed.n):
            raise ValueError(
                f"x {list(x.shape)} with a weight [{packed.n}, {packed.k}] does not give "
                f"{list(out.shape)}"
            )
        if rows == 0:
            return out
        bias_address = 0
        if bias is not None:
            bias = contiguous(bias.float())
            bias_address = bias.data_ptr()
        x_stride, out_stride = k, packed.n
        if not x.is_contiguous():
            x_stride, x_step = x.stride()
            if x_step != 1:
                x, x_stride = x.contiguous(), k
        if not out.is_contiguous():
            out_stride, out_step = out.stride()
            if out_step != 1:
                return out.copy_(self.linear_int8(x, weight, bias=bias))
        run = self._brief if rows <= packed.brief_rows_max else self._long
        call = _CALL(
            *(packed.address, x.data_ptr(), bias_address, out.data_ptr()),
            *(rows, x_stride, out_stride),
            *(kind_of(x), kind_of(out)),
        )
        if run(call):
            raise MemoryError(f"no memory for {rows} quantized rows of {k}")
        return out

    def packed_of(self, weight: Int8Weight) -> PackedInt8:
        """A weight that another implementation made is packed now, by each call again."""
        if type(weight.packed) is PackedInt8:
            return weight.packed
        n, k = weight.qweight.shape
        packed = PackedInt8(n, k, self._panel)
        whole = Int8Weight(weight.qweight.contiguous(), weight.scale)
        packed.fill(0, whole, self._pack)
        return packed
