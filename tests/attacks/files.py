"""Changed files: every JSON value replaced or removed, tensors swapped, bytes damaged.

A :class:`Codec` shows the content of a file as a JSON value, and makes a file of one again. The
functions below yield for every change its name and a function that makes the changed content.
"""

import copy
import json
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

Changes = Iterator[tuple[str, Callable[[], bytes]]]

WRONG = (
    None, True, -1, 0, 7, 2**40, 10**30, 1.5, math.nan, -math.inf, "", "three", "../x",
    "\udcff\x1b[1m", [], [[]], ["a", 1], {}, {"a": None},
)  # fmt: skip
"""Values of every type, and some that are of the right type and mean nothing."""

NESTED = "[" * 100_000


@dataclass(frozen=True)
class Codec:
    """How the content of a kind of file is read and written as one JSON value."""

    decode: Callable[[bytes], Any]
    encode: Callable[[bytes, Any], bytes]
    """Called with the original file and the changed value."""


def _metadata(content: bytes) -> dict[str, str]:
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    return header.get("__metadata__", {})


def _as_lines(_: bytes, value: Any) -> bytes:
    lines = value if isinstance(value, list) else [value]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


JSON = Codec(json.loads, lambda _, value: json.dumps(value).encode())
LINES = Codec(lambda content: [json.loads(line) for line in content.splitlines()], _as_lines)
METADATA = Codec(
    lambda content: {key: json.loads(text) for key, text in _metadata(content).items()},
    lambda content, value: with_metadata(
        content, {k: json.dumps(v) for k, v in value.items()} if isinstance(value, dict) else None
    ),
)
"""Of safetensors files; every value is JSON."""


def with_metadata(content: bytes, metadata: dict[str, str] | None) -> bytes:
    """A safetensors file with other metadata."""
    return save(load(content), metadata=metadata)


def changed_values(codec: Codec, content: bytes) -> Changes:
    """Every value replaced by every wrong one, or dropped; every object with one key more."""
    value = codec.decode(content)

    def changed(change: Callable[..., Any], *arguments: Any) -> Callable[[], bytes]:
        return lambda: codec.encode(content, change(value, *arguments))

    for path in _paths(value):
        for wrong in WRONG:
            yield f"{path} = {wrong!r}", changed(_with, path, wrong)
        if path:
            yield f"{path} dropped", changed(_without, path)
        if isinstance(inside := _at(value, path), dict):
            yield f"{path} with more", changed(_with, path, {**inside, "an unknown key": 1})


def damaged_bytes(content: bytes, count: int = 60) -> Changes:
    """Cut off, with other bits, with bytes put in or taken out; the start is hit most often."""
    draw = random.Random(len(content))
    changes = {
        "empty": b"", "nested": NESTED.encode(), "not UTF-8": b"\xff\xfe" + content,
        "zeros": bytes(len(content)), "twice": content + content,
    }  # fmt: skip
    for _ in range(count):
        place = min(draw.randrange(len(content)), draw.randrange(len(content)))
        before, after, bit = content[:place], content[place + 1 :], 1 << draw.randrange(8)
        changes[f"cut off at {place}"] = before
        changes[f"bit {bit} of {place}"] = before + bytes([content[place] ^ bit]) + after
        changes[f"without {place}"] = before + after
        changes[f"more at {place}"] = before + draw.randbytes(3) + content[place:]
    for name, changed in changes.items():
        yield name, lambda changed=changed: changed  # type: ignore[misc]


def changed_tensors(content: bytes) -> Changes:
    """Every tensor missing, of another shape or dtype, or with values that are not finite."""
    tensors, metadata = load(content), _metadata(content)

    def exchanged(name: str, change: Callable[[Tensor], Tensor] | None) -> Callable[[], bytes]:
        rest = {n: t for n, t in tensors.items() if n != name}
        if change is None:
            return lambda: save(rest, metadata=metadata)
        return lambda: save({**rest, name: change(tensors[name]).contiguous()}, metadata=metadata)

    for name in _ends(list(tensors), 9):
        for what, change in _TENSOR_CHANGES.items():
            yield f"{name} {what}", exchanged(name, change)
    yield "one more", lambda: save({**tensors, "unknown": torch.ones(2)}, metadata=metadata)
    yield "none", lambda: save({}, metadata=metadata)


_FIRST = torch.tensor([0])
_TENSOR_CHANGES: dict[str, Callable[[Tensor], Tensor] | None] = {
    "missing": None,
    "longer": lambda t: torch.cat([t.flatten(), t.flatten()]),
    "with an axis more": lambda t: t[None],
    "empty": lambda t: t.new_zeros(0),
    **{f"all {v}": lambda t, v=v: torch.full_like(t.float(), v).to(t.dtype) for v in (-1, 99)},
    **{
        str(dtype): lambda t, dtype=dtype: t.to(dtype)
        for dtype in (torch.int64, torch.int8, torch.float64, torch.float16, torch.bool,
                      torch.complex64, torch.float8_e4m3fn, torch.uint16)
    },
    **{
        f"with {v}": lambda t, v=v: t.double().flatten().index_fill(0, _FIRST, v).view_as(t).to(t)
        for v in (math.nan, math.inf, -math.inf)
    },
}  # fmt: skip


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    keys = list(value) if isinstance(value, dict) else []
    if isinstance(value, list):
        keys = list(range(len(value)))
    for key in _ends(keys):
        yield from _paths(value[key], (*path, key))


def _ends(keys: list[Any], most: int = 40) -> list[Any]:
    """All keys, or the first and the last where there are many alike."""
    numbers = bool(keys) and isinstance(keys[0], int)
    most = 3 if numbers else most
    return keys if len(keys) <= most else [*keys[: most - 1], keys[-1]]


def _at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _with(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    result = copy.deepcopy(value)
    _at(result, path[:-1])[path[-1]] = other
    return result


def _without(value: Any, path: tuple[Any, ...]) -> Any:
    result = copy.deepcopy(value)
    del _at(result, path[:-1])[path[-1]]
    return result
