"""Read pickles of arrays, numbers and strings, and of nothing else.

A pickle is a program: loading an unknown one runs its code. CIFAR's batches are dictionaries of
strings, numbers, arrays, and lists of strings or numbers. This reads exactly that, one instruction
at a time, and refuses everything else. Python's own unpickler is not used.

- A list contains no list, so neither nesting nor shared parts can grow without limit.
- An array is made here from its bytes. NumPy would trust the dtype in the file, and so take bytes
  for the addresses of objects.
- The size of the file and the number of instructions are limited, and so is the work.
"""

from __future__ import annotations

import io
import math
import pickle
import pickletools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..._io import read_regular
from ...errors import DataError

__all__ = ["read_plain_pickle"]

# The largest file of CIFAR-100 has 155 million bytes and about 200,000 instructions.
_MOST_BYTES, _MOST_INSTRUCTIONS = 2**29, 2_000_000
_MOST_IN_A_TUPLE = 32  # a shape has at most this many axes, and nothing else needs tuples
_DTYPES = ("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
_ORDERS = ("<", ">", "=", "|")
_SCALARS = (str, bytes, int, float, type(None))  # True and False are int, too


def read_plain_pickle(path: Path) -> dict[str, Any]:
    """The dictionary in a pickle of arrays, numbers, strings and lists of these."""
    try:
        content = _read(path)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # damaged pickles raise any kind of error
        raise DataError(
            f"{path}: expected a pickle of arrays and plain containers, got one that cannot be "
            f"read: {str(error) or type(error).__name__}. The file is damaged, or it is something "
            f"else. Download it again."
        ) from error
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected a dictionary, got {type(content).__name__}.")
    return content


class _Array:
    """An array: its values are known only after the instruction BUILD."""

    values: np.ndarray | None = None


class _DType:
    """The dtype of an array, one of :data:`_DTYPES`, and its byte order."""

    order = "="

    def __init__(self, name: str) -> None:
        self.name = name


class _Function:
    """A function that a pickle may name; what it does is in :func:`_call`."""

    def __init__(self, name: str) -> None:
        self.name = name


_ENCODE, _DTYPE, _NDARRAY, _RECONSTRUCT = map(
    _Function, ("encode", "dtype", "ndarray", "_reconstruct")
)
_FUNCTIONS = {
    ("_codecs", "encode"): _ENCODE,
    ("numpy", "dtype"): _DTYPE,
    ("numpy", "ndarray"): _NDARRAY,
    # NumPy 2 renamed its inner module, and a pickle holds the name at the time of writing.
    ("numpy.core.multiarray", "_reconstruct"): _RECONSTRUCT,
    ("numpy._core.multiarray", "_reconstruct"): _RECONSTRUCT,
}


def _read(path: Path) -> Any:
    size = path.stat().st_size
    if size > _MOST_BYTES:
        raise _refused(f"a file of {size:,} bytes")
    reader = _Reader()
    instructions = pickletools.genops(io.BytesIO(read_regular(path, _MOST_BYTES)))
    for number, (instruction, argument, _) in enumerate(instructions):
        if number > _MOST_INSTRUCTIONS:
            raise _refused(f"more than {_MOST_INSTRUCTIONS:,} instructions")
        reader.run(instruction.name, argument)
    (content,) = reader.stack
    if not isinstance(content, dict):
        return content
    return {key: _finished(value) for key, value in content.items()}


class _Reader:
    """Interprets the instructions of a pickle. Values are on a stack; marks set parts aside."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}
        self.made = 0  # bytes, of text that was encoded

    def run(self, name: str, argument: Any) -> None:
        """One instruction."""
        if name in _PUSHES_ITS_ARGUMENT:
            self.stack.append(argument)
        elif name in _PUSHES:
            self.stack.append(_PUSHES[name]())
        elif name in ("PUT", "BINPUT", "LONG_BINPUT"):
            self.memo[argument] = self.stack[-1]
        elif name in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif name in _STEPS:
            _STEPS[name](self)
        elif name == "GLOBAL":
            self.stack.append(_function(*argument.split(" ", 1)))
        elif name not in ("PROTO", "FRAME", "STOP"):
            raise _refused(f"the instruction {name}")

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def since_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def take(self, count: int) -> list[Any]:
        if len(self.stack) < count:
            raise _refused("an instruction without its arguments")
        items = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return items

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def append(self, items: Iterable[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise _refused(f"appending to {type(target).__name__}")
        target += _checked("a list", items)

    def set_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict):
            raise _refused(f"setting an item of {type(target).__name__}")
        for key, value in zip(items[::2], items[1::2], strict=True):
            (word,) = _checked("a dictionary", [key], (str, bytes, int))
            target[word] = _checked("a dictionary", [value], (*_SCALARS, list, _Array))[0]

    def set_new(self, kind: type, items: list[Any]) -> None:
        self.stack.append(kind())
        (self.append if kind is list else self.set_items)(items)

    def push_tuple(self, items: list[Any]) -> None:
        if len(items) > _MOST_IN_A_TUPLE:
            raise _refused(f"a tuple of {len(items)} values")
        if any(isinstance(item, tuple) and not _is_flat(item) for item in items):
            raise _refused("a tuple in a tuple in a tuple")
        kinds = (*_SCALARS, tuple, _DType, _Function)
        self.stack.append(tuple(_checked("a tuple", items, kinds)))

    def push_function(self) -> None:
        self.stack.append(_function(*self.take(2)))

    def reduce(self) -> None:
        function, arguments = self.take(2)
        made = _call(function, arguments)
        self.made += len(made) if isinstance(made, bytes) else 0
        if self.made > _MOST_BYTES:
            raise _refused(f"text of more than {_MOST_BYTES:,} bytes")
        self.stack.append(made)

    def build(self) -> None:
        (state,) = self.take(1)
        target = self.stack[-1]
        if not isinstance(target, _DType | _Array):
            raise _refused(f"setting the state of {type(target).__name__}")
        if isinstance(target, _Array):
            target.values = _array(*state)
        else:  # the other parts of its state could make it another dtype
            (target.order,) = _known_values("byte order", _ORDERS, state[1])


_PUSHES_ITS_ARGUMENT = {
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT",
    "STRING", "BINSTRING", "SHORT_BINSTRING", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
}  # fmt: skip
_PUSHES: dict[str, Callable[[], Any]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple,
}  # fmt: skip
_STEPS: dict[str, Callable[[_Reader], None]] = {
    "MARK": _Reader.mark,
    "MEMOIZE": _Reader.memoize,
    "APPEND": lambda reader: reader.append(reader.take(1)),
    "APPENDS": lambda reader: reader.append(reader.since_mark()),
    "SETITEM": lambda reader: reader.set_items(reader.take(2)),
    "SETITEMS": lambda reader: reader.set_items(reader.since_mark()),
    "LIST": lambda reader: reader.set_new(list, reader.since_mark()),
    "DICT": lambda reader: reader.set_new(dict, reader.since_mark()),
    "TUPLE": lambda reader: reader.push_tuple(reader.since_mark()),
    "TUPLE1": lambda reader: reader.push_tuple(reader.take(1)),
    "TUPLE2": lambda reader: reader.push_tuple(reader.take(2)),
    "TUPLE3": lambda reader: reader.push_tuple(reader.take(3)),
    "STACK_GLOBAL": _Reader.push_function,
    "REDUCE": _Reader.reduce,
    "BUILD": _Reader.build,
}


def _refused(what: str) -> Exception:
    return pickle.UnpicklingError(f"{what} is not allowed")


def _checked(where: str, items: Iterable[Any], kinds: tuple[type, ...] = _SCALARS) -> list[Any]:
    """The items, if all are of these kinds."""
    items = list(items)
    for item in items:
        if not isinstance(item, kinds):
            raise _refused(f"{type(item).__name__} in {where}")
    return items


def _is_flat(items: tuple[Any, ...]) -> bool:
    return not any(isinstance(item, tuple) for item in items)


def _known_values(what: str, choices: tuple[str, ...], *values: Any) -> tuple[Any, ...]:
    """The values, if all are among the choices."""
    for value in values:
        if not (isinstance(value, str) and value in choices):
            raise _refused(f"{what} {value!r:.40}")
    return values


def _function(module: Any, name: Any) -> _Function:
    if (module, name) not in _FUNCTIONS:
        raise _refused(f"{module}.{name}")
    return _FUNCTIONS[module, name]


def _call(function: Any, arguments: Any) -> Any:
    """Do what one of the functions does that a pickle may call."""
    if function is _ENCODE:  # how Python 3 writes bytes for Python 2; other codecs can do more
        text, codec = arguments
        _known_values("codec", ("latin1", "latin-1"), codec)
        return text.encode("latin1")
    if function is _DTYPE:
        (name,) = _known_values("dtype", _DTYPES, arguments[0])
        return _DType(name)
    if function is _RECONSTRUCT:
        if arguments[0] is not _NDARRAY:
            raise _refused("an array of another class")
        return _Array()
    raise _refused("a call of something other than a function")


def _array(version: Any, shape: Any, dtype: Any, is_fortran: Any, content: Any) -> np.ndarray:
    """An array from its bytes; read-only."""
    if isinstance(content, str):  # Python 2 did not tell bytes from text
        content = content.encode("latin1")
    if not (isinstance(dtype, _DType) and isinstance(content, bytes)):
        raise _refused("an array of something other than numbers")
    if not (isinstance(shape, tuple) and all(type(side) is int and side >= 0 for side in shape)):
        raise _refused("an array without a shape")
    kind = np.dtype(dtype.order + dtype.name)
    if math.prod(shape) * kind.itemsize != len(content):
        raise _refused(f"an array of shape {shape} with {len(content):,} bytes")
    return np.frombuffer(content, kind).reshape(shape, order="F" if is_fortran else "C")


def _finished(value: Any) -> Any:
    """A value of the dictionary, with arrays as NumPy arrays."""
    if not isinstance(value, _Array):
        return value
    if value.values is None:
        raise _refused("an array without values")
    return value.values
