"""A run of a few-shot method on disk: as every run, and results of tests beside.

::

    results/5way-1shot-600-0.json            a test: everything about it
    results/5way-1shot-600-0.partial.jsonl   a test under way: accuracies as they come
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError, safe_open

from ..data import Episodes, MemorySet
from ..errors import RunError
from ..train.build import build_model
from ..train.checkpoint import read_weights, write_atomically
from ..train.distributed import World
from ..train.folders import read_json
from ..train.metrics import MetricsFile
from ..train.runs import RunFolder, here_and_now
from ..train.settings import Settings
from .config import FewShotConfig
from .evaluate import Evaluator, Result
from .methods.base import Method
from .network import FewShotNetwork
from .training_data import check_apart, load_split

__all__ = ["FewShotRun", "Trial"]


@dataclass(frozen=True)
class Trial:
    """A test of a run: sizes and number of episodes.

    ``which`` weights: None is the best in validation, or the last if nothing validated. What is
    None otherwise is as the run's configuration says.
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
        """The network of the configuration, its weights drawn from the seed."""
        method = self.config.build_method()
        count = classes if method.trains_on == "images" else self.config.training_episode()[0]
        network = build_model(self.config, count, in_channels, image_size)
        return method.build(network, count, (in_channels, image_size, image_size))

    def load_network(self, which: str | None = None) -> FewShotNetwork:
        """The trained network, in evaluation mode."""
        file = self.weights(which or self.chosen())
        known = self.environment()
        network = self.build_network(
            len(known["classes"]), known["in_channels"], known["image_size"]
        )
        read_weights(file, network)
        return network.eval()

    def trained_classes(self) -> tuple[str, ...]:
        """Every class that its network was trained on, by this run or those it began with."""
        known = self.environment()
        return tuple(known.get("trained_classes", known["classes"]))

    def chosen(self) -> str:
        """Which weights count: the best in validation, or the last if nothing validated."""
        return "best" if (self.folder / "best.safetensors").is_file() else "last"

    def results(self) -> list[dict[str, Any]]:
        """All results of tests, by the names of their files."""
        files = sorted((self.folder / "results").glob("*.json"))
        return [read_json(file, dict) for file in files]

    def evaluate(
        self,
        tests: list[Trial],
        world: World | None = None,
        *,
        force: bool = False,
        callback: Callable[[str, int, int], None] | None = None,
    ) -> list[dict[str, Any]]:
        """Test the run on new classes, and keep the results; those it has already are read.

        A test that was stopped goes on where it was.

        Args:
            tests: what to test.
            world: the processes that share the episodes.
            force: test again what has been tested.
            callback: is told the test's name, and how many episodes are done and of how many.
        """
        world = world or World()
        dataset, lots = self.test_episodes(tests, self.trained_classes())
        done, evaluator, before = [], None, None
        for test, episodes in zip(map(self._complete, tests), lots, strict=True):
            about = self._about(test, dataset.fingerprint, episodes.fingerprint())
            file = _ResultFile(self.folder / "results" / _name(test, self.chosen()), about)
            known = None if force else file.read()
            if known is None:
                if evaluator is None or before != (test.which, test.batch_norm):
                    method = self._method(test)
                    network = self.load_network(test.which).to(world.device)
                    mean, std = self.normalisation()
                    evaluator = Evaluator(method, network, dataset, mean, std, world)
                    before = (test.which, test.batch_norm)
                known = file.make(evaluator, episodes, world, force, callback)
            done.append(known)
        return done

    def test_episodes(
        self, tests: list[Trial], trained: tuple[str, ...]
    ) -> tuple[MemorySet, list[Episodes]]:
        """Test images, and the episodes of every test; raises if the data are not enough."""
        dataset = load_split(self.config, "test")
        check_apart(self.config.data, trained, dataset.classes)
        lots = []
        for test in map(self._complete, tests):
            sizes = (test.n_way, test.n_shot, test.n_query, test.seed, test.episodes)
            lots.append(Episodes(dataset.labels, *sizes))  # type: ignore[arg-type]
        return dataset, lots

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

    def _about(self, test: Trial, copy: str, fingerprint: str) -> dict[str, Any]:
        """What must be the same for a result to be the same."""
        return {
            "fingerprint": fingerprint,
            "data_copy": copy,
            "weights": test.which,
            "weights_step": _step(self.weights(test.which or "last")),
            "config": self.config.to_dict(),
            "base_copies": self.environment()["data_copies"],
        }


