"""Evaluate a network on unseen images."""

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

_TOP = 5


@dataclass(frozen=True)
class Evaluation:
    """The number of errors among images, and the mean loss.

    ``top5_errors`` counts images whose class is not among the five with the highest scores; None
    with five classes or fewer.
    """

    errors: int
    images: int
    loss: float
    top5_errors: int | None = None

    @property
    def error(self) -> float:
        """The share of images that are classified wrongly."""
        return self.errors / self.images

    @property
    def top5_error(self) -> float | None:
        """The share of images whose class is not in the top five; None for up to five classes."""
        return None if self.top5_errors is None else self.top5_errors / self.images

    def interval(self) -> tuple[float, float]:
        """Wilson's 95% interval of the error, over the random choice of images."""
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
    """Run a network over all images in evaluation mode, then restore the mode of its modules.

    ``callback`` is called with the number of batches done and the total.
    """
    world = world or World()
    counts = torch.zeros(4, dtype=torch.float64)
    has_top5 = torch.zeros((), dtype=torch.float64)  # a process may have no images
    with evaluation(model):
        for number, (images, labels) in enumerate(loader.epoch(0), start=1):
            labels = labels.to(world.device)
            scores: Tensor = model(images.to(world.device)).float()
            loss = F.cross_entropy(scores, labels, reduction="sum")
            wrong = (scores.argmax(1) != labels).sum().item()
            missed = 0
            if scores.shape[1] > _TOP:
                has_top5.fill_(1)
                missed = int((scores.topk(_TOP).indices != labels[:, None]).all(1).sum())
            numbers = [wrong, len(labels), loss.item(), missed]
            counts += torch.tensor(numbers, dtype=torch.float64)
            if callback is not None:
                callback(number, len(loader))
    errors, images_seen, total, top5 = world.sum(counts).tolist()
    top5_errors = round(top5) if world.sum(has_top5) else None
    return Evaluation(round(errors), round(images_seen), total / images_seen, top5_errors)
