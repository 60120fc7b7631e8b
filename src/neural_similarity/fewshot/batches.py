"""Batches that methods learn from: of images, and of episodes.

Shapes, throughout: B episodes of ``n_way`` classes with ``n_shot`` support images and Q queries.
Support images are sorted by class, so their index is their label.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

__all__ = ["BatchNorm", "Images", "Tasks", "TrainsOn", "as_batch", "as_tasks", "query_labels"]

BatchNorm = Literal["running", "batch"]
"""Which statistics BatchNorm uses on test images."""

TrainsOn = Literal["images", "episodes", "both"]
"""What a training step learns from; with both, each step has either images or episodes."""


class Images(NamedTuple):
    """A batch of images of base classes."""

    images: Tensor
    """``(N, C, H, W)``."""
    labels: Tensor
    """``(N,)``."""


class Tasks(NamedTuple):
    """A batch of episodes to learn from."""

    support: Tensor
    """``(B, n_way, n_shot, C, H, W)``."""
    query: Tensor
    """``(B, Q, C, H, W)``."""
    labels: Tensor
    """``(B, Q)``, the class of each query within the episode."""


def as_batch(tensors: Sequence[Tensor]) -> Images | Tasks:
    """Images or tasks from their tensors, distinguished by the number of tensors.

    >>> type(as_batch([torch.zeros(2, 3, 8, 8), torch.zeros(2)])).__name__
    'Images'
    """
    return Images(*tensors) if len(tensors) == len(Images._fields) else Tasks(*tensors)


def as_tasks(support: Tensor, query: Tensor) -> Tasks:
    """Tasks from queries that are sorted by class, ``(B, n_way, n_query, C, H, W)``."""
    n_way, n_query = query.shape[1:3]
    labels = query_labels(n_way, n_query, query.device).expand(len(query), -1)
    return Tasks(support, query.flatten(1, 2), labels)


def query_labels(n_way: int, n_query: int, device: torch.device | None = None) -> Tensor:
    """The labels ``(n_way · n_query,)`` of queries that are sorted by class.

    >>> query_labels(3, 2)
    tensor([0, 0, 1, 1, 2, 2])
    """
    return torch.arange(n_way, device=device).repeat_interleave(n_query)
