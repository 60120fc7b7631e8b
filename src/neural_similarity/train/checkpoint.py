"""Checkpoints: safetensors files that appear whole or not at all.

A checkpoint is two files, the weights and beside them the optimiser's numbers for the same step.
The second carries the step in its name and is written first, and older ones are removed last: at
whatever moment a process is killed, the weights on disk have their optimiser beside them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from .._io import write_file
from ..errors import RunError

__all__ = [
    "disk_errors",
    "read_weights",
    "remove_older",
    "resume_checkpoint",
    "write_atomically",
    "write_checkpoint",
    "write_weights",
]

_ALIASES = "aliases"


@contextmanager
def disk_errors(path: Path, size: int) -> Iterator[None]:
    """Say what to do if the disk refuses a file of a run, of ``size`` bytes."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path}: expected to write {size:,} bytes, got {error.strerror or error}. "
            f"The old file is unchanged. Free some space or choose another folder, then continue "
            f"with --resume."
        ) from error


def write_atomically(path: Path, content: bytes) -> None:
    """Write a file of a run that is there whole or not at all; see :func:`disk_errors`."""
    with disk_errors(path, len(content)):
        write_file(path, content)


def write_weights(
    path: Path,
    model: nn.Module,
    metadata: Mapping[str, Any],
    write: Callable[[Path, bytes], None] = write_file,
) -> None:
    """Write a model's numbers, with what is to be known about them."""
    tensors, aliases = _unshared(model.state_dict())
    write(path, _content(tensors, {**metadata, _ALIASES: aliases}))


def read_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Read a file of :func:`write_weights` into the model; return what is known about it."""
    tensors, metadata = _read(path)
    tensors |= {name: tensors[same] for name, same in metadata.pop(_ALIASES, {}).items()}
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise RunError(
            f"{path}: expected the weights of this network, got others. "
            f"{' '.join(str(error).split())}"
        ) from error
    return metadata


def write_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, metadata: Mapping[str, Any]
) -> None:
    """Write ``last.safetensors`` and the optimiser's numbers beside it."""
    beside = _optimizer_file(folder, metadata["step"])
    numbers = {
        f"{index}.{name}": value
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    write_atomically(beside, _content(numbers, {"step": metadata["step"]}))
    write_weights(folder / "last.safetensors", model, metadata, write_atomically)
    remove_older(folder, metadata["step"])


def remove_older(folder: Path, step: int) -> None:
    """Remove the optimiser's numbers of other steps; a kill may have left them."""
    for file in folder.glob("last-*.optimizer.safetensors"):
        if file != _optimizer_file(folder, step):
            file.unlink()


def resume_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Read the last checkpoint into model and optimiser; return what is known about it."""
    metadata = read_weights(folder / "last.safetensors", model)
    numbers, _ = _read(_optimizer_file(folder, metadata["step"]))
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in numbers.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return metadata


def _optimizer_file(folder: Path, step: int) -> Path:
    return folder / f"last-{step}.optimizer.safetensors"


def _unshared(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, and the other names of those that have several (shared predictors)."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in state.items():
        known = first.setdefault((tensor.data_ptr(), tensor.shape), name)
        if known == name or not tensor.numel():
            tensors[name] = tensor
        else:
            aliases[name] = known
    return tensors, aliases


def _content(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = {key: json.dumps(value) for key, value in metadata.items()}
    return save(plain, metadata=text)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    try:
        content = path.read_bytes()  # at once: a run may replace the file while we look
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        text = header.get("__metadata__", {})
        return tensors, {key: json.loads(value) for key, value in text.items()}
    except (SafetensorError, OSError, ValueError) as error:
        raise RunError(
            f"{path}: expected a checkpoint, got a file that cannot be read ({error}). It is "
            f"missing, damaged or of another kind."
        ) from error
