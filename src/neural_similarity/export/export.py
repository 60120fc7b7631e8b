"""Export a trained network to one file in another format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

import torch
from torch import Tensor, nn

from .. import _check
from .._io import whole_file
from ..convert.merge import merged_copy
from ..convert.probe import evaluation
from ..convert.wrappers import unwrapped
from ..errors import ExportError

__all__ = ["FORMATS", "export_model"]

FORMATS = {"onnx": ".onnx", "torch-export": ".pt2"}  # and the suffixes of their files

# Relative to the largest score. Another runtime sums in another order: each of a few dozen layers
# adds rounding errors of 6e-8 (1e-16 in float64) that grow with the root of the number of terms, up
# to a few thousand, and later layers may amplify them. A wrong result differs by far more.
_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-10}


def export_model(
    model: nn.Module,
    example: Tensor | Sequence[Tensor],
    path: str | os.PathLike[str],
    format: str = "onnx",
    *,
    force: bool = False,
    metadata: Mapping[str, str] | None = None,
    inputs: Sequence[str] = ("image",),
    outputs: Sequence[str] = ("scores",),
    scales: Sequence[float] = (),
) -> float:
    """Write a network in evaluation mode to a file, for batches of any size.

    Static similarities are merged, in a copy, so the file holds plain layers; dynamic ones are
    exported as they are. The format's own runtime runs the file on ``example``, on a single sample
    and on ``example`` plus one. The file is written only if it reproduces the scores of ``model``.

    Args:
        model: a network that takes tensors and returns one, or a tuple of them; it is not changed.
        example: a batch of inputs of the size to export, or a batch for each of several inputs.
        path: the file, ending in ``.onnx`` or ``.pt2``.
        format: ``"onnx"`` for ONNX, run by onnxruntime and many others; ``"torch-export"`` for
            ``torch.export.load``. To load a dynamic network in the latter, ``import
            neural_similarity.ops`` first: it registers our operator.
        force: overwrite an existing file.
        metadata: information for users of the file, such as classes and normalisation. ONNX stores
            it in ``metadata_props``, torch.export in the extra file ``metadata.json``.
        inputs: the names of the model's inputs, for ONNX.
        outputs: the names of the model's outputs, for ONNX.
        scales: for each output, the magnitude of the values that it is computed from, if larger
            than its own: 1 for ``1 − cosine``, whose rounding errors are those of 1.

    Returns:
        The largest difference between the file's outputs and the model's, relative to the largest
        value of the output, or to its scale if that is larger.

    Raises:
        ExportError: the file exists, a package is missing, the network cannot be exported, or its
            scores would change. Nothing is written.

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
            f"{str(target)!r}. Programs recognise the format by this suffix."
        )
    if target.exists() and not force:
        raise ExportError(
            f"export: expected a new file, got {str(target)!r}, which exists. Choose another "
            f"name, or overwrite it with force (--force)."
        )
    _check_metadata(metadata or {})
    _check_names(inputs, outputs)
    writer = import_module(f".{format.replace('-', '_')}", __package__)
    writer.check_packages()
    model = unwrapped(model)
    deployed = merged_copy(model).eval()
    batches = _batches(example, len(inputs))
    expected = [_outputs_of(model, batch, len(outputs)) for batch in batches]
    with whole_file(target) as file:
        try:
            names = list(inputs), list(outputs)
            writer.write(deployed, batches[0], file, dict(metadata or {}), *names)
        except OSError:  # a disk error, which names the file
            raise
        except Exception as error:
            if _is_interrupt(error):
                raise KeyboardInterrupt from error
            reason = _first_line(error).replace(str(file), str(target))
            raise ExportError(
                f"export: expected a network that {format} can express, got "
                f"{type(error).__name__}: {reason}. Nothing was written."
            ) from error
        try:
            run = writer.runner(file)
            computed = [run(*batch) for batch in batches]
        except Exception as error:
            raise ExportError(
                f"export: expected {format}'s runtime to run the network, got "
                f"{type(error).__name__}: {_first_line(error)}. {_advice(expected[0][0])} "
                f"Nothing was written."
            ) from error
        return _largest_difference(computed, expected, format, list(scales))


def _check_metadata(metadata: Mapping[str, str]) -> None:
    for name, value in metadata.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise ExportError(
                f"export: expected metadata whose names and values are strings, got {value!r} for "
                f"{name!r}. Convert it to text, with json.dumps for instance."
            )


