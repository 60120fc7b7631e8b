"""PyTorch's own format: a program for ``torch.export.load``."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

__all__ = ["check_packages", "runner", "write"]


def check_packages() -> None:
    """Only PyTorch is required."""


def write(
    model: nn.Module, example: tuple[Tensor, ...], path: Path, metadata: dict[str, str],
    inputs: list[str], outputs: list[str],
) -> None:  # fmt: skip
    """Write the program, with ``metadata.json`` inside; it names no inputs or outputs."""
    shapes = ({0: torch.export.Dim("batch")},) * len(example)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's internal warnings
        program = torch.export.export(model, example, dynamic_shapes=shapes)
        torch.export.save(program, path, extra_files={"metadata.json": json.dumps(metadata)})


def runner(path: Path) -> Callable[..., list[Tensor]]:
    """The file as a function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = torch.export.load(path).module()

    def run(*batch: Tensor) -> list[Tensor]:
        with torch.no_grad():
            returned = module(*batch)
        return list(returned) if isinstance(returned, tuple) else [returned]

    return run
