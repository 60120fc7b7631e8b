"""ONNX: written by PyTorch's exporter, run by onnxruntime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ExportError

__all__ = ["check_packages", "runner", "write"]

_LOGGERS = ("torch.onnx", "onnxscript", "onnx_ir")


def check_packages() -> None:
    """Raise unless all required packages are installed."""
    missing = [name for name in ("onnx", "onnxscript", "onnxruntime") if find_spec(name) is None]
    if missing:
        raise ExportError(
            f"export: expected the packages that write and run ONNX, got none of "
            f"{', '.join(missing)}. Install them with: pip install 'neural-similarity[onnx]'."
        )


def write(
    model: nn.Module, example: tuple[Tensor, ...], path: Path, metadata: dict[str, str],
    inputs: list[str], outputs: list[str],
) -> None:  # fmt: skip
    """Write one self-contained ONNX file with these inputs and outputs."""
    with _quiet():
        program: Any = torch.onnx.export(
            model,
            example,
            dynamo=True,
            verbose=False,
            input_names=inputs,
            output_names=outputs,
            dynamic_shapes=({0: torch.export.Dim("batch")},) * len(example),
        )
        program.model.metadata_props.update(metadata)
        program.save(path, external_data=False)


def runner(path: Path) -> Callable[..., list[Tensor]]:
    """The file as a function, run by onnxruntime."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

    names = [input.name for input in session.get_inputs()]

    def run(*batch: Tensor) -> list[Tensor]:
        values = {name: x.cpu().numpy() for name, x in zip(names, batch, strict=True)}
        return [torch.from_numpy(y).to(batch[0].device) for y in session.run(None, values)]

    return run


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the exporter's internal warnings; errors are still raised."""
    loggers = {name: logging.getLogger(name) for name in _LOGGERS}
    levels = {name: logger.level for name, logger in loggers.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers.values():
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for name, logger in loggers.items():
                logger.setLevel(levels[name])
