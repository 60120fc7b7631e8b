"""JSON files: within limits, of the right types, or an error that names file and key."""

import json
import math
import os
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from neural_similarity import _json
from neural_similarity._json import (
    Count,
    MaybeInfinite,
    Share,
    Side,
    build,
    parse_json,
    read_json,
    read_json_lines,
)
from neural_similarity.errors import DataError, RunError


@dataclass(frozen=True)
class Inner:
    size: Side
    class_: str = field(default="x", metadata={"key": "class"})


@dataclass(frozen=True)
class Outer:
    step: Count
    inner: Inner
    rate: float = 0.5
    best: MaybeInfinite = math.inf
    share: Share | None = None
    mode: Literal["a", "b", 3] = "a"
    pair: tuple[int, float] = (1, 2.0)
    names: list[str] = field(default_factory=list)
    label: str | int = ""
    anything: Any = None

    def __post_init__(self):
        if self.rate < 0:
            raise DataError("expected rate of at least 0")


GOOD = {"step": 3, "inner": {"size": 2, "class": "Conv2d"}}


def test_a_value_becomes_its_dataclass():
    value = {**GOOD, "rate": 1, "best": math.inf, "share": 1, "mode": 3, "pair": [4, 5], "label": 7,
             "names": ["é"], "anything": {"x": [None]}}  # fmt: skip
    built = build(Outer, json.loads(json.dumps(value)), "file", RunError)
    inner = Inner(2, "Conv2d")
    expected = Outer(3, inner, 1.0, math.inf, 1.0, 3, (4, 5.0), ["é"], 7, {"x": [None]})
    assert built == expected
    assert type(built.rate) is float
    assert build(Outer, GOOD, "file", RunError).names == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step": "three"}, "file: expected 'step' to be an integer, got 'three'. Do it again."),
        ({"step": -1}, "expected 'step' to be an integer of at least 0, got -1"),
        ({"step": True}, "expected 'step' to be an integer, got True"),
        ({"step": 1.0}, "expected 'step' to be an integer, got 1.0"),
        ({"step": 2**63}, "expected 'step' to be an integer, got 9223372036854775808"),
        ({"rate": math.nan}, "expected 'rate' to be a finite number, got nan"),
        ({"rate": math.inf}, "expected 'rate' to be a finite number, got inf"),
        ({"rate": 10**400}, "expected 'rate' to be a finite number, got 10000"),
        ({"rate": False}, "expected 'rate' to be a finite number, got False"),
        ({"rate": -1}, "the content to be valid, got .*expected rate of at least 0"),
        ({"best": math.nan}, "expected 'best' to be a number, got nan"),
        ({"share": 1.5}, "expected 'share' to be a number from 0 to 1, got 1.5"),
        ({"mode": "c"}, "expected 'mode' to be 'a' or 'b' or 3, got 'c'"),
        ({"mode": 3.0}, "expected 'mode' to be 'a' or 'b' or 3, got 3.0"),
        ({"pair": [1]}, r"expected 'pair' to be a list of 2 values, got \[1\]"),
        ({"pair": [1, None]}, "expected 'pair.1' to be a finite number, got None"),
        ({"names": "abc"}, "expected 'names' to be a list, got 'abc'"),
        ({"names": ["a", 1]}, "expected 'names.1' to be text, got 1"),
        ({"label": None}, "expected 'label' to be text or an integer, got None"),
        ({"inner": []}, r"expected 'inner' to be an object, got \[\]"),
        ({"inner": {"size": 0}}, "expected 'inner.size' to be an integer from 1 to 65536, got 0"),
        ({"inner": {"class": ""}}, r"expected 'inner.size' to be present, got \{'class': ''\}"),
        ({"other\x1b": 1}, r"to have only 'step', 'inner', .*, got 'other\\x1b' as well"),
        ({"names": ["x" * 999, 1]}, "got 1"),
        ({"step": "x" * 999}, "got 'x{59}…"),
    ],
)
def test_what_is_wrong_is_named(change, message):
    with pytest.raises(RunError, match=message) as caught:
        build(Outer, {**GOOD, **change}, "file", RunError, "Do it again.")
    assert str(caught.value).endswith("Do it again.")


def test_other_keys_may_be_allowed():
    assert build(Inner, {"size": 1, "new": 2}, "file", RunError, others=True) == Inner(1)


@pytest.mark.parametrize("text", ["", "{", "[" * 10**6, "1 2", b"\xff", "1" * 5000])
def test_damaged_text_is_an_error_of_the_caller(text):
    with pytest.raises(DataError, match=r"^here: expected JSON, got damaged text"):
        parse_json(text, "here", DataError)


def test_nesting_has_a_limit():
    assert parse_json("[" * 63 + "]" * 63, "here", DataError)
    with pytest.raises(DataError, match="here: expected JSON of at most 64 levels"):
        parse_json("[" * 80 + "]" * 80, "here", DataError)


def test_files(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    file.write_text("[1, 2]")
    assert read_json(file, list[int], RunError) == [1, 2]
    with pytest.raises(RunError, match=r"a\.json: expected '0' to be text, got 1"):
        read_json(file, list[str], RunError)
    with pytest.raises(RunError, match=r"none: expected a file, got No such file"):
        read_json(tmp_path / "none", list[int], RunError)
    with pytest.raises(RunError, match="expected a file, got a folder, not a regular file"):
        read_json(tmp_path, list[int], RunError)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(RunError, match="expected a file, got a named pipe, not a regular file"):
        read_json(tmp_path / "pipe", list[int], RunError)
    monkeypatch.setattr(_json, "_LARGEST", 5)
    with pytest.raises(RunError, match="expected a file, got a file of more than 5 bytes"):
        read_json(file, list[int], RunError)


def test_lines(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"a": 1}\n{}\n{"torn": ')
    assert read_json_lines(file, RunError) == [{"a": 1}, {}]
    file.write_text('{"a": 1}\n7\n')
    with pytest.raises(RunError, match=r"a\.jsonl, line 2: expected the content to be an object"):
        read_json_lines(file, RunError)
