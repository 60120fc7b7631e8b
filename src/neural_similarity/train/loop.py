"""The training loop."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .._json import Count, MaybeInfinite, build
from ..data.loader import generator_of
from ..errors import DivergedError, NotFiniteError, RunError
from .build import build_optimizer
from .checkpoint import (
    remove_older,
    resume_checkpoint,
    write_checkpoint,
    write_weights,
)
from .config import TrainConfig
from .distributed import World, join_world, restarted, synchronise_batch_norm
from .ingredients.schedules import SCHEDULES
from .metrics import MetricsFile
from .runs.folders import check_outside_images
from .runs.run import Run
from .runs.run_folder import RunFolder
from .stop_signals import collect_stop_signals
from .task import Classification, Task
from .tensorboard import check_tensorboard, tensorboard_events

__all__ = ["Callback", "Progress", "carry_out", "train"]

_ONE_VALUE = "Expected more than 1 value per channel"  # PyTorch's words

Callback = Callable[[dict[str, Any]], None]
"""Called with every line of metrics, and after each step with ``{"kind": "step", ...}``."""


@dataclass
class Progress:
    """The progress of a run; stored in its checkpoint."""

    step: Count
    seconds: float
    best_error: MaybeInfinite
    finished: bool
    since_best: Count = 0  # evaluations since the one with the lowest error


def train(
    config: TrainConfig | None,
    folder: str | os.PathLike[str],
    *,
    resume: bool = False,
    force: bool = False,
    callback: Callback | None = None,
    tensorboard: bool = False,
) -> Run:
    """Train a network into a new folder, or continue the run in an existing one.

    Under ``torchrun`` all processes train together and the first one writes. The result depends
    only on the configuration: a run that was killed and resumed ends with bit-identical weights, on
    the same machine with the same number of threads and processes.

    Args:
        config: the settings; None uses those of the run in the folder.
        folder: the run folder.
        resume: continue from the last checkpoint, if there is one.
        force: replace the run in the folder.
        callback: called with every line of metrics, and after every step.
        tensorboard: also write events for TensorBoard into the folder.

    Raises:
        RunError: the folder holds something else.
        DivergedError: the loss is no longer finite.
        KeyboardInterrupt: on Ctrl-C or SIGTERM, after a checkpoint was written.
    """
    run = Run.open(folder) if config is None else Run(Path(folder), config)
    if not run.exists():
        check_outside_images(run.folder, run.config)
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
    """Train the task that ``prepare`` creates into a run folder; see :func:`train`."""
    config = run.config
    if tensorboard:
        check_tensorboard()  # before a run is replaced
    with join_world(config.device) as world:
        # A machine whose own workers are alive does not notice the restart.
        resume = bool(world.sum(torch.tensor(float(resume or restarted()))))
        if config.threads:
            torch.set_num_threads(config.threads)
        run.check_folder(resume, force)
        task = prepare(world)
        world.wait()  # until all processes have read the folder
        with ExitStack() as stack:
            if world.first:
                stack.enter_context(run.alone())
                if not (resume and run.exists()):
                    run.create(force)
            world.wait()
            callbacks = [callback] if callback is not None else []
            job = _Job.start(run, task, world, callbacks, resume)
            stack.callback(job.close)
            if tensorboard and world.first:
                events = tensorboard_events(run.folder, job.progress.step)
                callbacks.append(stack.enter_context(events))
            job.run_steps()
        world.wait()


@dataclass
class _Job:
    """The state of the loop."""

    run: RunFolder[Any]
    task: Task
    world: World
    callbacks: list[Callback]
    optimizer: torch.optim.Optimizer
    progress: Progress
    metrics: MetricsFile | None
    times: list[float] = field(default_factory=list)
    network: nn.Module | None = None

    @classmethod
    def start(
        cls, run: RunFolder[Any], task: Task, world: World, callbacks: list[Callback], resume: bool
    ) -> _Job:
        config, model = run.config, task.model
        if config.sync_batch_norm and world.size > 1:
            synchronise_batch_norm(model)
        layout = torch.channels_last if config.channels_last else torch.contiguous_format
        model.to(world.device, memory_format=layout)  # type: ignore[call-overload]
        optimizer = build_optimizer(config, model)
        progress = Progress(step=0, seconds=0.0, best_error=math.inf, finished=False)
        facts = task.facts()
        run.check_data(facts)
        if resume and run.has_checkpoint():
            checkpoint = resume_checkpoint(run.folder, model, optimizer)
            file = run.folder / "last.safetensors"
            progress = build(Progress, checkpoint, file, RunError, others=True)
        metrics = None
        if world.first:
            if resume and run.has_checkpoint():
                remove_older(run.folder, progress.step)
            metrics = MetricsFile(run.folder / "metrics.jsonl", progress.step)  # raises if damaged
            if not progress.finished:  # otherwise there is nothing to train
                run.remember_start(facts, world)
        return cls(run, task, world, callbacks, optimizer, progress, metrics)

    def close(self) -> None:
        # The process group must not be released last by a network in an exception's frame: PyTorch
        # then waits for a thread that waits for Python, forever.
        self.network = None
        if self.metrics is not None:
            self.metrics.close()

    def run_steps(self) -> None:
        """All steps from the last checkpoint to the end of training."""
        config, progress = self.run.config, self.progress
        batches = len(self.task.batches)
        total = config.total_steps(batches)
        if not total:
            progress.finished = True
            self.save()
        frozen = config.frozen_steps(batches)
        self.share_network(frozen)
        last_save, start_time = time.monotonic(), time.monotonic() - progress.seconds
        with collect_stop_signals() as signals:
            while progress.step < total and not progress.finished:
                epoch, start = divmod(progress.step, batches)
                for batch in self.task.batches.epoch(epoch, start):
                    if frozen and progress.step == frozen:
                        self.share_network(frozen)
                    stopping = self.step(batch, total, signals)
                    progress.seconds = time.monotonic() - start_time
                    progress.finished = progress.step == total
                    epoch_ends = progress.finished or progress.step % batches == 0
                    if progress.finished or (epoch_ends and (epoch + 1) % config.eval_every == 0):
                        self.evaluate()
                        # Evaluation does not count as training time.
                        start_time = time.monotonic() - progress.seconds
                    overdue = time.monotonic() - last_save > 60 * config.checkpoint_minutes
                    if epoch_ends or stopping or overdue:
                        self.save()
                        last_save = time.monotonic()
                    if progress.finished:
                        break
                    if stopping:
                        raise KeyboardInterrupt
            # A signal at the very end must not be lost: the caller may have more to do.
            if self.world.sum(torch.tensor(float(bool(signals)))):
                raise KeyboardInterrupt

    def share_network(self, frozen: int) -> None:
        """Train the network from this step on; before step ``frozen``, only part of it."""
        self.task.model.train()
        if frozen:
            self.task.freeze(self.progress.step < frozen)
        self.network = self.world.share(self.task.network(), self.task.skips_parameters)
        if self.run.config.compile:
            self.network = torch.compile(self.network)  # type: ignore[assignment]

    def step(self, batch: Sequence[Tensor], total: int, signals: list[int]) -> bool:
        """One step of the optimiser; returns whether a process was asked to stop."""
        config, progress, world = self.run.config, self.progress, self.world
        start = time.perf_counter()
        batch = [part.to(world.device) for part in batch]
        seed_step(config.seed, world.rank, progress.step)
        rate = config.learning_rate * SCHEDULES[config.schedule](progress.step / total)
        for group in self.optimizer.param_groups:
            group["lr"] = group["lr_factor"] * rate
        try:
            with torch.autocast(world.device.type, torch.bfloat16, enabled=config.autocast):
                loss, wrong = self.network(*batch)  # type: ignore[misc]  # it is there now
        except ValueError as reason:
            if _ONE_VALUE not in str(reason):
                raise
            raise RunError(
                f"{self.run.folder}: expected several values for each channel of a BatchNorm, got "
                f"one. One value has no variance. Use a larger batch: one image is too few where a "
                f"map is 1×1 or pooled."
            ) from reason
        self.optimizer.zero_grad()
        loss.backward()
        if config.grad_clip is not None:
            nn.utils.clip_grad_norm_(self.task.model.parameters(), config.grad_clip)
        share = math.nan if wrong is None else wrong.item()
        values = torch.tensor([loss.item(), share, bool(signals)])
        mean_loss, error, stopping = (world.sum(values) / world.size).tolist()
        if not math.isfinite(mean_loss):
            raise self.diverged(f"a finite loss, got {mean_loss}", progress.step + 1)
        self.optimizer.step()
        progress.step += 1
        self.times.append(time.perf_counter() - start)
        self.report(mean_loss, error, rate, total)
        return bool(stopping)

    def report(self, loss: float, error: float, rate: float, total: int) -> None:
        """Call the callbacks; write a line of metrics every ``log_every`` steps."""
        progress, config = self.progress, self.run.config
        now = {
            "step": progress.step,
            "epoch": progress.step / len(self.task.batches),
            "seconds": progress.seconds,
            "loss": loss,
            **({} if math.isnan(error) else {"error": error}),
            "lr": rate,
        }
        for callback in self.callbacks:
            callback({"kind": "step", "total": total, **now})
        if progress.step % config.log_every == 0 or progress.step == total:
            median = statistics.median(self.times)
            self.times.clear()
            speed = {"images_per_second": self.task.images / median, "step_seconds": median}
            self.record({"kind": "train", **now, **speed})

    def evaluate(self) -> None:
        """Evaluate; save the weights if the error is the lowest so far."""
        progress = self.progress
        self.check_weights()
        self.world.align(self.task.model)
        try:
            result = self.task.evaluate(self.world)
        except NotFiniteError as error:
            raise DivergedError(
                f"{self.run.folder}: evaluation at step {progress.step} failed; the last "
                f"checkpoint was not changed. {error}",
                progress.step,
            ) from error
        if result is None:
            return
        if not math.isfinite(result.get("loss", 0.0)):
            raise self.diverged(f"a finite loss in evaluation, got {result['loss']}", progress.step)
        now = {
            "step": progress.step,
            "epoch": progress.step / len(self.task.batches),
            "seconds": progress.seconds,
        }
        self.record({"kind": "eval", **now, **result})
        progress.since_best += 1
        if result["error"] < progress.best_error:
            progress.best_error, progress.since_best = result["error"], 0
            if self.world.first:
                metadata = {"step": progress.step, "error": result["error"]}
                best = self.run.folder / "best.safetensors"
                write_weights(best, self.task.model, metadata)
        progress.finished |= self.run.config.gives_up(progress.since_best)

    def record(self, line: dict[str, Any]) -> None:
        if self.metrics is not None:
            self.metrics.write(line)
        for callback in self.callbacks:
            callback(line)

    def check_weights(self) -> None:
        """Raise unless all weights are finite: the loss reveals a bad step only one step later."""
        for name, tensor in self.task.model.state_dict().items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise self.diverged(
                    f"finite weights, got NaN or infinity in {name}", self.progress.step
                )

    def diverged(self, what: str, step: int) -> DivergedError:
        return DivergedError(
            f"{self.run.folder}: expected {what} at step {step}. Training has diverged; the last "
            f"checkpoint was not changed. Use a lower lr, or set grad_clip.",
            step,
        )

    def save(self) -> None:
        self.check_weights()
        if self.world.first:
            write_checkpoint(
                self.run.folder, self.task.model, self.optimizer, asdict(self.progress)
            )


def seed_step(seed: int, process: int, step: int) -> None:
    """Make randomness inside the network, such as dropout, a function of these three.

    A digest mixes them, because a generator on the CPU ignores the upper half of a 64-bit seed.
    """
    torch.manual_seed(generator_of(seed, "step", process, step).initial_seed())