@dataclass(frozen=True)
class _ResultFile:
    """A result, finished or under way."""

    path: Path
    about: dict[str, Any]

    def read(self) -> dict[str, Any] | None:
        """The result, if it is there and still holds."""
        if not self.path.is_file():
            return None
        known: dict[str, Any] = read_json(self.path, dict)
        if any(known.get(name) != self.about[name] for name in ("weights_step", "data_copy")):
            raise RunError(
                f"{self.path}: expected a result of these weights and data, got one of others. "
                f"The run was trained further, or the data changed. Test again with --force."
            )
        return known

    def make(
        self,
        evaluator: Evaluator,
        episodes: Episodes,
        world: World,
        force: bool,
        callback: Callable[[str, int, int], None] | None,
    ) -> dict[str, Any]:
        """Test, going on with what is known, and write the result."""
        partial = self.path.with_suffix(".partial.jsonl")
        lines = [] if force else MetricsFile.read(partial, frozenset())
        lines = _in_a_row(lines[1:]) if lines and lines[0] == self.about else []
        done = [accuracy for line in lines for accuracy in line["accuracies"]]
        world.wait()  # until all have read
        if world.first:
            self.path.parent.mkdir(exist_ok=True)
            begun = (json.dumps(line) + "\n" for line in (self.about, *lines))
            write_atomically(partial, "".join(begun).encode())

        kept = len(done)

        def keep(accuracies: list[float], seconds: float) -> None:
            nonlocal kept
            if world.first:
                line = {"first": kept, "accuracies": accuracies, "seconds": seconds}
                with partial.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            kept += len(accuracies)

        result = evaluator.run(
            episodes,
            done,
            keep,
            None if callback is None else (lambda done, all: callback(self.path.stem, done, all)),
            sum(line["seconds"] for line in lines),
        )
        record = _record(result, {**self.about, "environment": here_and_now(world)})
        if world.first:
            write_atomically(self.path, (json.dumps(record, indent=1) + "\n").encode())
            partial.unlink(missing_ok=True)  # another process may have ended the same test
        return record


def _in_a_row(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines that go on where those before end: two processes may have tested the same."""
    row: list[dict[str, Any]] = []
    count = 0
    for line in lines:
        if line.get("first") == count and isinstance(line.get("accuracies"), list):
            row.append(line)
            count += len(line["accuracies"])
    return row


def _record(result: Result, about: dict[str, Any]) -> dict[str, Any]:
    """A result with everything about it; the accuracies, being many, come last."""
    config = about["config"]
    told = {k: config[k] for k in ("model", "base", "augment", "seed")}
    summary = result.to_dict()
    accuracies = list(summary.pop("accuracies"))
    return {**summary, **told, **about, "accuracies": accuracies}


def _name(test: Trial, chosen: str) -> str:
    """The file of a result; what is not as usual is in its name."""
    name = f"{test.n_way}way-{test.n_shot}shot-{test.episodes}-{test.seed}"
    name += "" if test.n_query == 15 else f"-{test.n_query}query"
    name += "" if test.which == chosen else f"-{test.which}"
    name += "" if test.batch_norm == "running" else f"-{test.batch_norm}"
    return f"{name}.json"


def _step(weights: Path) -> int:
    """The step that weights are of."""
    try:
        with safe_open(weights, framework="pt") as file:
            step: int = json.loads(file.metadata()["step"])
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise RunError(f"{weights}: expected weights, got a damaged file ({error}).") from error
    return step
