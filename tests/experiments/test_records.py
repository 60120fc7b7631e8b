"""Result files: never overwritten, never half written; and the commit that they name."""

import errno
import os

import pytest

from experiments.code_version import commit
from experiments.records import as_columns, read_record, write_record
from neural_similarity.errors import FileFormatError


def test_the_commit_of_another_library_is_unknown(monkeypatch):
    monkeypatch.setattr("experiments.code_version.code_version", lambda: "abc")
    assert commit() == "abc"
    monkeypatch.setattr("neural_similarity.__file__", "/elsewhere/neural_similarity/__init__.py")
    assert commit() == "unknown"


def test_a_full_disk_leaves_nothing_behind(tmp_path, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no room"):
        write_record(tmp_path / "a.json", {"error": 0.5})
    assert list(tmp_path.iterdir()) == []


def test_columns_of_a_kind_have_the_same_length():
    lines = [
        {"kind": "train", "step": 1, "loss": 0.1234567},
        {"kind": "eval", "step": 1},
        {"kind": "train", "step": 2, "lr": 0.5},
    ]
    assert as_columns(lines) == {
        "train": {"step": [1, 2], "loss": [0.12346, None], "lr": [None, 0.5]},
        "eval": {"step": [1]},
    }


@pytest.mark.parametrize("links", [True, False], ids=["with links", "without"])
def test_a_result_is_never_overwritten(links, tmp_path, monkeypatch):
    def no_links(source, target):
        raise PermissionError(errno.EPERM, "no hard links here")

    if not links:
        monkeypatch.setattr(os, "link", no_links)
    file = tmp_path / "a" / "b.json"
    write_record(file, {"error": 0.5})
    with pytest.raises(FileExistsError, match=r"b\.json: expected no result yet, got one\."):
        write_record(file, {"error": 0.1})
    assert read_record(file) == {"error": 0.5}
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("text", ["null", "[1]", '{"error": 0.', ""])
def test_a_damaged_result_is_not_taken_for_a_missing_one(text, tmp_path):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"a\.json: expected .* Move the file away"):
        read_record(tmp_path / "a.json")
