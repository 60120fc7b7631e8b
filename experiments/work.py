"""The queue: train and test what is missing, go on where it was killed, edit nothing that is done.

Runs are kept in a folder of work, one folder each, and can be gone on with; when one is done, its
result is written beside the others. Several processes may work on one queue: each takes the next
run that nobody has, seed by seed, so that what is done can be compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from neural_similarity.errors import DivergedError
from neural_similarity.fewshot import FewShotConfig, FewShotRun, Trial, train_method
from neural_similarity.train import Run, TrainConfig, train
from neural_similarity.train.build import build_model, build_optimizer
from neural_similarity.train.distributed import World
from neural_similarity.train.runs import here_and_now

from .records import as_columns, commit, read_record, record_file, write_record
from .rows import OneStep, Row, Table

try:
    import fcntl
except ImportError:  # no such locks on this system: there, one process works on a queue
    fcntl = None  # type: ignore[assignment]

__all__ = ["Job", "Queue", "jobs_of"]

SHOTS = (1, 5)
MACHINE = ("neural_similarity", "torch", "python", "machine", "processor", "device", "threads")
_PAUSE = 5.0  # seconds, while others finish what is needed

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Job:
    """A row to be run from a seed."""

    row: Row
    table: Table
    budget: str
    seed: int

    @property
    def name(self) -> str:
        return self.row.key(self.budget, self.seed)


def jobs_of(
    tables: Sequence[Table], budget: str, seeds: int, rows: Sequence[str] = ()
) -> list[Job]:
    """What is to be done, each once: table by table, seed by seed."""
    jobs: dict[str, Job] = {}
    for table in tables:
        wanted = [table.row(name) for name in rows] or list(table.rows)
        for seed in range(seeds):
            for row in wanted:
                for needed in _with_needs(table, row):
                    job = Job(needed, table, budget, seed)
                    jobs.setdefault(job.name, job)
    return list(jobs.values())


def _with_needs(table: Table, row: Row) -> list[Row]:
    needs = [] if row.begins_with is None else _with_needs(table, table.row(row.begins_with))
    return [*needs, row]


@dataclass(frozen=True)
class Queue:
    """Where work is done.

    Args:
        results: folder of results.
        work: folder of runs.
        data_dir: where data sets are.
        tell: is told what begins, ends and waits, a line each.
        watch: makes what is told of a job's metrics, from its name.
        tests: is told of a job's tests: name, episodes done, all of them.
    """

    results: Path
    work: Path
    data_dir: str | None = None
    tell: Tell = print
    watch: Callable[[str], Callable[[dict[str, Any]], None]] | None = None
    tests: Callable[[str, int, int], None] | None = None

    def missing(self, jobs: Sequence[Job]) -> list[Job]:
        """Jobs without a result."""
        return [job for job in jobs if read_record(self._file(job)) is None]

    def run(self, jobs: Sequence[Job]) -> None:
        """Do what is missing, and wait for what other processes do."""
        while missing := self.missing(jobs):
            if not any(self._try(job) for job in missing):
                time.sleep(_PAUSE)

    def _try(self, job: Job) -> bool:
        """Do a job, unless it is another's or has to wait for one."""
        needed = job.row.begins_with
        if needed is not None:
            before = replace(job, row=job.table.row(needed))
            if read_record(self._file(before)) is None:
                return False
        with _claimed(self.work / f"{job.name}.lock") as mine:
            if not mine or read_record(self._file(job)) is not None:
                return False
            self.tell(f"{job.name}: begins")
            record = self._record(job)
            write_record(self._file(job), record)
            self.tell(f"{job.name}: {_in_short(record)}")
        return True

    def _record(self, job: Job) -> dict[str, Any]:
        config = job.row.config(job.budget, job.seed)
        about = {
            "table": job.row.kept_in,
            "row": job.row.name,
            "title": job.row.title,
            "budget": job.budget,
            "seed": job.seed,
        }
        if isinstance(config, OneStep):
            return {**about, **_one_step(config)}
        folder = self.work / job.name
        if isinstance(config, FewShotConfig):
            found = self._few_shot(job, config, folder)
        else:
            found = self._classification(job, config, folder)
        return {**about, **found}

    def _classification(self, job: Job, config: TrainConfig, folder: Path) -> dict[str, Any]:
        run = Run(folder, replace(config, data_dir=self.data_dir))
        ended = self._carried_out(lambda: train(run.config, folder, resume=True, **self._told(job)))
        last = [line for line in run.metrics() if line["kind"] == "eval"][-1:]
        error = {} if ended or not last else {"error": last[0]["error"]}
        return {**_about_run(run, config), **ended, **error}

    def _few_shot(self, job: Job, config: FewShotConfig, folder: Path) -> dict[str, Any]:
        if job.row.begins_with is not None:
            before = job.table.row(job.row.begins_with).key(job.budget, job.seed)
            config = replace(config, backbone=str(self.work / before))
        run = FewShotRun(folder, replace(config, data_dir=self.data_dir))
        ended = self._carried_out(
            lambda: train_method(run.config, folder, resume=True, **self._told(job))
        )
        tests: list[dict[str, Any]] = []
        if not ended:
            tests = run.evaluate([Trial(shots) for shots in SHOTS], watch=self.tests)
        # Not a path of the machine it was run on.
        told = replace(config, backbone=job.row.begins_with)
        return {**_about_run(run, told), **ended, "tests": [_kept(test) for test in tests]}

    def _told(self, job: Job) -> dict[str, Any]:
        return {"watch": None if self.watch is None else self.watch(job.name)}

    @staticmethod
    def _carried_out(training: Callable[[], object]) -> dict[str, Any]:
        """Train; to diverge is a result, too."""
        try:
            training()
        except DivergedError as error:
            return {"diverged": error.step}
        return {}

    def _file(self, job: Job) -> Path:
        return record_file(self.results, job.row, job.budget, job.seed)


