"""How well a method does on episodes of classes it has not seen."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Any

import torch
from torch import Tensor

from ..convert.probe import evaluation
from ..data import Episodes, MemorySet
from ..data.loader import normalise
from ..train.distributed import World
from .batches import query_labels
from .methods.base import FeatureMethod, Method
from .network import FewShotNetwork

__all__ = ["Evaluator", "Result", "evaluate_method"]

Keep = Callable[[list[float], float], None]
"""Is given the accuracies of the next episodes, and the seconds they took."""

_IMAGES, _EPISODES, _SLOW_EPISODES = 256, 300, 4  # at a time
_NUMBERS = 2**24  # that a batch of episodes may compare, so that it stays within some 100 MB


@dataclass(frozen=True)
class Result:
    """The accuracy in every episode, and all that decides what it is worth."""

    method: str
    method_options: dict[str, Any]
    n_way: int
    n_shot: int
    n_query: int
    accuracies: tuple[float, ...]
    episode_seed: int
    fingerprint: str
    """A hash of all episodes: who has the same was asked the same."""
    adapted: int
    """How many numbers are fitted to the support set of an episode."""
    batch_norm: str
    data: str
    data_copy: str
    seconds: float
    """Embedding and scoring, over all episodes."""

    @property
    def mean(self) -> float:
        """Mean accuracy over episodes."""
        return fmean(self.accuracies)

    @property
    def interval(self) -> float:
        """Half of the 95 % interval: ``1.96 · std / √n`` over n episodes."""
        count = len(self.accuracies)
        return 1.96 * stdev(self.accuracies) / sqrt(count) if count > 1 else float("inf")

    @property
    def inference(self) -> str:
        """Whether queries are classified on their own (inductive) or tell of each other."""
        return "inductive" if self.batch_norm == "running" else "transductive"

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        summary = {"mean": self.mean, "interval": self.interval, "inference": self.inference}
        return {**summary, "episodes": len(self.accuracies), **asdict(self)}


def evaluate_method(
    method: Method,
    network: FewShotNetwork,
    dataset: MemorySet,
    episodes: Episodes,
    world: World | None = None,
    *,
    mean: Sequence[float],
    std: Sequence[float],
) -> Result:
    """Test a method on episodes of a data set; the network is as before afterwards.

    Args:
        method: the method.
        network: what it trained.
        dataset: images of new classes.
        episodes: places in the data set.
        world: the processes that share the episodes.
        mean, std: what training images were brought to.
    """
    return Evaluator(method, network, dataset, mean, std, world).run(episodes)


class Evaluator:
    """Tests a method on several lots of episodes; images are embedded once where possible.

    Processes take turns at batches that are the same however many processes there are, so the
    accuracies are the same too.
    """

    def __init__(
        self,
        method: Method,
        network: FewShotNetwork,
        dataset: MemorySet,
        mean: Sequence[float],
        std: Sequence[float],
        world: World | None = None,
    ) -> None:
        self.method, self.network, self.dataset = method, network, dataset
        self.world = world or World()
        self._mean, self._std = torch.tensor(mean), torch.tensor(std)
        self._features: Tensor | None = None

    @torch.no_grad()
    def run(
        self,
        episodes: Episodes,
        known: Sequence[float] = (),
        keep: Keep | None = None,
        callback: Callable[[int, int], None] | None = None,
        spent: float = 0.0,
    ) -> Result:
        """The result over all episodes.

        Args:
            episodes: of the images' labels.
            known: accuracies of the first episodes, if an earlier attempt was stopped.
            keep: is given what becomes known.
            callback: is told the number of episodes done and of all.
            spent: seconds of the earlier attempt.
        """
        accuracies, began = list(known), time.perf_counter()
        with evaluation(self.network):
            size = self._at_a_time(episodes)
            if self._by_features() and len(known) < len(episodes):
                self.embed()  # all processes together, even one that will have no episode
            while len(accuracies) < len(episodes):
                found = self._turn(episodes, len(accuracies), size)
                seconds = time.perf_counter() - began
                began += seconds
                spent += seconds
                accuracies += found
                if keep is not None:
                    keep(found, seconds)
                if callback is not None:
                    callback(len(accuracies), len(episodes))
        return self._result(episodes, accuracies, spent)

    def embed(self) -> Tensor:
        """Features of all images, computed at the first call."""
        if self._features is None:
            assert isinstance(self.method, FeatureMethod)
            world, count = self.world, len(self.dataset)
            features: Tensor | None = None
            for number, start in enumerate(range(0, count, _IMAGES)):
                if number % world.size == world.rank or features is None:
                    rows = torch.arange(start, min(start + _IMAGES, count))
                    found = self.method.embed(self.network, self._images(rows))
                    if features is None:
                        features = found.new_zeros(count, *found.shape[1:])
                    if number % world.size == world.rank:
                        features[start : start + len(rows)] = found
            assert features is not None
            self._features = world.sum(features)
        return self._features

    def _turn(self, episodes: Episodes, start: int, size: int) -> list[float]:
        """The accuracies that all processes find in one turn, each in a batch of its own."""
        stop = min(start + size * self.world.size, len(episodes))
        mine = range(stop)[start + self.world.rank * size :][:size]
        found = torch.zeros(stop - start, dtype=torch.float64)
        if mine:
            found[mine.start - start : mine.stop - start] = self._score(episodes, mine)
        accuracies: list[float] = self.world.sum(found).tolist()
        return accuracies

    def _score(self, episodes: Episodes, numbers: range) -> Tensor:
        support, query, _ = episodes.batch(numbers.start, numbers.stop)
        asked, method = query.flatten(1), self.method
        if isinstance(method, FeatureMethod) and self._by_features():
            features = self.embed()
            scores = method.feature_scores(self.network, features[support], features[asked])
        else:
            shown = self._images(support.flatten()).unflatten(0, support.shape)
            queries = self._images(asked.flatten()).unflatten(0, asked.shape)
            scores = method.scores(self.network, shown, queries)
        labels = query_labels(query.shape[1], query.shape[2], scores.device)
        right = scores.argmax(-1) == labels
        return right.double().mean(1).cpu()

    def _images(self, rows: Tensor) -> Tensor:
        images = normalise(self.dataset.images[rows], self._mean, self._std)
        return images.to(self.world.device)

    def _by_features(self) -> bool:
        return isinstance(self.method, FeatureMethod) and self.method.from_features

    def _at_a_time(self, episodes: Episodes) -> int:
        if not self._by_features():
            return _SLOW_EPISODES
        compared = episodes.n_way**2 * episodes.n_query * self.network.num_features
        return max(1, min(_EPISODES, _NUMBERS // compared))

    def _result(self, episodes: Episodes, accuracies: list[float], seconds: float) -> Result:
        method = self.method
        options = {k: v for k, v in asdict(method).items() if k != "batch_norm"}
        return Result(
            method=method.name,
            method_options=options,
            n_way=episodes.n_way,
            n_shot=episodes.n_shot,
            n_query=episodes.n_query,
            accuracies=tuple(accuracies),
            episode_seed=episodes.seed,
            fingerprint=episodes.fingerprint(),
            adapted=method.adapted(self.network, episodes.n_way),
            batch_norm=method.batch_norm,
            data=self.dataset.name,
            data_copy=self.dataset.fingerprint,
            seconds=seconds,
        )
