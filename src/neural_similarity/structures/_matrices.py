"""Small matrix constructions that several structures share."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["lower_triangle", "packed_identity", "straight_through"]


def lower_triangle(packed: Tensor, size: int, offset: int = 0) -> Tensor:
    """``(*leading, count)`` parameters, row by row, as lower triangular ``(*leading, n, n)``.

    ``offset`` -1 leaves the diagonal out. Only these entries are parameters, so counting parameters
    counts what is really learned.
    """
    rows, columns = torch.tril_indices(size, size, offset, device=packed.device)
    flat = packed.new_zeros(*packed.shape[:-1], size * size)
    flat = flat.index_copy(-1, rows * size + columns, packed)
    return flat.reshape(*packed.shape[:-1], size, size)


def packed_identity(size: int) -> Tensor:
    """The identity in the packing of :func:`lower_triangle`."""
    rows, columns = torch.tril_indices(size, size)
    return torch.eye(size)[rows, columns]


def straight_through(value: Tensor, source: Tensor) -> Tensor:
    """Exactly ``value``, but its gradient goes to ``source`` unchanged."""
    return value.detach() + (source - source.detach())
