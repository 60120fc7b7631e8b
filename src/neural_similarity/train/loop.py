"""The training loop."""

from __future__ import annotations

import math
import os
import signal
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DivergedError
from .build import build_optimizer
from .checkpoint import resume_checkpoint, write_checkpoint, write_weights
from .config import TrainConfig
from .distributed import World, join_world, restarted, synchronise_batch_norm
from .metrics import MetricsFile
from .runs import Run, RunFolder
from .schedules import SCHEDULES
from .task import Classification, Task
from .tensorboard import tensorboard_events

__all__ = ["Callback", "Progress", "carry_out", "train"]

_SAME_SIGNAL = 3.0  # seconds

Callback = Callable[[dict[str, Any]], None]
"""Is told of every line of metrics, and of each step as ``{"kind": "step", ...}``."""


@dataclass
class Progress:
    """How far a run is; kept in its checkpoint."""

    step: int = 0
    seconds: float = 0.0
    best_error: float = math.inf
    finished: bool = False


def train(
    config: TrainConfig | None,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    force: bool = False,
    callback: Callback | None = None,
    tensorboard: bool = False,
) -> Run:
    """Train a network into a new folder, or go on with the run that is in it.

    Under ``torchrun`` all processes train together and the first one writes. The result depends on
    the configuration alone: a run that was killed and resumed ends in the same weights, bit for
    bit, on the same machine with the same number of threads and processes.

    Args:
        config: how; None goes on with the configuration in the folder.
        folder: where.
        resume: go on from the last checkpoint, if there is one.
        force: replace the run that is in the folder.
        callback: is told how it goes.
        tensorboard: write events for TensorBoard into the folder as well.

    Raises:
        RunError: the folder holds something else.
        DivergedError: the loss is no longer a number.
        KeyboardInterrupt: on Ctrl-C or SIGTERM, when the checkpoint is written.
    """
    run = Run.open(folder) if config is None else Run(Path(folder), config)
    carry_out(
        run,
        lambda world: Classification(run.config, world),
        resume=resume,
        force=force,
        callback=callback,
        tensorboard=tensorboard,
    )
    return run


def carry_out(
    run: RunFolder[Any],
    prepare: Callable[[World], Task],
    *,
    resume: bool = False,
    force: bool = False,
    callback: Callback | None = None,
    tensorboard: bool = False,
) -> None:
    """Train the task that ``prepare`` makes into the folder of a run; as :func:`train` says."""
    config = run.config
    with join_world(config.device) as world:
        # A machine whose own workers were not lost does not know of the restart.
        resume = bool(world.sum(torch.tensor(float(resume or restarted()))))
        if config.threads:
            torch.set_num_threads(config.threads)
        run.check_folder(resume, force)
        task = prepare(world)
        world.wait()  # until nobody looks into the folder any more
        with ExitStack() as stack:
            if world.first:
                stack.enter_context(run.alone())
                if not (resume and run.exists()):
                    run.create(force)
            world.wait()
            watches = [callback] if callback is not None else []
            if tensorboard and world.first:
                watches.append(stack.enter_context(tensorboard_events(run.folder)))
            job = _Job.begin(run, task, world, watches, resume)
            stack.callback(job.close)
            job.work()
        world.wait()


