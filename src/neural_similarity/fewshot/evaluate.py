"""The accuracy of a method on episodes of classes that it was not trained on."""

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
from ..errors import NotFiniteError, RunError
from ..train.distributed import World
from .batches import query_labels
from .methods.base import FeatureMethod, Method
from .network import FewShotNetwork

__all__ = ["Evaluator", "Result", "episodes_per_second", "evaluate_method", "mean_feature"]

Keep = Callable[[list[float], float], None]
"""Takes the accuracies of the next episodes, and the seconds they took."""

_IMAGES, _EPISODES, _CHECKED_EPISODES = 256, 300, 4  # at a time
_COMPARED = 2**24  # values compared in a batch of episodes, about 100 MB
_ROUNDING = 1e-3  # of the largest score: far above rounding, far below the effect of other queries


@dataclass(frozen=True)
class Result:
    """The accuracy in every episode, and how it was measured."""

    method: str
    method_options: dict[str, Any]
    n_way: int
    n_shot: int
    n_query: int
    accuracies: tuple[float, ...]
    episode_seed: int
    fingerprint: str
    """A hash of all episodes: equal hashes mean the same episodes."""
    adapted: int
    """How many parameters are fitted to the support set of an episode."""
    batch_norm: str
    inference: str
    """``"inductive"`` if queries are classified independently, else ``"transductive"``."""
    data: str
    data_copy: str
    seconds: float
    """Time for embedding and scoring all episodes."""

    @property
    def mean(self) -> float:
        """Mean accuracy over episodes."""
        return fmean(self.accuracies)

    @property
    def interval(self) -> float:
        """Half-width of the 95% interval: ``1.96 · std / √n`` over n episodes."""
        count = len(self.accuracies)
        return 1.96 * stdev(self.accuracies) / sqrt(count) if count > 1 else float("inf")

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a file."""
        count = len(self.accuracies)
        rate = episodes_per_second(count, self.seconds)
        summary = {"mean": self.mean, "interval": self.interval, "episodes": count}
        return {**summary, "episodes_per_second": rate, **asdict(self)}


def episodes_per_second(episodes: int, seconds: float) -> float:
    """How fast a test was; 0 if the time is unknown.

    >>> episodes_per_second(600, 30.0)
    20.0
    """
    return episodes / seconds if seconds > 0 else 0.0


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
    """Test a method on episodes of a data set; the network is left unchanged.

    Args:
        method: the method.
        network: the network that it trained.
        dataset: images of new classes.
        episodes: indices into the data set.
        world: the processes that share the episodes.
        mean, std: the normalisation of the training images.
    """
    return Evaluator(method, network, dataset, mean, std, world).run(episodes)


@torch.no_grad()
def mean_feature(
    network: FewShotNetwork,
    dataset: MemorySet,
    world: World | None = None,
    *,
    mean: Sequence[float],
    std: Sequence[float],
) -> Tensor:
    """The mean feature ``(D,)`` of all images of a data set.

    Methods with ``needs_base_mean`` centre features by the mean of the base classes:
    ``network.base_mean = mean_feature(network, base, mean=mean, std=std)``.

    Args:
        network: the trained network; it is not changed.
        dataset: images of the base classes.
        world: the processes that share the images.
        mean, std: the normalisation of the training images.
    """
    world, count = world or World(), len(dataset)
    centre, spread = torch.tensor(mean), torch.tensor(std)
    total = torch.zeros(network.num_features, dtype=torch.float64, device=world.device)
    dtype = total.dtype
    with evaluation(network):
        for number, start in enumerate(range(0, count, _IMAGES)):
            if number % world.size == world.rank:
                images = normalise(dataset.images[start : start + _IMAGES], centre, spread)
                features = network(images.to(world.device))
                dtype, total = features.dtype, total + features.double().sum(0)
    return (world.sum(total) / count).to(dtype)


class Evaluator:
    """Tests a method on several sets of episodes; images are embedded once where possible.

    Processes share batches of episodes that do not depend on the number of processes, so neither do
    the accuracies.
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
        self._checked = method.inference == "transductive"

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
            episodes: episodes of the images' labels.
            known: accuracies of the first episodes, if an earlier attempt was interrupted.
            keep: called with the accuracies of every batch of episodes, and its seconds.
            callback: called with the number of episodes done and the total.
            spent: seconds of the earlier attempt.
        """
        accuracies, began = list(known), time.perf_counter()
        with evaluation(self.network):
            size = self._at_a_time(episodes)
            if self._by_features() and len(known) < len(episodes):
                self.embed()  # all processes together, even those without episodes
            while len(accuracies) < len(episodes):
                batch = self._batch(episodes, len(accuracies), size)
                elapsed = time.perf_counter() - began
                began += elapsed
                spent += elapsed
                accuracies += batch
                if keep is not None:
                    keep(batch, elapsed)
                if callback is not None:
                    callback(len(accuracies), len(episodes))
        return self._result(episodes, accuracies, spent)

    def embed(self) -> Tensor:
        """Features of all images; the first call computes them."""
        if self._features is None:
            assert isinstance(self.method, FeatureMethod)
            world, count = self.world, len(self.dataset)
            features: Tensor | None = None
            for number, start in enumerate(range(0, count, _IMAGES)):
                if number % world.size == world.rank or features is None:
                    rows = torch.arange(start, min(start + _IMAGES, count))
                    batch = self.method.embed(self.network, self._images(rows))
                    if features is None:
                        features = batch.new_zeros(count, *batch.shape[1:])
                    if number % world.size == world.rank:
                        features[start : start + len(rows)] = batch
            assert features is not None
            self._features = world.sum(features)
        return self._features

    def _batch(self, episodes: Episodes, start: int, size: int) -> list[float]:
        """The accuracies of the next episodes; each process computes its part."""
        stop = min(start + size * self.world.size, len(episodes))
        own = range(stop)[start + self.world.rank * size :][:size]
        shares = torch.zeros(stop - start, dtype=torch.float64)
        if own:
            shares[own.start - start : own.stop - start] = self._score(episodes, own)
        accuracies: list[float] = self.world.sum(shares).tolist()
        return accuracies

    def _score(self, episodes: Episodes, numbers: range) -> Tensor:
        support, query, _ = episodes.batch(numbers.start, numbers.stop)
        scores = self._scores(support, query.flatten(1))
        if scores.isnan().any():  # they would all count as the first class
            raise NotFiniteError(
                f"{self.method.name}: expected scores that are numbers, got NaN. A learning rate "
                f"or another option of the method may be too large. Choose a smaller one."
            )
        if not self._checked:
            self._check_inductive(support, query.flatten(1), scores)
            self._checked = True
        labels = query_labels(query.shape[1], query.shape[2], scores.device)
        correct = scores.argmax(-1) == labels
        return correct.double().mean(1).cpu()

    def _scores(self, support: Tensor, queries: Tensor) -> Tensor:
        """Scores of queries ``(B, Q)`` given support sets ``(B, n_way, n_shot)``, as indices."""
        method = self.method
        if isinstance(method, FeatureMethod) and self._by_features():
            features = self.embed()
            return method.feature_scores(self.network, features[support], features[queries])
        images = self._images(support.flatten()).unflatten(0, support.shape)
        query_images = self._images(queries.flatten()).unflatten(0, queries.shape)
        return method.scores(self.network, images, query_images)

    def _check_inductive(self, support: Tensor, queries: Tensor, scores: Tensor) -> None:
        """Raise if the scores of a query change when the other queries are removed.

        The same few episodes are scored both times, so all else is equal.
        """
        few, all_queries = support[:_CHECKED_EPISODES], queries[:_CHECKED_EPISODES]
        together = scores if len(few) == len(support) else self._scores(few, all_queries)
        alone = self._scores(few, all_queries[:, -1:])
        most = float(together.abs().max())
        if not torch.allclose(alone, together[:, -1:], rtol=0, atol=_ROUNDING * most + 1e-9):
            raise RunError(
                f"{self.method.name}: expected the same scores for a query with and without the "
                f"other queries of its episode, got different ones. An inductive method classifies "
                f"every query independently. Set transductive = True in its class, and results "
                f"will say so."
            )

    def _images(self, rows: Tensor) -> Tensor:
        images = normalise(self.dataset.images[rows], self._mean, self._std)
        return images.to(self.world.device)

    def _by_features(self) -> bool:
        return isinstance(self.method, FeatureMethod) and self.method.from_features

    def _at_a_time(self, episodes: Episodes) -> int:
        if not self._by_features():
            return self.method.episodes_at_a_time
        compared = episodes.n_way**2 * episodes.n_query * self.network.num_features
        return max(1, min(_EPISODES, _COMPARED // compared))

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
            inference=method.inference,
            data=self.dataset.name,
            data_copy=self.dataset.fingerprint,
            seconds=seconds,
        )
