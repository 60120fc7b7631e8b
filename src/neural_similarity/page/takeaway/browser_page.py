"""A page in one file that runs the ONNX model in the browser itself: no server, no network."""

from __future__ import annotations

from pathlib import Path

__all__ = ["has_runtime", "write_browser_page"]


def has_runtime() -> bool:
    """Whether the parts of onnxruntime-web are installed."""
    return False


def write_browser_page(folder: Path, name: str) -> None:
    """Write ``try.html`` next to ``model.onnx``."""
    raise NotImplementedError
