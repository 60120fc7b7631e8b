"""One process or many: the rank of this process, and sums over all processes.

Under ``torchrun`` every process runs the same command. Gradients are averaged by PyTorch's
``DistributedDataParallel``; losses and errors are summed here; only the first process writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

from ..errors import RunError

__all__ = [
    "World",
    "each_alone",
    "find_device",
    "is_first_process",
    "join_world",
    "restarted",
    "synchronise_batch_norm",
    "world_size",
]

_Value = TypeVar("_Value")
_joined = count()  # how often this process has joined the others


@dataclass(frozen=True)
class World:
    """This process: its rank, the number of processes, and its device."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """The sum over all processes."""
        if self.size > 1:
            values = values.to(self.device)
            dist.all_reduce(values)
        return values

    def wait(self) -> None:
        """Wait until all processes arrive."""
        if self.size > 1:
            dist.barrier()

    def from_first(self, make: Callable[[], _Value]) -> _Value:
        """What ``make`` returns or raises in the first process; the others do not call it."""
        if self.size == 1:
            return make()
        answer: list[Any] = [None, None]
        if self.first:
            try:
                answer[0] = make()
            except RunError as error:
                answer[1] = error
        dist.broadcast_object_list(answer, 0, device=self.device)
        if answer[1] is not None:
            raise answer[1]
        value: _Value = answer[0]
        return value

    def align(self, model: nn.Module) -> None:
        """Copy the first process's buffers, such as BatchNorm's running statistics, to all."""
        if self.size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, 0)

    def share(self, model: nn.Module, skips_parameters: bool = False) -> nn.Module:
        """The model with its gradients averaged over all processes.

        Args:
            model: a module that returns a loss.
            skips_parameters: whether a loss may omit some parameters, the same ones in all
                processes; their gradient is then None, as with one process.
        """
        if self.size == 1:
            return model
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(
            model, device_ids=devices, find_unused_parameters=skips_parameters
        )


def restarted() -> bool:
    """Whether ``torchrun`` has restarted this process after a worker was lost."""
    return _restarts() > 0


def _restarts() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def _attempt() -> str:
    """A name shared by the processes of one attempt, and by no other attempt.

    torchrun keeps its store across restarts, with the addresses of processes that no longer exist.
    On one machine the number of restarts identifies the attempt. Several machines each count their
    own restarts, so torchrun must not keep the store there: see docs/many-machines.md.
    """
    has_machines = int(os.environ.get("GROUP_WORLD_SIZE", "1")) > 1
    return "attempt" if has_machines else f"attempt-{_restarts()}"


def world_size() -> int:
    """The number of processes that ``torchrun`` started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first_process() -> bool:
    """Whether this process is the only one, or the first that ``torchrun`` started."""
    return int(os.environ.get("RANK", "0")) == 0


def find_device(device: str) -> torch.device:
    """The device of a configuration; raises if this machine lacks it."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        place = torch.device(device)
    except RuntimeError as error:
        raise RunError(
            f"configuration: expected device to be 'auto', 'cpu' or 'cuda', got {device!r}."
        ) from error
    if place.type == "cuda" and not torch.cuda.is_available():
        raise RunError(
            f"configuration: expected a device of this machine, got {device!r}. PyTorch finds no "
            f"GPU. Use 'cpu' or 'auto'."
        )
    try:
        torch.zeros(1, device=place).item()  # "meta" holds no values; others may not be here
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise RunError(
            f"configuration: expected a device of this machine that can compute, got {device!r}. "
            f"Use 'cpu' or 'auto'."
        ) from error
    return place


@contextmanager
def join_world(device: str = "auto") -> Iterator[World]:
    """Join the processes that ``torchrun`` started; without torchrun, a world of one."""
    place = find_device(device)
    if world_size() == 1:
        yield World(device=place)
        return
    if place.type == "cuda":
        place = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(place)
    backend = "nccl" if place.type == "cuda" else "gloo"
    store, rank, size = next(rendezvous("env://"))
    store = PrefixStore(f"{_attempt()}-{next(_joined)}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    try:
        yield World(dist.get_rank(), dist.get_world_size(), place)
    finally:
        dist.destroy_process_group()


def synchronise_batch_norm(model: nn.Module) -> nn.Module:
    """Let every BatchNorm use the batches of all processes, in place.

    PyTorch's ``SyncBatchNorm`` works only on GPUs. This does the same on any device, with two
    differentiable sums. The keys of the state dict stay the same.
    """
    for module in model.modules():
        if type(module) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
            module.__class__ = _SynchronisedBatchNorm
    return model


@contextmanager
def each_alone(model: nn.Module) -> Iterator[None]:
    """Within the block, synchronised BatchNorm uses only the batch of its own process.

    For inputs that are not part of a larger batch, such as an episode that only one process sees.
    """
    norms = [m for m in model.modules() if isinstance(m, _SynchronisedBatchNorm)]
    before = [norm.together for norm in norms]
    for norm in norms:
        norm.together = False
    try:
        yield
    finally:
        for norm, together in zip(norms, before, strict=True):
            norm.together = together


class _Sum(torch.autograd.Function):
    """The sum over all processes; it enters every process's loss, so gradients are summed too."""

    @staticmethod
    def forward(context: Any, values: Tensor) -> Tensor:
        total = values.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return _sum(gradient)  # differentiable, for second derivatives


def _sum(values: Tensor) -> Tensor:
    total: Tensor = _Sum.apply(values)  # type: ignore[no-untyped-call]
    return total


class _SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """BatchNorm with mean and variance over the batches of all processes."""

    together = True

    def _check_input_dim(self, input: Tensor) -> None:
        pass  # it replaces BatchNorm1d, BatchNorm2d and BatchNorm3d

    def forward(self, input: Tensor) -> Tensor:
        if not (self.training and self.together):
            return super().forward(input)
        axes = [0, *range(2, input.dim())]
        shape = [1, -1, *[1] * (input.dim() - 2)]
        # In float32: averages over many positions need the precision.
        wide = input.float() if input.dtype in (torch.float16, torch.bfloat16) else input
        count = torch.tensor([wide.numel() / wide.shape[1]], dtype=wide.dtype, device=wide.device)
        total = _sum(torch.cat([wide.sum(axes), count]))
        mean = total[:-1] / total[-1]
        centred = wide - mean.reshape(shape)
        variance = _sum(centred.square().sum(axes)) / total[-1]
        self._remember(mean.detach(), variance.detach(), total[-1].detach())
        result = centred * (variance + self.eps).rsqrt().reshape(shape)
        if self.affine:
            result = result * self.weight.reshape(shape) + self.bias.reshape(shape)
        normalised: Tensor = result.to(input.dtype)
        return normalised

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, count: Tensor) -> None:
        if self.running_mean is None or self.running_var is None:
            return
        if self.num_batches_tracked is not None:
            self.num_batches_tracked += 1
        rate = self.momentum
        if rate is None:  # a plain average over all batches
            assert self.num_batches_tracked is not None
            rate = 1 / self.num_batches_tracked.item()
        self.running_mean.lerp_(mean, rate)
        self.running_var.lerp_(variance * count / (count - 1), rate)
