"""Joint learning of kernel shape and similarity: ``M = D·R`` (Section 3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .. import _check
from ..errors import ShapeError
from ._matrices import straight_through
from .base import Block, Structure, register, resolve

__all__ = ["KernelShape"]


@register
@dataclass(frozen=True)
class KernelShape(Structure):
    r"""A learned mask of kernel taps, times a similarity of any structure.

    .. math:: M_{i,j} = d_i R_{i,j}, \qquad d_i = [\, D_{r,i} > \alpha \,]

    The parameters :math:`D_r` are real and serve only to compute the Boolean D. They are updated by
    the gradient with respect to D, as in the paper. D masks the kernel's taps: row i of R.

    Args:
        of: the structure of R.
        threshold: the paper's α. :math:`D_r` starts at one, so a tap is switched off when training
            has lowered it by ``1 - threshold``.
        boolean: False gives the paper's continuous mask, :math:`D = D_r`.
    """

    name: ClassVar[str] = "kernel_shape"
    mask_name: ClassVar[str | None] = "shape"
    of: str | Structure = "diagonal"
    threshold: float = 0.5
    boolean: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "of", resolve(self.of, "KernelShape"))

    @property
    def inner(self) -> Structure:
        """The structure of R."""
        assert isinstance(self.of, Structure)
        return self.of

    @property
    def label(self) -> str:
        return f"{self.name} of {self.inner.name}"

    @property
    def is_straight_through(self) -> bool:
        return self.boolean or self.inner.is_straight_through

    @property
    def predicted(self) -> Structure:
        return self.inner

    def check(self, block: Block, where: str) -> None:
        if isinstance(self.inner, KernelShape):
            raise ShapeError(
                f"{where}: expected a structure other than 'kernel_shape' inside a kernel shape, "
                f"got {self.inner.name!r}. One mask is enough."
            )
        self.inner.check(block, where)
        if "shape" in self.inner.initial(Block((1,))):
            raise ShapeError(
                f"{where}: expected a structure without a parameter called 'shape' inside a "
                f"kernel shape, got {self.inner.name!r}. The mask has that name."
            )
        _check.real_numbers(where, threshold=self.threshold)
        _check.true_or_false(where, boolean=self.boolean)
        if self.boolean and not self.threshold < 1:
            raise ShapeError(
                f"{where}: expected threshold below 1, got {self.threshold}. Every tap would "
                f"start switched off."
            )

    def initial(self, block: Block) -> dict[str, Tensor]:
        return {"shape": torch.ones(block.size), **self.inner.initial(block)}

    def starts_at_identity(self, block: Block) -> bool:
        return self.inner.starts_at_identity(block)

    def most_parameters(self, block: Block) -> int:
        return block.size + self.inner.most_parameters(block)

    def similarity(self, parameters: Mapping[str, Tensor], block: Block) -> Tensor:
        shape = self.shape(parameters)
        similarity = self.inner.similarity(parameters, block)
        is_diagonal = similarity.dim() == shape.dim()
        return similarity * (shape if is_diagonal else shape.unsqueeze(-1))

    def mask(self, parameters: Mapping[str, Tensor]) -> Tensor:
        return self.shape(parameters)

    def decays(self, name: str) -> bool:
        return super().decays(name) and self.inner.decays(name)

    def shape(self, parameters: Mapping[str, Tensor]) -> Tensor:
        """The diagonal of D."""
        real = parameters["shape"]
        if not self.boolean:
            return real
        return straight_through((real > self.threshold).to(real.dtype), real)