def _check_names(inputs: Sequence[str], outputs: Sequence[str]) -> None:
    for what, names in {"inputs": inputs, "outputs": outputs}.items():
        if isinstance(names, str):
            raise ExportError(
                f"export: expected {what} to be a list of names, got {names!r}. For one: "
                f"{what}=[{names!r}]."
            )
    twice = {name for name in (*inputs, *outputs) if [*inputs, *outputs].count(name) > 1}
    if twice:
        raise ExportError(
            f"export: expected different names for all inputs and outputs, got {sorted(twice)} "
            f"twice. Rename one of them."
        )


def _batches(example: Tensor | Sequence[Tensor], count: int) -> list[tuple[Tensor, ...]]:
    """Inputs of several sizes; the first have at least two samples: exporters treat 1 as fixed."""
    examples = (example,) if isinstance(example, Tensor) else tuple(example)
    if len(examples) != count or not examples:
        raise ExportError(
            f"export: expected {count} example(s), got {len(examples)}. Give a batch for each of "
            f"the model's inputs, and name each of them in inputs."
        )
    sizes = []
    for one in examples:
        shape = tuple(one.shape) if isinstance(one, Tensor) else ()
        if len(shape) < 2 or not shape[0]:
            got = f"shape {shape}" if isinstance(one, Tensor) else f"{type(one).__name__}"
            raise ExportError(f"export: expected example to be a batch of samples, got {got}.")
        sizes.append(shape[0])
    if len(set(sizes)) > 1:
        raise ExportError(
            f"export: expected examples with the same number of samples, got {sizes}. The first "
            f"axis of every input is the batch."
        )
    first = tuple(one.detach() for one in examples)
    several = first if sizes[0] > 1 else tuple(torch.cat([x, x.flip(-1)]) for x in first)
    more = tuple(torch.cat([x, x[:1].flip(-1)]) for x in several)
    return [several, tuple(x[:1] for x in first), more]


def _outputs_of(model: nn.Module, batch: tuple[Tensor, ...], count: int) -> list[Tensor]:
    """What the model returns in evaluation mode; every module keeps its mode afterwards."""
    with evaluation(model), torch.no_grad():
        returned = model(*batch)
    tensors = list(returned) if isinstance(returned, tuple) else [returned]
    for tensor in tensors:
        if not isinstance(tensor, Tensor):
            inside = " inside a tuple" if isinstance(returned, tuple) else ""
            raise ExportError(
                f"export: expected a model that returns a tensor or a tuple of tensors, got "
                f"{type(tensor).__name__}{inside}. Wrap it in a module that returns a tuple."
            )
        if tensor.dtype not in _TOLERANCE:
            raise ExportError(
                f"export: expected a model that returns tensors of float32 or float64, got "
                f"{tensor.dtype}. Convert it with .float()."
            )
    if len(tensors) != count:
        raise ExportError(
            f"export: expected a model that returns {count} tensor(s), got {len(tensors)}. Name "
            f"each of them in outputs."
        )
    return tensors


def _advice(scores: Tensor) -> str:
    if scores.dtype == torch.float64:
        return "It may not support float64: export model.float() with example.float()."
    return "It may not support one of the layers: try another format."


def _largest_difference(
    computed: list[list[Tensor]], expected: list[list[Tensor]], format: str, scales: list[float]
) -> float:
    largest = 0.0
    for theirs, ours in zip(computed, expected, strict=True):
        for place, (output, scores) in enumerate(zip(theirs, ours, strict=True)):
            if not scores.numel():
                continue
            least = max([torch.finfo(scores.dtype).tiny, *scales[place : place + 1]])
            scale = scores.abs().max().clamp(min=least)
            difference = ((output - scores).abs().max() / scale).item()
            tolerance = _TOLERANCE[scores.dtype]
            if not difference <= tolerance:  # also catches NaN
                raise ExportError(
                    f"export: expected {format} to give the model's scores, got a relative "
                    f"difference of {difference:.1e} on a batch of {len(scores)}, above "
                    f"{tolerance:.0e} for {scores.dtype}. The model has weights that are not "
                    f"finite, or it depends on more than its input. Nothing was written."
                )
            largest = max(largest, difference)
    return largest


def _is_interrupt(error: BaseException | None) -> bool:
    """Whether Ctrl-C caused an error: PyTorch's exporter may wrap it in its own."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")
