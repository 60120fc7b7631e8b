"""95 % intervals: over seeds, over episodes, over images, and of paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev

import numpy as np

from neural_similarity.train import Evaluation

__all__ = [
    "NORMAL",
    "Estimate",
    "over_episodes",
    "over_images",
    "over_seeds",
    "over_seeds_and_episodes",
    "paired_over_episodes",
    "paired_over_seeds",
    "student",
]

NORMAL = 1.96  # two-sided 95 % quantile, for hundreds of episodes or images

# The same quantile of Student's t for 1, 2, ... degrees of freedom.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179,
            2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % interval.

    Args:
        mean: over all measurements.
        low: the lower end of the interval; None if there is no interval.
        high: the upper end.
        over: what the interval is over: ``"seeds"``, ``"episodes"``, ``"images"``.
    """

    mean: float
    low: float | None
    high: float | None
    over: str

    @classmethod
    def around(cls, mean: float, half: float | None, over: str) -> Estimate:
        """An interval that is symmetric around the mean."""
        if half is None:
            return cls(mean, None, None, over)
        return cls(mean, mean - half, mean + half, over)

    def contains(self, value: float) -> bool | None:
        """Whether the value is in the interval; None without an interval."""
        if self.low is None or self.high is None:
            return None
        return self.low <= value <= self.high

    def widened(self, half: float) -> Estimate:
        """With another error, of this half-width, that is independent of the rest."""
        if self.low is None or self.high is None:
            return self
        low, high = (sqrt((end - self.mean) ** 2 + half**2) for end in (self.low, self.high))
        return Estimate(self.mean, self.mean - low, self.mean + high, self.over)

    def times(self, factor: float) -> Estimate:
        """The same in other units."""
        low, high = (None if end is None else factor * end for end in (self.low, self.high))
        return Estimate(factor * self.mean, low, high, self.over)


def student(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t; above 19 degrees of freedom that of 19."""
    return _STUDENT[min(freedom, len(_STUDENT)) - 1]


def over_seeds(values: Sequence[float]) -> Estimate:
    """Mean over seeds, with Student's interval if there are at least two."""
    return Estimate.around(fmean(values), _student_half(values), "seeds")


def over_episodes(values: Sequence[float]) -> Estimate:
    """Mean over the episodes of one run."""
    return Estimate.around(fmean(values), _normal_half(values), "episodes")


def over_images(share: float, images: int) -> Estimate:
    """A share of a number of images, with Wilson's interval."""
    low, high = Evaluation(round(share * images), images, loss=0.0).interval()
    return Estimate(share, low, high, "images")


def paired_over_seeds(ours: Sequence[float], baseline: Sequence[float]) -> Estimate:
    """Mean difference, seed by seed; one pair has no interval."""
    return over_seeds([a - b for a, b in zip(ours, baseline, strict=True)])


def paired_over_episodes(
    ours: Sequence[Sequence[float]], baseline: Sequence[Sequence[float]]
) -> Estimate:
    """Mean difference, episode by episode, between runs that share their test episodes."""
    differences = [
        [a - b for a, b in zip(mine, theirs, strict=True)]
        for mine, theirs in zip(ours, baseline, strict=True)
    ]
    return over_seeds_and_episodes(differences)


def over_seeds_and_episodes(values: Sequence[Sequence[float]]) -> Estimate:
    """Mean over runs that share their test episodes.

    ``values[s][e]`` is the value of seed s in episode e. Seeds and episodes are both drawn at
    random, so the squares of both intervals add up: Student's interval of the seeds' means, and
    the interval of the episodes' means. With one seed only the second exists.
    """
    array = np.array(values)
    by_seed: list[float] = array.mean(1).tolist()
    by_episode: list[float] = array.mean(0).tolist()
    seeds, episodes = _student_half(by_seed), _normal_half(by_episode)
    if episodes is None:
        return Estimate.around(fmean(by_seed), seeds, "seeds")
    if seeds is None:
        return Estimate.around(fmean(by_seed), episodes, "episodes")
    return Estimate.around(fmean(by_seed), sqrt(seeds**2 + episodes**2), "seeds and episodes")


def _student_half(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return student(len(values) - 1) * stdev(values) / sqrt(len(values))


def _normal_half(values: Sequence[float]) -> float | None:
    if len(values) < 2:
        return None
    return NORMAL * float(np.std(values, ddof=1)) / sqrt(len(values))
