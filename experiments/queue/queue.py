"""The queue: train and test what is missing, go on where it was killed, edit nothing that is done.

Runs are kept in a folder of work, one folder each, and can be gone on with; when one is done, its
result is written beside the others. Several processes may work on one queue: each takes the next
run that nobody has, seed by seed, so that what is done can be compared.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from neural_similarity.errors import DivergedError, RunError
from neural_similarity.fewshot import FewShotConfig, FewShotRun, Trial, train_method
from neural_similarity.train import Run, TrainConfig, train

from ..records import commit, read_record, record_file, write_record, write_text
from ..tables.row import OneStep
from .jobs import Job
from .measurements import about_run, fingerprint, in_short, kept, one_step

try:
    import fcntl
except ImportError:  # no such locks on this system: there, one process works on a queue
    fcntl = None  # type: ignore[assignment]

__all__ = ["Queue"]

SHOTS = (1, 5)
_PAUSE = 5.0  # seconds, while others finish what is needed

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Queue:
    """Where work is done.

    Args:
        results: folder of results.
        work: folder of runs.
        data_dir: where data sets are.
        tell: is told what begins, ends and waits, a line each.
        callback: makes what is told of a job's metrics, from its name.
        tests: is told of a job's tests: name, episodes done, all of them.
    """

    results: Path
    work: Path
    data_dir: str | None = None
    tell: Tell = print
    callback: Callable[[str], Callable[[dict[str, Any]], None]] | None = None
    tests: Callable[[str, int, int], None] | None = None

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Jobs without a result."""
        return [job for job in jobs if read_record(self._file(job)) is None]

    def run(self, jobs: Sequence[Job]) -> None:
        """Do what is missing, and wait for what other processes do."""
        commit()  # the code that runs is today's, whatever is committed meanwhile
        waiting = 0
        while missing := self.missing(jobs):
            if any(self._try(job) for job in missing):
                waiting = 0
                continue
            if len(missing) != waiting:
                waiting = len(missing)
                self.tell(f"waiting for other processes; runs to be done: {waiting}")
            time.sleep(_PAUSE)

    def _try(self, job: Job, again: bool = False) -> bool:
        """Do a job, unless it is another's or has to wait for one.

        ``again`` trains a network whose result is there, for what begins with it.
        """
        if job.before is not None:
            if read_record(self._file(job.before)) is None:
                return False
            if not self._has_network(job.before):
                return self._try(job.before, again=True)
        with _claimed(self.work / f"{job.name}.lock") as mine:
            done = self._has_network(job) if again else read_record(self._file(job)) is not None
            if not mine or done:
                return False
            if again:
                self.tell(f"{job.name}: trained again, as its result is there without its network")
                _, ended = self._carried_out(job)
                if ended:
                    raise RunError(
                        f"{job.name}: expected to come to its end again, got a loss that is no "
                        f"number at step {ended['diverged']}. Its kept result is of other code or "
                        f"another machine. Move {self._file(job)} and {self.work / job.name} away "
                        f"to have it made again."
                    )
            else:
                self.tell(f"{job.name}: begins")
                record = self._record(job)
                write_record(self._file(job), record)
                self.tell(f"{job.name}: {in_short(record)}")
        return True

    def _has_network(self, job: Job) -> bool:
        """Whether the folder of work holds what a job trained."""
        record = read_record(self._file(job))
        if record is not None and "diverged" in record:
            return True  # there will never be one
        file = self.work / job.name / "last.safetensors"
        if not file.is_file():
            return False
        try:
            with safe_open(file, framework="pt") as opened:
                return bool(json.loads(opened.metadata()["finished"]))
        except SafetensorError:
            return True  # whoever reads it says what is wrong with it

    def _record(self, job: Job) -> dict[str, Any]:
        config = job.row.config(job.budget, job.seed)
        if not isinstance(config, OneStep):
            self._make_room(job)
        commits = self._commits(job)
        about = {
            "table": job.row.kept_in,
            "row": job.row.name,
            "title": job.row.title,
            "budget": job.budget,
            "seed": job.seed,
            "commit": commits[-1],
            "commits": commits,
        }
        if isinstance(config, OneStep):
            return {**about, **one_step(config)}
        before = None if job.before is None else read_record(self._file(job.before))
        if before is not None and "diverged" in before:
            return {**about, **_diverged_before(before, self._told_config(job))}
        run, ended = self._carried_out(job)
        found = {**about_run(run, self._told_config(job)), **ended}
        if isinstance(run, FewShotRun):
            tests = (
                [] if ended else run.evaluate([Trial(n) for n in SHOTS], callback=self._tests(job))
            )
            return {**about, **found, **self._networks(run), "tests": [kept(t) for t in tests]}
        last = [line for line in run.metrics() if line["kind"] == "eval"][-1:]
        error = {} if ended or not last else {"error": last[0]["error"]}
        return {**about, **found, **error}

    def _carried_out(self, job: Job) -> tuple[Run | FewShotRun, dict[str, Any]]:
        """Train, or go on; to diverge is a result, too."""
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

    def _run(self, job: Job) -> Run | FewShotRun:
        """What a job trains, and where."""
        folder = self.work / job.name
        config = replace(job.row.training(job.budget, job.seed), data_dir=self.data_dir)
        if isinstance(config, TrainConfig):
            return Run(folder, config)
        if job.before is not None:
            # The same words from whatever folder it is gone on with.
            config = replace(config, backbone=str((self.work / job.before.name).resolve()))
        return FewShotRun(folder, config)

    def _make_room(self, job: Job) -> None:
        """Set aside what cannot be gone on with, as the row has other settings now."""
        run, commits = self._run(job), self.work / f"{job.name}.commits"
        try:
            run.check_folder(resume=True, force=False)
        except RunError:
            names = (run.folder.with_name(f"{run.folder.name}.old-{n}") for n in count(1))
            aside = next(name for name in names if not name.exists())
            self.tell(f"{job.name}: begun with other settings; set aside as {aside.name}")
            run.folder.rename(aside)
            if commits.is_file():
                commits.rename(aside.with_name(f"{aside.name}.commits"))

    @staticmethod
    def _networks(run: FewShotRun) -> dict[str, str]:
        """The network that a run has trained, and that with which it began, by fingerprint."""
        runs = {"network": run}
        if run.config.backbone is not None:
            runs["began_with"] = FewShotRun.open(run.config.backbone)
        return {
            name: fingerprint(of.weights(of.chosen()))
            for name, of in runs.items()
            if of.has_checkpoint()
        }

    @staticmethod
    def _told_config(job: Job) -> TrainConfig | FewShotConfig:
        """Without paths of the machine it was run on."""
        config = job.row.training(job.budget, job.seed)
        if isinstance(config, FewShotConfig):
            config = replace(config, backbone=job.row.begins_with)
        return config

    def _commits(self, job: Job) -> list[str]:
        """Every state of the code that has worked on a run, this one last."""
        file = self.work / f"{job.name}.commits"
        known = file.read_text(encoding="utf-8").split("\n")[:-1] if file.is_file() else []
        if not known and (self.work / job.name).exists():
            known = ["unknown"]
        commits = [*(one for one in known if one != commit()), commit()]
        write_text(file, "".join(f"{one}\n" for one in commits))
        return commits

    def _tests(self, job: Job) -> Callable[[str, int, int], None] | None:
        tests = self.tests
        if tests is None:
            return None
        return lambda name, done, total: tests(f"{job.name} {name}", done, total)

    def _file(self, job: Job) -> Path:
        return record_file(self.results, job.row, job.budget, job.seed)


def _diverged_before(before: dict[str, Any], config: TrainConfig | FewShotConfig) -> dict[str, Any]:
    """The result of a row whose network was never there."""
    alike = ("environment", "data_copies", "parameters", "diverged")
    return {
        "config": {**config.to_dict(), "data_dir": None},
        **{name: before[name] for name in alike},
        "seconds": 0.0,
        "step_seconds": None,
        "metrics": {},
        "tests": [],
    }


@contextmanager
def _claimed(file: Path) -> Iterator[bool]:
    """Whether this process has the file to itself, until the end; the system frees it then."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        yield _locked(handle)
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    if fcntl is not None:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
