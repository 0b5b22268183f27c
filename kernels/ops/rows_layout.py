"""Tensors of any leading shape as rows, without a copy where their strides allow it."""

from __future__ import annotations

from torch import Tensor


def as_rows(tensor: Tensor) -> Tensor:
    """[..., H] → [R, H] with neighbouring columns; a copy where no view is possible."""
    rows = view_rows(tensor)
    return tensor.contiguous().view(-1, tensor.shape[-1]) if rows is None else rows


def view_rows(tensor: Tensor) -> Tensor | None:
    """[..., H] → a view [R, H] with neighbouring columns, or None: then a copy must stand in."""
    width = tensor.shape[-1]
    if width > 1 and tensor.stride(-1) != 1:
        return None
    if tensor.dim() == 1:
        return tensor.unsqueeze(0)
    stride = tensor.stride(-2)
    for dim in range(tensor.dim() - 2, 0, -1):
        stride *= tensor.shape[dim]
        if tensor.shape[dim - 1] > 1 and tensor.stride(dim - 1) != stride:
            return None
    return tensor.view(-1, width) if tensor.dim() > 2 else tensor


def target_rows(out: Tensor | None, like: Tensor) -> Tensor:
    """[R, H]: rows of `out` if a kernel can write them, or new ones to be copied there.

    Raises ValueError if `out` is not as wide as `like`, or has not as many values.
    """
    if out is not None and (out.shape[-1], out.numel()) != (like.shape[-1], like.numel()):
        raise ValueError(
            f"out is {list(out.shape)}; it must hold {like.numel()} values in rows of "
            f"{like.shape[-1]}"
        )
    rows = None if out is None else view_rows(out)
    if rows is not None:
        return rows
    width = like.shape[-1]
    dtype = like.dtype if out is None else out.dtype
    return like.new_empty((like.numel() // width, width), dtype=dtype)


def delivered_rows(rows: Tensor, out: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    """The result in the caller's shape: `out` itself where there is one."""
    if out is None:
        return rows.view(shape)
    return out if rows.data_ptr() == out.data_ptr() else out.copy_(rows.view(out.shape))
