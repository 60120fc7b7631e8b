"""Evaluate a network on images it has not seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..convert.probe import evaluation
from ..data import Loader
from .distributed import World

__all__ = ["Evaluation", "evaluate"]


@dataclass(frozen=True)
class Evaluation:
    """The number of errors among images, and the mean loss."""

    errors: int
    images: int
    loss: float

    @property
    def error(self) -> float:
        """The share of images that are classified wrongly."""
        return self.errors / self.images

    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the error, for the random choice of the images."""
        z, n, p = 1.96, self.images, self.error
        middle = (p + z * z / (2 * n)) / (1 + z * z / n)
        half = z * sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
        return max(0.0, middle - half), min(1.0, middle + half)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    loader: Loader,
    world: World | None = None,
    callback: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Run a network over all images, in evaluation mode; afterwards its modules are as before.

    ``callback`` is called with the number of batches done and the number of all batches.
    """
    world = world or World()
    counts = torch.zeros(3, dtype=torch.float64)
    with evaluation(model):
        for done, (images, labels) in enumerate(loader.epoch(0), start=1):
            labels = labels.to(world.device)
            scores: Tensor = model(images.to(world.device)).float()
            loss = F.cross_entropy(scores, labels, reduction="sum")
            wrong = (scores.argmax(1) != labels).sum()
            counts += torch.tensor([wrong.item(), len(labels), loss.item()], dtype=torch.float64)
            if callback is not None:
                callback(done, len(loader))
    errors, images_seen, total = world.sum(counts).tolist()
    return Evaluation(round(errors), round(images_seen), total / images_seen)
