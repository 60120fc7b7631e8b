"""Adam in a few lines: PyTorch's optimisers import the compiler, which takes seconds."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["Adam"]

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class Adam:
    """Steps of Adam (`Kingma and Ba, 2015 <https://arxiv.org/abs/1412.6980>`_), as in PyTorch.

    Args:
        tensors: changed in place.
        rates: the learning rate of each.
    """

    def __init__(self, tensors: Sequence[Tensor], rates: Sequence[float]) -> None:
        self.tensors, self.rates = list(tensors), list(rates)
        self.means = [torch.zeros_like(tensor) for tensor in tensors]
        self.squares = [torch.zeros_like(tensor) for tensor in tensors]
        self.steps = 0

    @torch.no_grad()
    def step(self, slopes: Sequence[Tensor], share: float = 1.0) -> None:
        """Take a step down these gradients, at this fraction of the learning rates."""
        self.steps += 1
        first, second = (1 - beta**self.steps for beta in _BETAS)
        lists = (self.tensors, self.rates, self.means, self.squares, slopes)
        for tensor, rate, mean, square, slope in zip(*lists, strict=True):
            mean.lerp_(slope, 1 - _BETAS[0])
            square.mul_(_BETAS[1]).addcmul_(slope, slope, value=1 - _BETAS[1])
            length = (square / second).sqrt_().add_(_EPSILON)
            tensor.addcdiv_(mean, length, value=-share * rate / first)
