"""Untrusted safetensors files: tensors and metadata, checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, BinaryIO

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ._io import open_regular
from ._json import build, parse_json
from .errors import FileFormatError, NeuralSimilarityError

__all__ = ["check_finite", "fits", "read_metadata", "read_tensors"]

_Path = str | os.PathLike[str]
_Error = type[NeuralSimilarityError]

_METADATA = "__metadata__"
_LARGEST_HEADER = 100_000_000  # bytes, as in safetensors itself
_DAMAGE = (
    SafetensorError, OSError, ValueError, LookupError, TypeError, RuntimeError, ArithmeticError,
    AssertionError, MemoryError,
)  # fmt: skip
"""What reading untrusted bytes may raise."""


def read_tensors(
    path: _Path, error: _Error, what: str, advice: str = ""
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a file.

    Args:
        path: the file.
        error: the class of the error.
        what: what the file should be, for the message.
        advice: a last sentence that says what to do.
    """
    try:
        # Opened only once: a run may replace the file meanwhile.
        with open_regular(path) as file:
            header = _header(file)
            described = file.tell() + max(_ends(header), default=0)
            size = os.fstat(file.fileno()).st_size
            if size != described:  # checked before gigabytes are read
                raise ValueError(f"it has {size:,} bytes, but its header describes {described:,}")
            file.seek(0)
            tensors = load(file.read())
        return tensors, _metadata(header)
    except _DAMAGE as cause:
        raise _unreadable(path, error, what, advice, cause) from cause


def read_metadata(path: _Path, error: _Error, what: str, advice: str = "") -> dict[str, str]:
    """The metadata of a file, without its tensors; arguments as in :func:`read_tensors`."""
    try:
        with open_regular(path) as file:
            return _metadata(_header(file))
    except _DAMAGE as cause:
        raise _unreadable(path, error, what, advice, cause) from cause


def check_finite(
    path: _Path,
    tensors: Mapping[str, Tensor],
    error: _Error,
    own: Mapping[str, Tensor] | None = None,
) -> None:
    """Raise if a value in a tensor is NaN or infinite.

    ``own`` are the tensors of the network before the file is read into it. An infinite value is
    allowed where the network has the same one by design, as in an attention mask.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            continue
        values = tensor.float() if tensor.element_size() == 1 else tensor
        good = values.isfinite()
        constant = (own or {}).get(name)
        if not good.all() and constant is not None and constant.shape == tensor.shape:
            good |= constant.cpu() == values
        if not good.all():
            raise error(
                f"{path}: expected finite values, got NaN or infinity for {int((~good).sum()):,} "
                f"of {good.numel():,} values of {name!r}. They come from training that diverged, "
                f"or the file is damaged. Use another file."
            )


def fits(tensor: Tensor, own: Tensor) -> bool:
    """Whether a tensor can be copied into ``own``: the same shape, and the same kind of numbers.

    PyTorch cannot compute with 8-bit floats, and we write none.
    """
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return False
    kinds = [(t.is_floating_point(), t.is_complex()) for t in (tensor, own)]
    return tensor.shape == own.shape and kinds[0] == kinds[1]


def _header(file: BinaryIO) -> dict[str, object]:
    """The header, which precedes the tensors."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > _LARGEST_HEADER:
        raise ValueError("it does not begin with the length of a header")
    text = file.read(length)
    if len(text) < length:
        raise ValueError("it ends within its header")
    header = parse_json(text, "header", FileFormatError)
    return build(dict[str, object], header, "header", FileFormatError)


def _ends(header: Mapping[str, object]) -> list[int]:
    """Where the tensors end, counted from the first."""
    entries = [entry for name, entry in header.items() if name != _METADATA]
    tables = build(list[dict[str, Any]], entries, "header", FileFormatError)
    return [build(int, table["data_offsets"][1], "header", FileFormatError) for table in tables]


def _metadata(header: Mapping[str, object]) -> dict[str, str]:
    return build(dict[str, str], header.get(_METADATA) or {}, "metadata", FileFormatError)


def _unreadable(
    path: _Path, error: _Error, what: str, advice: str, cause: BaseException
) -> NeuralSimilarityError:
    reason = cause.strerror if isinstance(cause, OSError) else str(cause)
    return error(
        f"{path}: expected {what}, got a file that cannot be read "
        f"({reason or type(cause).__name__}). It is missing, damaged or of another kind."
        f"{' ' if advice else ''}{advice}"
    )