def _about_run(run: Run | FewShotRun, config: TrainConfig | FewShotConfig) -> dict[str, Any]:
    """Everything about a run but what was found."""
    known, metrics = run.environment(), run.metrics()
    shape = (len(known["classes"]), known["in_channels"], known["image_size"])
    network = build_model(config, *shape) if isinstance(run, Run) else run.build_learner(*shape)
    times = sorted(line["step_seconds"] for line in metrics if line["kind"] == "train")
    return {
        "config": {**config.to_dict(), "data_dir": None},
        "commit": commit(),
        "environment": {name: known[name] for name in MACHINE},
        "data_copies": known["data_copies"],
        "parameters": sum(p.numel() for p in network.parameters()),
        "seconds": max((line["seconds"] for line in metrics), default=0.0),
        "step_seconds": times[len(times) // 2] if times else None,
        "metrics": as_columns(metrics),
    }


def _kept(test: dict[str, Any]) -> dict[str, Any]:
    """A test's result; what is said of the run is not said again."""
    names = (
        "method", "method_options", "n_way", "n_shot", "n_query", "mean", "interval", "adapted",
        "batch_norm", "episode_seed", "fingerprint", "data", "data_copy", "seconds", "weights",
        "weights_step", "accuracies",
    )  # fmt: skip
    return {name: test[name] for name in names}


def _one_step(one: OneStep) -> dict[str, Any]:
    """Parameters, and the time of a training step on random images."""
    config = one.config
    model = build_model(config, one.num_classes, 3, one.image_size)
    model = model.to(memory_format=torch.channels_last)
    optimiser = build_optimizer(config, model)
    shape = (config.batch_size, 3, one.image_size, one.image_size)
    images = torch.randn(shape).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(one.num_classes, (config.batch_size,))
    here, times, losses = here_and_now(World()), [], []
    for _ in range(one.steps):
        began = time.perf_counter()
        optimiser.zero_grad()
        loss = F.cross_entropy(model(images), labels, label_smoothing=config.label_smoothing)
        loss.backward()
        optimiser.step()
        times.append(time.perf_counter() - began)
        losses.append(loss.item())
    return {
        "config": {**config.to_dict(), "data_dir": None},
        "commit": commit(),
        "environment": {name: value for name, value in here.items() if name in MACHINE},
        "parameters": sum(p.numel() for p in model.parameters()),
        "image_size": one.image_size,
        "step_seconds": sorted(times)[len(times) // 2],
        "losses": losses,
    }


def _in_short(record: dict[str, Any]) -> str:
    if "diverged" in record:
        return f"diverged at step {record['diverged']}"
    if "tests" in record:
        found = (
            f"{t['n_shot']} shot {t['mean']:.2%} ± {t['interval']:.2%}" for t in record["tests"]
        )
        return ", ".join(found)
    if "error" in record:
        return f"error {record['error']:.2%}"
    return f"{record['parameters']:,} parameters"


@contextmanager
def _claimed(file: Path) -> Iterator[bool]:
    """Whether this process has the file to itself, until the end; the system frees it then."""
    file.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(handle)
