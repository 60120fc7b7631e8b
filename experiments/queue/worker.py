"""The queue: train and test what has no result yet, and continue runs that were killed.

Every run has a folder in the folder of runs, from which it can continue. When it is done, its
result is written beside the other results and never changed. Several processes may share a queue:
each takes the next run that no other process has, seed by seed, so that finished runs can be
compared early.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from neural_similarity.errors import DivergedError, RunError
from neural_similarity.fewshot import FewShotConfig, FewShotRun, Trial, train_method
from neural_similarity.train import Run, TrainConfig, locked, settle, train

from ..code_version import commit
from ..records import Record, read_record, record_file, write_record, write_text
from ..tables.base import OneStep
from .jobs import Job
from .run_record import (
    diverged_record,
    one_step_record,
    record_of_test,
    run_record,
    summary,
    weights_fingerprint,
)

__all__ = ["Queue"]

SHOTS = (1, 5)
_PAUSE = 5.0  # seconds between looks at what other processes have finished

Callback = Callable[[dict[str, Any]], None]


@dataclass(frozen=True)
class Queue:
    """A queue of jobs and the folders it works in.

    Args:
        results: folder of result files.
        work: folder of runs.
        data_dir: folder of data sets.
        log: gets a line when a job starts, ends or waits.
        callback: from a job's name to the function that gets its lines of metrics.
        test_callback: gets the name of a test, the number of episodes done, and their total.
    """

    results: Path
    work: Path
    data_dir: str | None = None
    log: Callable[[str], None] = print
    callback: Callable[[str], Callback] | None = None
    test_callback: Callable[[str, int, int], None] | None = None

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Jobs without a result."""
        return [job for job in jobs if read_record(self._file(job)) is None]

    def run(self, jobs: Sequence[Job]) -> None:
        """Run the jobs without a result, and wait for those that other processes run."""
        commit()  # remembered now: the code that runs stays, whatever is committed meanwhile
        for folder in {self._file(job).parent for job in jobs}:
            settle(folder)  # a process that was killed may have left something
        waiting = 0
        while missing := self.missing(jobs):
            if any(self._try(job) for job in missing):
                waiting = 0
                continue
            if len(missing) != waiting:
                waiting = len(missing)
                self.log(f"waiting for other processes; missing runs: {waiting}")
            time.sleep(_PAUSE)

    def _try(self, job: Job, again: bool = False) -> bool:
        """Run a job, unless another process runs it or what it starts from is missing.

        ``again`` trains a network whose result exists, for the rows that start from it.
        """
        if job.before is not None:
            if read_record(self._file(job.before)) is None:
                return False
            if not self._has_network(job.before):
                return self._try(job.before, again=True)
        with locked(self.work / f"{job.name}.lock") as free:
            is_done = self._has_network(job) if again else read_record(self._file(job)) is not None
            if not free or is_done:
                return False
            if again:
                self._train_again(job)
            else:
                self.log(f"{job.name}: started")
                record = self._record(job)
                write_record(self._file(job), record)
                self.log(f"{job.name}: {summary(record)}")
        return True

    def _train_again(self, job: Job) -> None:
        self.log(f"{job.name}: training again; its result exists, but its network is gone")
        _, divergence = self._train(job)
        if divergence:
            raise RunError(
                f"{job.name}: expected training to finish as it did before, got values that are "
                f"not finite at step {divergence['diverged']}. The stored result comes from other "
                f"code or another machine. Move {self._file(job)} and {self.work / job.name} away "
                f"to run it anew."
            )

    def _has_network(self, job: Job) -> bool:
        """Whether the folder of runs holds the network that a job trained."""
        record = read_record(self._file(job))
        if record is not None and "diverged" in record:
            return True  # there will never be one
        file = self.work / job.name / "last.safetensors"
        if not file.is_file():
            return False
        try:
            with safe_open(file, framework="pt") as weights:
                return bool(json.loads(weights.metadata()["finished"]))
        except (SafetensorError, LookupError, TypeError, ValueError):
            return True  # the code that loads it reports the damage

    def _record(self, job: Job) -> Record:
        """Run a job; its result."""
        config = job.row.config(job.budget, job.seed)
        if not isinstance(config, OneStep):
            self._set_aside_other_settings(job)
        commits = self._commits(job)
        head = {
            "table": job.row.kept_in,
            "row": job.row.name,
            "title": job.row.title,
            "budget": job.budget,
            "seed": job.seed,
            "commit": commits[-1],
            "commits": commits,
        }
        if isinstance(config, OneStep):
            return {**head, **one_step_record(config)}
        before = None if job.before is None else read_record(self._file(job.before))
        if before is not None and "diverged" in before:
            return {**head, **diverged_record(before, _portable_config(job))}
        run, divergence = self._train(job)
        body = {**run_record(run, _portable_config(job)), **divergence}
        if isinstance(run, FewShotRun):
            tests = [] if divergence else self._test(job, run)
            return {**head, **body, **_networks(run), "tests": [record_of_test(t) for t in tests]}
        last = [line for line in run.metrics() if line["kind"] == "eval"][-1:]
        error = {} if divergence or not last else {"error": last[0]["error"]}
        return {**head, **body, **error}

    def _train(self, job: Job) -> tuple[Run | FewShotRun, dict[str, int]]:
        """Train, or continue training; divergence is a result, not a failure."""
        run = self._run(job)
        callback = None if self.callback is None else self.callback(job.name)
        try:
            if isinstance(run, FewShotRun):
                train_method(run.config, run.folder, resume=True, callback=callback)
            else:
                train(run.config, run.folder, resume=True, callback=callback)
        except DivergedError as error:
            return run, {"diverged": error.step}
        return run, {}

    def _test(self, job: Job, run: FewShotRun) -> list[dict[str, Any]]:
        def callback(name: str, done: int, total: int) -> None:
            if self.test_callback is not None:
                self.test_callback(f"{job.name} {name}", done, total)

        return run.evaluate([Trial(n) for n in SHOTS], callback=callback)

    def _run(self, job: Job) -> Run | FewShotRun:
        """The run that a job trains."""
        folder = self.work / job.name
        config = replace(job.row.training(job.budget, job.seed), data_dir=self.data_dir)
        if isinstance(config, TrainConfig):
            return Run(folder, config)
        if job.before is not None:
            # A full path: the same setting from whatever folder the run continues.
            config = replace(config, backbone=str((self.work / job.before.name).resolve()))
        return FewShotRun(folder, config)

    def _set_aside_other_settings(self, job: Job) -> None:
        """Rename a run that cannot continue because its row has other settings now."""
        run, commits = self._run(job), self.work / f"{job.name}.commits"
        try:
            run.check_folder(resume=True, force=False)
        except RunError:
            names = (run.folder.with_name(f"{run.folder.name}.old-{n}") for n in count(1))
            aside = next(name for name in names if not name.exists())
            self.log(f"{job.name}: an earlier run has other settings; renamed to {aside.name}")
            with run.alone() if run.folder.is_dir() else nullcontext():
                if commits.is_file():  # first: at a kill after it, the same is done again
                    commits.rename(aside.with_name(f"{aside.name}.commits"))
                run.folder.rename(aside)

    def _commits(self, job: Job) -> list[str]:
        """Every version of the code that has worked on a run, the current one last."""
        file = self.work / f"{job.name}.commits"
        earlier = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
        if not earlier and (self.work / job.name).exists():
            earlier = ["unknown"]
        commits = [*(one for one in earlier if one != commit()), commit()]
        write_text(file, "".join(f"{one}\n" for one in commits))
        return commits

    def _file(self, job: Job) -> Path:
        return record_file(self.results, job.row, job.budget, job.seed)


def _portable_config(job: Job) -> TrainConfig | FewShotConfig:
    """The configuration without paths of this machine."""
    config = job.row.training(job.budget, job.seed)
    if isinstance(config, FewShotConfig):
        config = replace(config, backbone=None if job.before is None else job.before.row.name)
    return config


def _networks(run: FewShotRun) -> dict[str, str]:
    """Fingerprints of the network that a run trained, and of the one it began with."""
    runs = {"network": run}
    if run.config.backbone is not None:
        runs["began_with"] = FewShotRun.open(run.config.backbone)
    return {
        name: weights_fingerprint(of.weights(of.chosen()))
        for name, of in runs.items()
        if of.has_checkpoint()
    }
