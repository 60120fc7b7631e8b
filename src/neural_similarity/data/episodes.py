"""Few-shot episodes: the images of each n-way k-shot task, as a function of a seed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .. import _check
from ..errors import DataError
from .loader import whole_number

__all__ = ["EpisodeBatch", "Episodes"]

_AT_A_TIME = 1000


class EpisodeBatch(NamedTuple):
    """Several episodes, as indices into the data set.

    Row w of ``support`` and of ``query`` holds images of the class whose label is ``classes[w]``.
    """

    support: Tensor
    """``(B, n_way, n_shot)``."""
    query: Tensor
    """``(B, n_way, n_query)``, none of them in the support of its episode."""
    classes: Tensor
    """``(B, n_way)``, labels of the data set."""


@dataclass(frozen=True, eq=False)
class Episodes:
    """Episodes: tasks of ``n_way`` classes, a few labelled images of each, and queries.

    An episode depends only on the labels, the seed and its own number. So some of them can be
    computed without the others: by a resumed run, or by one of several processes. The random
    integers come from a stream that NumPy never changes, so they are the same everywhere.

    Args:
        labels: int64 ``(N,)``, the class of every image; only classes that occur are drawn.
        n_way: classes per episode.
        n_shot: labelled images per class.
        n_query: images per class that are to be classified.
        seed: seed of all episodes.
        count: the number of episodes.

    Example:
        >>> episodes = Episodes(torch.arange(6).repeat(20), n_way=5, n_shot=1)
        >>> len(episodes), episodes.batch(0, 4).query.shape
        (600, torch.Size([4, 5, 15]))
    """

    labels: Tensor
    n_way: int = 5
    n_shot: int = 5
    n_query: int = 15
    seed: int = 0
    count: int = 600
    _members: dict[int, NDArray[np.int64]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        _check.whole_numbers(
            "Episodes", n_way=self.n_way, n_shot=self.n_shot, n_query=self.n_query, count=self.count
        )
        _check.counts("Episodes", seed=self.seed)
        if self.labels.dim() != 1 or self.labels.is_floating_point():
            raise DataError(
                f"Episodes: expected whole numbers of shape (N,) as labels, got "
                f"{self.labels.dtype} {tuple(self.labels.shape)}."
            )
        labels = self.labels.cpu().numpy()
        order = np.argsort(labels, kind="stable")
        present, starts = np.unique(labels[order], return_index=True)
        members = dict(zip(present.tolist(), np.split(order, starts[1:]), strict=bool(len(labels))))
        self._check_members(members)
        object.__setattr__(self, "_members", members)

    def __len__(self) -> int:
        return self.count

    def batch(self, start: int, stop: int) -> EpisodeBatch:
        """The episodes from number ``start`` to before ``stop``."""
        if not 0 <= start <= stop <= self.count:
            raise DataError(
                f"Episodes: expected a range within 0 to {self.count}, got {start} to {stop}. "
                f"There are {self.count} episodes. Use a larger count."
            )
        images = np.empty((stop - start, self.n_way, self.n_shot + self.n_query), np.int64)
        classes = np.empty((stop - start, self.n_way), np.int64)
        for row, number in enumerate(range(start, stop)):
            self._draw(number, images[row], classes[row])
        rows = torch.from_numpy(images)
        return EpisodeBatch(
            rows[..., : self.n_shot], rows[..., self.n_shot :], torch.from_numpy(classes)
        )

    def fingerprint(self) -> str:
        """A short hash of all episodes, to store with results: equal hashes mean equal tasks."""
        sizes = (self.count, self.n_way, self.n_shot, self.n_query)
        digest = hashlib.sha256(repr(sizes).encode())
        for start in range(0, self.count, _AT_A_TIME):
            for tensor in self.batch(start, min(start + _AT_A_TIME, self.count)):
                digest.update(np.ascontiguousarray(tensor.numpy(), "<i8").data)
        return digest.hexdigest()[:12]

    def _draw(self, number: int, images: NDArray[np.int64], classes: NDArray[np.int64]) -> None:
        digest = hashlib.sha256(
            repr((whole_number(self.seed), "episode", number)).encode()
        ).digest()
        generator = np.random.PCG64(int.from_bytes(digest, "little"))
        labels = list(self._members)
        for way, index in enumerate(_some(generator, len(labels), self.n_way)):
            members = self._members[labels[index]]
            classes[way] = labels[index]
            images[way] = members[_some(generator, len(members), images.shape[1])]

    def _check_members(self, members: dict[int, NDArray[np.int64]]) -> None:
        if len(members) < self.n_way:
            raise DataError(
                f"Episodes: expected at least {self.n_way} classes for {self.n_way}-way episodes, "
                f"got {len(members)}. Use a smaller n_way, or data with more classes."
            )
        needed = self.n_shot + self.n_query
        few = [label for label, images in members.items() if len(images) < needed]
        if few:
            least = min(few, key=lambda label: len(members[label]))
            raise DataError(
                f"Episodes: expected at least {needed} images of each class, {self.n_shot} for "
                f"n_shot and {self.n_query} for n_query, got {len(members[least])} of class "
                f"{least}; {len(few)} of {len(members)} classes have too few. Use a smaller n_shot "
                f"or n_query, or leave these classes out."
            )


def _some(generator: np.random.PCG64, size: int, count: int) -> NDArray[np.int64]:
    """``count`` of the numbers below ``size``, in random order.

    It sorts raw random numbers: the streams of NumPy's bit generators never change, while its
    ``permutation`` may change between versions.
    """
    return np.argsort(generator.random_raw(size), kind="stable")[:count]
