"""From a trained network to one file in another format."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import _check
from .._io import whole_file
from ..convert.merge import merge
from ..convert.probe import evaluation
from ..errors import ExportError
from ..nn.inventory import static_similarities

__all__ = ["FORMATS", "export_model"]

FORMATS = {"onnx": ".onnx", "torch-export": ".pt2"}  # and how their files end

# Relative to the largest score. Another runtime sums in another order: each of some tens of layers
# adds roundings of 6e-8 (1e-16 in float64) that grow with the root of the terms summed, up to a few
# thousand, and later layers may amplify them. What is wrong differs by far more.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def export_model(
    model: nn.Module,
    example: Tensor,
    path: str | os.PathLike[str],
    format: str = "onnx",
    *,
    force: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> float:
    """Write a network in evaluation mode to a file, for batches of any size.

    Static similarities are merged, in a copy, so that the file holds plain layers; dynamic ones
    are written as they are. The file is run by its own runtime on ``example``, on one sample and
    on one sample more, and must give the scores of ``model``; only then does it appear at ``path``.

    Args:
        model: takes one tensor and returns one; it is left as it is.
        example: input of the size to be exported, samples first.
        path: the file, ending in ``.onnx`` or ``.pt2``.
        format: ``"onnx"`` for ONNX, run by onnxruntime and many others; ``"torch-export"`` for
            ``torch.export.load``. Reading a dynamic network in the latter needs ``import
            neural_similarity.ops`` first: it holds our operator.
        force: replace a file that is there.
        metadata: for whoever uses the file, such as classes and normalisation; in ONNX as the
            model's ``metadata_props``, in torch.export as the extra file ``metadata.json``.

    Returns:
        The largest difference between the file's scores and the model's, relative to the largest.

    Raises:
        ExportError: the file is there already, a package is missing, the network cannot be
            written, or its scores would change. Nothing is written.

    Example:
        >>> import tempfile
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = Path(folder) / "model.pt2"
        ...     export_model(model, torch.randn(2, 3, 8, 8), file, "torch-export") < 1e-6
        True
    """
    _check.known_name("export", "format", format, FORMATS)
    target = Path(path)
    if target.suffix != FORMATS[format]:
        raise ExportError(
            f"export: expected a file that ends in {FORMATS[format]!r} for {format}, got "
            f"{str(target)!r}. Programs tell the format by it."
        )
    if target.exists() and not force:
        raise ExportError(
            f"export: expected a new file, got {str(target)!r}, which is there. Choose another "
            f"name, or replace it with force (--force)."
        )
    _check_metadata(metadata or {})
    writer = import_module(f".{format.replace('-', '_')}", __package__)
    writer.check_packages()
    deployed = copy.deepcopy(model).eval()
    if any(static_similarities(module) for module in deployed.modules()):
        merge(deployed)
    inputs = _inputs(example)
    expected = [_scores(model, input) for input in inputs]
    with whole_file(target) as file:
        try:
            writer.write(deployed, inputs[0], file, dict(metadata or {}))
        except Exception as error:
            raise ExportError(
                f"export: expected a network that {format} can express, got "
                f"{type(error).__name__}: {_first_line(error)}. Nothing was written."
            ) from error
        try:
            run = writer.runner(file)
            scores = [run(input) for input in inputs]
        except Exception as error:
            raise ExportError(
                f"export: expected {format}'s runtime to run the network, got "
                f"{type(error).__name__}: {_first_line(error)}. {_advice(expected[0])} Nothing was "
                f"written."
            ) from error
        return _largest_difference(scores, expected, format)


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for name, value in metadata.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ExportError(
                f"export: expected metadata of strings by name, got {value!r} for {name!r}. Write "
                f"it as text, with json.dumps for instance."
            )


def _inputs(example: Tensor) -> list[Tensor]:
    """Batches of several sizes. The first has two samples or more: exporters take 1 for fixed."""
    if example.dim() < 2 or not len(example):
        raise ExportError(
            f"export: expected an example with samples first, got {tuple(example.shape)}."
        )
    several = example if len(example) > 1 else torch.cat([example, example.flip(-1)])
    return [several, example[:1], torch.cat([several, several[:1].flip(-1)])]


def _scores(model: nn.Module, input: Tensor) -> Tensor:
    """What the model says in evaluation mode; every module is left in the mode it was in."""
    with evaluation(model), torch.no_grad():
        scores = model(input)
    if not isinstance(scores, Tensor) or scores.dtype not in _TOLERANCE:
        got = scores.dtype if isinstance(scores, Tensor) else type(scores).__name__
        raise ExportError(
            f"export: expected a model that returns one tensor of float32 or float64, got {got}. "
            f"Convert it with .float(), or wrap it."
        )
    return scores


def _advice(scores: Tensor) -> str:
    if scores.dtype == torch.float64:
        return "It may lack layers of float64: export model.float() with example.float()."
    return "It may lack one of the layers: try another format."


def _largest_difference(made: list[Tensor], expected: list[Tensor], format: str) -> float:
    largest = 0.0
    for got, scores in zip(made, expected, strict=True):
        scale = scores.abs().max().clamp(min=torch.finfo(scores.dtype).tiny)
        difference = ((got - scores).abs().max() / scale).item()
        tolerance = _TOLERANCE[scores.dtype]
        if not difference <= tolerance:  # also catches NaN
            raise ExportError(
                f"export: expected {format} to give the model's scores, got a relative difference "
                f"of {difference:.1e} on a batch of {len(scores)}, above {tolerance:.0e} for "
                f"{scores.dtype}. The model's numbers are not finite, or it depends on more than "
                f"its input. Nothing was written."
            )
        largest = max(largest, difference)
    return largest


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