@dataclass
class _Job:
    """Everything the loop holds in its hands."""

    run: RunFolder[Any]
    task: Task
    world: World
    watches: list[Callback]
    optimizer: torch.optim.Optimizer
    progress: Progress
    metrics: MetricsFile | None
    times: list[float] = field(default_factory=list)

    @classmethod
    def begin(
        cls, run: RunFolder[Any], task: Task, world: World, watches: list[Callback], resume: bool
    ) -> _Job:
        config, model = run.config, task.model
        if config.sync_batch_norm and world.size > 1:
            synchronise_batch_norm(model)
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        model.to(world.device, memory_format=layout)  # type: ignore[call-overload]
        optimizer = build_optimizer(config, model)
        progress = Progress()
        facts = task.facts()
        run.check_data(facts)
        if resume and run.has_checkpoint():
            known = resume_checkpoint(run.folder, model, optimizer)
            progress = Progress(**{name: known[name] for name in asdict(progress)})
        metrics = None
        if world.first:
            metrics = MetricsFile(run.folder / "metrics.jsonl", progress.step)  # raises if damaged
            run.remember_start(facts, world)
        return cls(run, task, world, watches, optimizer, progress, metrics)

    def close(self) -> None:
        if self.metrics is not None:
            self.metrics.close()

    def work(self) -> None:
        """Step by step to the end, from wherever the last checkpoint was."""
        config, progress = self.run.config, self.progress
        batches = len(self.task.batches)
        total = config.total_steps(batches)
        if not total:
            progress.finished = True
            self.save()
        network = self.world.share(self.task.network())
        network = torch.compile(network) if config.compile else network  # type: ignore[assignment]
        network.train()
        saved, started = time.monotonic(), time.monotonic() - progress.seconds
        with _stop_signals() as stop:
            while progress.step < total:
                epoch, start = divmod(progress.step, batches)
                for batch in self.task.batches.epoch(epoch, start):
                    stopping = self.step(network, batch, total, stop)
                    progress.seconds = time.monotonic() - started
                    progress.finished = progress.step == total
                    ended = progress.finished or progress.step % batches == 0
                    if progress.finished or (ended and (epoch + 1) % config.eval_every == 0):
                        self.evaluate()
                        started = time.monotonic() - progress.seconds  # evaluating is not training
                    overdue = time.monotonic() - saved > 60 * config.checkpoint_minutes
                    if ended or stopping or overdue:
                        self.save()
                        saved = time.monotonic()
                    if progress.finished:
                        break
                    if stopping:
                        raise KeyboardInterrupt
            # What comes at the very end must not be lost: whoever called may have more to do.
            if self.world.sum(torch.tensor(float(bool(stop)))):
                raise KeyboardInterrupt

    def step(
        self, network: nn.Module, batch: Sequence[Tensor], total: int, stop: list[int]
    ) -> bool:
        """One step of the optimiser; tells whether somebody asked to stop."""
        config, progress, world = self.run.config, self.progress, self.world
        began = time.perf_counter()
        batch = [part.to(world.device) for part in batch]
        # Randomness inside the network, such as dropout, is a function of seed, process and step.
        process = (config.seed * world.size + world.rank) % 2**31
        torch.manual_seed(process * 2**32 + progress.step)
        rate = config.learning_rate * SCHEDULES[config.schedule](progress.step / total)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(world.device.type, torch.bfloat16, enabled=config.autocast):
            loss, wrong = network(*batch)
        self.optimizer.zero_grad()
        loss.backward()
        if config.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.task.model.parameters(), config.grad_clip)
        told = torch.tensor([loss.item(), math.nan if wrong is None else wrong.item(), bool(stop)])
        mean_loss, error, stopping = (world.sum(told) / world.size).tolist()
        if not math.isfinite(mean_loss):
            raise self.diverged(f"a finite loss, got {mean_loss}", progress.step + 1)
        self.optimizer.step()
        progress.step += 1
        self.times.append(time.perf_counter() - began)
        self.tell(mean_loss, error, rate, total)
        return bool(stopping)

    def tell(self, loss: float, error: float, rate: float, total: int) -> None:
        """Say how it goes; write it down every few steps."""
        progress, config = self.progress, self.run.config
        now = {
            "step": progress.step,
            "epoch": progress.step / len(self.task.batches),
            "seconds": progress.seconds,
            "loss": loss,
            **({} if math.isnan(error) else {"error": error}),
            "lr": rate,
        }
        for callback in self.watches:
            callback({"kind": "step", "total": total, **now})
        if progress.step % config.log_every == 0 or progress.step == total:
            typical = statistics.median(self.times)
            self.times.clear()
            speed = {"images_per_second": self.task.images / typical, "step_seconds": typical}
            self.record({"kind": "train", **now, **speed})

    def evaluate(self) -> None:
        """Measure the error; keep the weights if it is the lowest yet."""
        progress = self.progress
        self.check_weights()
        self.world.align(self.task.model)
        found = self.task.evaluate(self.world)
        if found is None:
            return
        if not math.isfinite(found.get("loss", 0.0)):
            raise self.diverged(f"a finite loss in evaluation, got {found['loss']}", progress.step)
        now = {
            "step": progress.step,
            "epoch": progress.step / len(self.task.batches),
            "seconds": progress.seconds,
        }
        self.record({"kind": "eval", **now, **found})
        if found["error"] < progress.best_error:
            progress.best_error = found["error"]
            if self.world.first:
                known = {"step": progress.step, "error": found["error"]}
                write_weights(self.run.folder / "best.safetensors", self.task.model, known)

    def record(self, line: dict[str, Any]) -> None:
        if self.metrics is not None:
            self.metrics.write(line)
        for callback in self.watches:
            callback(line)

    def check_weights(self) -> None:
        """The loss tells of a step only at the next one; what is kept must be sound."""
        for name, tensor in self.task.model.state_dict().items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise self.diverged(f"finite weights, got others in {name}", self.progress.step)

    def diverged(self, what: str, step: int) -> DivergedError:
        return DivergedError(
            f"{self.run.folder}: expected {what} at step {step}. Training has diverged; the last "
            f"checkpoint is as it was. Use a lower lr, or set grad_clip.",
            step,
        )

    def save(self) -> None:
        self.check_weights()
        if self.world.first:
            write_checkpoint(
                self.run.folder, self.task.model, self.optimizer, asdict(self.progress)
            )


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """Collect Ctrl-C and SIGTERM, so that a step is never torn; a later one is not waited for.

    What comes within seconds of the first is the same: schedulers signal every process, and
    torchrun passes the signal on.
    """
    got: list[int] = []
    before = {}
    first = 0.0

    def collect(number: int, frame: Any) -> None:
        nonlocal first
        if got and time.monotonic() - first > _SAME_SIGNAL:
            raise KeyboardInterrupt
        first = first or time.monotonic()
        got.append(number)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, collect)
    except ValueError:
        pass  # not in the main thread: whoever started it handles signals
    try:
        yield got
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
