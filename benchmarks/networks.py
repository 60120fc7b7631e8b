"""What several benchmarks share: the size of a batch, a training step, the fast memory layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = ["BATCH", "SIDE", "channels_last", "training_step"]

BATCH, SIDE = 128, 32

Model = TypeVar("Model", bound=nn.Module)


def channels_last(model: Model) -> Model:
    """The same model, its kernels in the memory layout that training uses by default."""
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # not in its stubs
    return model


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """A function that takes one step of SGD on this batch."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        optimiser.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimiser.step()

    return step
