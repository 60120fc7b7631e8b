"""Checkpoints: safetensors files that are written atomically.

A checkpoint is two files: the weights, and the optimiser's state for the same step. The second has
the step in its name and is written first, and older ones are removed last: whenever a process is
killed, the weights on disk have a matching optimiser state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn

from .._io import write_file
from .._json import Count, build, parse_json
from .._tensor_files import check_finite, fits, read_metadata, read_tensors
from ..errors import RunError

__all__ = [
    "disk_errors",
    "read_step",
    "read_weights",
    "remove_older",
    "resume_checkpoint",
    "write_atomically",
    "write_checkpoint",
    "write_weights",
]

_ALIASES = "aliases"
_CONTINUE = "continue with --resume"
_DAMAGED = "The file is damaged. Restore it from a copy, or start a new run."
_OPTIMIZER_TENSORS: dict[type[torch.optim.Optimizer], set[str]] = {
    torch.optim.SGD: {"momentum_buffer"},
    torch.optim.Adam: {"step", "exp_avg", "exp_avg_sq"},
}


@dataclass(frozen=True)
class _Step:
    step: Count


@contextmanager
def disk_errors(path: Path, size: int, advice: str = _CONTINUE) -> Iterator[None]:
    """Raise a ``RunError`` with ``advice`` if the disk refuses a file of ``size`` bytes."""
    try:
        yield
    except OSError as error:
        if not path.parent.is_dir():
            raise RunError(
                f"{path}: expected a file in a folder that exists, got no folder {path.parent}. "
                f"Create it, or choose another."
            ) from error
        raise RunError(
            f"{path}: expected to write {size:,} bytes, got {error.strerror or error}. "
            f"The old file is unchanged. Free some space or choose another folder, then {advice}."
        ) from error


def write_atomically(path: Path, content: bytes, advice: str = _CONTINUE) -> None:
    """Write a file atomically; see :func:`disk_errors`."""
    with disk_errors(path, len(content), advice):
        write_file(path, content)


def write_weights(
    path: Path, model: nn.Module, metadata: Mapping[str, Any], advice: str = _CONTINUE
) -> None:
    """Write a model's parameters, with metadata.

    ``advice`` tells what to do once there is space, if the disk is full.
    """
    tensors, aliases = _unshared(model.state_dict())
    write_atomically(path, _content(tensors, {**metadata, _ALIASES: aliases}), advice)


def read_weights(path: Path, model: nn.Module) -> dict[str, Any]:
    """Read a file of :func:`write_weights` into the model; return its metadata."""
    tensors, metadata = _read(path)
    for name, same in build(dict[str, str], metadata.pop(_ALIASES, {}), path, RunError).items():
        if same not in tensors:
            raise RunError(f"{path}: expected the weights of {same!r}, got none. {_DAMAGED}")
        tensors[name] = tensors[same]
    own = model.state_dict()
    check_finite(path, tensors, RunError, own)
    for name in own.keys() & tensors.keys():
        if own[name].shape == tensors[name].shape and not fits(tensors[name], own[name]):
            raise RunError(
                f"{path}: expected {own[name].dtype} for {name!r}, got {tensors[name].dtype}. "
                f"{_DAMAGED}"
            )
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise RunError(
            f"{path}: expected the weights of this network, got those of another one. "
            f"{' '.join(str(error).split())}"
        ) from error
    return metadata


def read_step(path: Path) -> int:
    """The training step at which the weights in a file were saved."""
    text = read_metadata(path, RunError, "weights")
    return build(_Step, _parsed(path, text), path, RunError, _DAMAGED, others=True).step


def write_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, metadata: Mapping[str, Any]
) -> None:
    """Write ``last.safetensors`` and the optimiser's state next to it."""
    beside = _optimizer_file(folder, metadata["step"])
    numbers = {
        f"{index}.{name}": value
        for index, state in optimizer.state_dict()["state"].items()
        for name, value in state.items()
        if isinstance(value, Tensor)
    }
    write_atomically(beside, _content(numbers, {"step": metadata["step"]}))
    write_weights(folder / "last.safetensors", model, metadata)
    remove_older(folder, metadata["step"])


def remove_older(folder: Path, step: int) -> None:
    """Remove the optimiser states of other steps; a killed process may have left them."""
    for file in folder.glob("last-*.optimizer.safetensors"):
        if file != _optimizer_file(folder, step):
            file.unlink()


def resume_checkpoint(
    folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer
) -> dict[str, Any]:
    """Read the last checkpoint into model and optimiser; return its metadata."""
    file = folder / "last.safetensors"
    metadata = read_weights(file, model)
    step = build(_Step, metadata, file, RunError, _DAMAGED, others=True).step
    beside = _optimizer_file(folder, step)
    numbers, _ = _read(beside)
    state = _optimizer_state(beside, numbers, optimizer)
    # Squares of gradients may overflow while the weights are still finite.
    squares = {name: v.clamp(max=1) for name, v in numbers.items() if name.endswith("exp_avg_sq")}
    check_finite(beside, {**numbers, **squares}, RunError)
    optimizer.load_state_dict({**optimizer.state_dict(), "state": state})
    return metadata


def _optimizer_state(
    file: Path, numbers: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> dict[int, dict[str, Tensor]]:
    """The optimiser's tensors by parameter; raises unless each fits a parameter."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    names, most = _OPTIMIZER_TENSORS[type(optimizer)], len(parameters) - 1
    state: dict[int, dict[str, Tensor]] = {}
    for name, value in numbers.items():
        index, _, key = name.partition(".")
        number = int(index) if index.isascii() and index.isdigit() else most + 1
        like = torch.ones(()) if key == "step" else parameters[min(number, most)]
        if number > most or not fits(value, like) or (key == "step" and value < 1):
            raise RunError(
                f"{file}: expected tensors that fit the optimiser, got {name!r} of shape "
                f"{tuple(value.shape)}, {value.dtype}. {_DAMAGED}"
            )
        state.setdefault(number, {})[key] = value
    for number, tensors in state.items():
        if tensors.keys() != names:
            raise RunError(
                f"{file}: expected {', '.join(sorted(names))} for parameter {number}, got "
                f"{', '.join(sorted(tensors))}. {_DAMAGED}"
            )
    return state


def _optimizer_file(folder: Path, step: int) -> Path:
    return folder / f"last-{step}.optimizer.safetensors"


def _unshared(state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Each tensor once, and the other names of tensors with several (shared predictors)."""
    tensors: dict[str, Tensor] = {}
    aliases: dict[str, str] = {}
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in state.items():
        memory = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        first_name = first.setdefault(memory, name)
        if first_name == name or not tensor.numel():
            tensors[name] = tensor
        else:
            aliases[name] = first_name
    return tensors, aliases


def _content(tensors: Mapping[str, Tensor], metadata: Mapping[str, Any]) -> bytes:
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = {key: json.dumps(value) for key, value in metadata.items()}
    return save(plain, metadata=text)


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors, text = read_tensors(path, RunError, "a checkpoint")
    return tensors, _parsed(path, text)


def _parsed(path: Path, text: Mapping[str, str]) -> dict[str, Any]:
    return {key: parse_json(value, f"{path}, {key!r}", RunError) for key, value in text.items()}
