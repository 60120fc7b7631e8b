"""A run of a few-shot method on disk: the files of every run, and the results of its tests."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from .._json import read_json
from ..data import Episodes, MemorySet
from ..errors import RunError
from ..train.build import build_model, find_classifier, keep_random_numbers
from ..train.checkpoint import read_step, read_weights
from ..train.distributed import World
from ..train.runs.folders import sharing, tidy
from ..train.runs.run import Run
from ..train.runs.run_folder import RunFolder
from ..train.settings import Settings
from .config import FewShotConfig
from .evaluate import Evaluator, mean_feature
from .methods.base import Method
from .network import FewShotNetwork
from .result_file import ResultFile, read_result
from .training_data import base_classes, check_apart, load_split

__all__ = ["FewShotRun", "Trial", "open_run"]


@dataclass(frozen=True)
class Trial:
    """A test of a run: sizes and number of episodes.

    ``which`` weights: None means the best in validation, or the last without validation. For
    everything else, None means the value in the run's configuration.
    """

    n_shot: int
    n_way: int | None = None
    n_query: int | None = None
    episodes: int | None = None
    seed: int | None = None
    which: str | None = None
    batch_norm: str | None = None


@dataclass(frozen=True)
class FewShotRun(RunFolder[FewShotConfig]):
    """A run that trained a few-shot method."""

    config_class: ClassVar[type[Settings]] = FewShotConfig

    def build_network(self, classes: int, in_channels: int, image_size: int) -> FewShotNetwork:
        """The network of the configuration, with weights drawn from the seed."""
        method = self.config.build_method()
        ways = self.config.training_episode()[0]
        count = ways if method.trains_on == "episodes" else classes
        network = build_model(self.config, count, in_channels, image_size)
        find_classifier("fewshot", self.config.model, network)  # build removes it
        return method.build(network, count, (in_channels, image_size, image_size))

    def load_network(self, which: str | None = None) -> FewShotNetwork:
        """The trained network, in evaluation mode."""
        file = self.weights(which or self.chosen())
        environment = self.environment()
        with keep_random_numbers():
            network = self.build_network(
                len(environment["classes"]), environment["in_channels"], environment["image_size"]
            )
        read_weights(file, network)
        return network.eval()

    def load_model(self, which: str | None = None) -> nn.Module:
        """The trained network that computes features, without the method's head."""
        return self.load_network(which).backbone

    def has_base_classifier(self) -> bool:
        """Whether the head of its network is a trained base-class classifier.

        A run that started from another run's backbone has a new one, unless its method needs it.
        """
        method = self.config.build_method()
        own = self.config.backbone is None or method.needs_base_classifier
        return own and method.trains_on == "images"

    def trained_classes(self) -> tuple[str, ...]:
        """Every class that its network was trained on, by this run or those it started from."""
        environment = self.environment()
        return tuple(environment.get("trained_classes", environment["classes"]))

    def chosen(self) -> str:
        """Which weights count: the best in validation, or the last without validation."""
        return "best" if (self.folder / "best.safetensors").is_file() else "last"

    def results(self) -> list[dict[str, Any]]:
        """All results of tests, sorted by the names of their files."""
        files = sorted((self.folder / "results").glob("*.json"))
        return [read_result(file) for file in files]

    def evaluate(
        self,
        tests: list[Trial],
        world: World | None = None,
        *,
        force: bool = False,
        callback: Callable[[str, int, int], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Test the run on new classes and store the results; finished tests are only read.

        An interrupted test continues where it stopped.

        Args:
            tests: what to test.
            world: the processes that share the episodes.
            force: repeat tests that are finished.
            callback: called with the test's name, the episodes done and the total.
        """
        world = world or World()
        dataset, all_episodes = self.test_episodes(tests, self.trained_classes())
        results, evaluator, before = [], None, None
        for test, episodes in zip(map(self._complete, tests), all_episodes, strict=True):
            about = self._about(test, dataset.fingerprint, episodes.fingerprint())
            file = ResultFile(self.folder / "results" / _name(test, self.chosen()), about)
            result = None if force else world.from_first(file.read)
            if result is not None and world.first:
                file.tidy()
            if result is None:
                if evaluator is None or before != (test.which, test.batch_norm):
                    method = self._method(test)
                    network = self.load_network(test.which).to(world.device)
                    mean, std = self.normalisation()
                    if method.needs_base_mean:
                        base = base_classes(self.config)[0]
                        network.base_mean = mean_feature(network, base, world, mean=mean, std=std)
                    evaluator = Evaluator(method, network, dataset, mean, std, world)
                    before = (test.which, test.batch_norm)
                with sharing(file.path.parent) if world.first else nullcontext():
                    result = file.write(evaluator, episodes, world, force, callback)
            results.append(result)
        return results

    def test_episodes(
        self, tests: list[Trial], trained: tuple[str, ...]
    ) -> tuple[MemorySet, list[Episodes]]:
        """Test images, and the episodes of every test; raises if there are too few images."""
        dataset = self._images()
        check_apart(self.config.data, trained, dataset.classes)
        all_episodes = []
        for test in map(self._complete, tests):
            sizes = (test.n_way, test.n_shot, test.n_query, test.seed, test.episodes)
            all_episodes.append(Episodes(dataset.labels, *sizes))  # type: ignore[arg-type]
        return dataset, all_episodes

    def _images(self) -> MemorySet:
        return load_split(self.config, "test")

    def _complete(self, test: Trial) -> Trial:
        config = self.config
        return replace(
            test,
            n_way=config.n_way if test.n_way is None else test.n_way,
            n_query=config.n_query if test.n_query is None else test.n_query,
            episodes=config.episodes if test.episodes is None else test.episodes,
            seed=config.episode_seed if test.seed is None else test.seed,
            which=test.which or self.chosen(),
            batch_norm=test.batch_norm or config.batch_norm,
        )

    def _method(self, test: Trial) -> Method:
        return replace(self.config, batch_norm=test.batch_norm or "running").build_method()

    def _about(self, test: Trial, data: str, episodes: str) -> dict[str, Any]:
        """Everything that affects a result, with fingerprints of data and episodes."""
        return {
            "fingerprint": episodes,
            "data_copy": data,
            "weights": test.which,
            "weights_step": read_step(self.weights(test.which or "last")),
            "config": self.config.to_dict(),
            "base_copies": self.environment()["data_copies"],
        }


def open_run(
    folder: str | os.PathLike[str], data_dir: str | os.PathLike[str] | None = None
) -> Run | FewShotRun:
    """The run in a folder, of ``nsl train`` or ``nsl fewshot``; see :meth:`RunFolder.open`."""
    path = Path(folder)
    tidy(path)
    try:
        kind = read_json(path / "config.json", dict[str, Any], RunError).get("kind")
    except RunError:
        kind = None  # opening it raises an error that names what is missing
    return (FewShotRun if kind == FewShotConfig.kind else Run).open(path, data_dir)


def _name(test: Trial, chosen: str) -> str:
    """The file of a result; its name contains every non-default setting."""
    name = f"{test.n_way}way-{test.n_shot}shot-{test.episodes}-{test.seed}"
    name += "" if test.n_query == 15 else f"-{test.n_query}query"
    name += "" if test.which == chosen else f"-{test.which}"
    name += "" if test.batch_norm == "running" else f"-{test.batch_norm}"
    return f"{name}.json"
