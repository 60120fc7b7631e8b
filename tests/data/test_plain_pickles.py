"""Pickles without ``pickle``: CIFAR's files are read, everything else is refused quickly."""

import pickle
import struct

import numpy as np
import pytest

import neural_similarity as ns
from neural_similarity.data import load_dataset
from neural_similarity.data.sets import _pickles
from neural_similarity.data.sets._pickles import read_plain_pickle

NUMBERS = np.arange(6).reshape(2, 3)
ARRAY = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85U\x01btR"


def dtype(name, flags=b"K\x00", order=b"|"):
    """The instructions for a dtype with its state, whose last part are its flags."""
    state = b"(K\x03U\x01" + order + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xff" + flags + b"tb"
    return b"cnumpy\ndtype\n(U" + bytes([len(name)]) + name + b"\x89\x88tR" + state


def array(shape, kind, content):
    """The instructions for an array."""
    text = b"T" + struct.pack("<i", len(content)) + content
    return ARRAY + b"(K\x01" + shape + kind + b"\x89" + text + b"tb"


def holding(value):
    """A dictionary with one entry."""
    return b"\x80\x02}U\x04data" + value + b"s."


def read(tmp_path, content):
    path = tmp_path / "batch"
    path.write_bytes(content)
    return read_plain_pickle(path)


@pytest.mark.parametrize("protocol", range(5))
def test_what_cifar_holds_is_read(tmp_path, protocol):
    content = {
        "data": NUMBERS.astype(np.uint8), "labels": [3, 1], "filenames": ["a", "é"], "none": None,
        "columns": np.asfortranarray(NUMBERS.astype("f4")), "swapped": NUMBERS.astype(">i4"),
        "share": 0.5, "yes": True, "nothing": [], "raw": b"\xff\x00", "many": 2**40,
    }  # fmt: skip
    got = read(tmp_path, pickle.dumps(content, protocol))
    assert got.keys() == content.keys()
    for name, value in content.items():
        assert type(got[name]) is type(value)
        assert np.array_equal(got[name], value)
    assert got["swapped"].dtype == np.dtype(">i4")


def test_what_python_2_wrote_is_read(tmp_path):
    content = array(b"K\x02K\x02\x86", dtype(b"u1"), bytes([1, 2, 254, 255]))
    assert read(tmp_path, holding(content))["data"].tolist() == [[1, 2], [254, 255]]
    words = b"(dp1\nS'label_names'\np2\n(lp3\nS'cat'\np4\naS'dog'\np5\nasS'cases'\np6\nI10000\ns."
    assert read(tmp_path, words) == {"label_names": ["cat", "dog"], "cases": 10000}


@pytest.mark.parametrize(
    ("content", "reason"),
    {
        "addresses of objects": (
            array(b"K\x01\x85", dtype(b"O8"), b"A" * 8),
            "dtype 'O8' is not allowed",
        ),
        "fields": (array(b"K\x01\x85", dtype(b"V8"), b"A" * 8), "dtype 'V8' is not allowed"),
        "a dtype's name as a list": (b"cnumpy\ndtype\n(]tR", "list in a tuple is not allowed"),
        "an order of bytes": (
            array(b"K\x01\x85", dtype(b"u1", order=b"O"), b"A"),
            "byte order 'O' is not allowed",
        ),
        "too few bytes": (array(b"K\x09\x85", dtype(b"u1"), b"A" * 8), "with 8 bytes"),
        "a negative side": (
            array(b"J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86", dtype(b"u1"), b"A"),
            "an array without a shape",
        ),
        "no values": (ARRAY, "an array without values"),
        "another class": (ARRAY.replace(b"cnumpy\nndarray\n", b"N"), "another class"),
        "state of a function": (b"cnumpy\ndtype\n}b", "the state of _Function is not allowed"),
        "state of a list": (b"]}b", "the state of list is not allowed"),
        "a call of a word": (b"U\x01a)R", "something other than a function"),
        "an object": (b"cnumpy\nndarray\n)\x81", "the instruction NEWOBJ is not allowed"),
        "a copy": (b"]2", "the instruction DUP is not allowed"),
        "a list in a list": (b"]]a", "list in a list is not allowed"),
        "a dictionary in itself": (b"}q\x00U\x01ah\x00s", "dict in a dictionary is not allowed"),
        "a long tuple": (b"(" + b"N" * 99 + b"t", "a tuple of 99 values is not allowed"),
        "a key of tuples": (b"})Ns", "tuple in a dictionary is not allowed"),
        "nothing to append to": (b"N", "cannot be read"),
        "more marks than values": (b"(((", "cannot be read"),
    }.values(),
)
def test_everything_else_is_refused(content, reason, tmp_path):
    with pytest.raises(ns.DataError, match=f"batch: expected a pickle .*{reason}"):
        read(tmp_path, holding(content) if content != b"N" else b"\x80\x02Na.")


def test_flags_of_a_dtype_are_ignored(tmp_path):
    flags = b"K\x3f"  # every flag: has objects, needs initialisation, ...
    got = read(tmp_path, holding(array(b"K\x01\x85", dtype(b"u8", flags), b"A" * 8)))["data"]
    assert got.dtype == np.dtype("u8")
    assert not got.dtype.hasobject


@pytest.mark.parametrize(
    "content",
    [
        holding(b"]" * 20_000 + b"a" * 19_999),
        holding(b"(l" * 20_000 + b"a" * 19_999),
        holding(b")" + b"\x85" * 1_000_000),
        b"\x80\x02}" + b")" + b"\x85" * 1_000_000 + b"Ns.",  # the hash of a key
        # Thirty times a list of ten of the list before.
        holding(b"](" + b"U\x01a" * 10 + b"e" + b"".join(
            b"q%c](" % n + b"h%c" % n * 10 + b"e" for n in range(30)
        )),
        # The same with tuples.
        holding(b")" + b"".join(b"q%c(" % n + b"h%c" % n * 10 + b"t" for n in range(30))),
        b"\x80\x02}r\xff\xff\xff\xff2.",  # a place in the memo that would take 64 GB
        holding(b"\x8e" + struct.pack("<q", 2**40) + b"A"),  # a terabyte of bytes
        holding(b"T" + struct.pack("<i", 2**31 - 1) + b"A"),
        holding(array(b"\x8a\x08" + struct.pack("<q", 2**62) + b"K\x00\x86", dtype(b"u1"), b"A")),
        holding(b"L" + b"9" * 1_000_000 + b"L\n"),
    ],
    ids=["nested", "nested-0", "tuples", "key", "shared", "shared-tuples", "memo", "bytes", "text",
         "shape", "digits"],
)  # fmt: skip
def test_bombs_are_defused(content, tmp_path):
    with pytest.raises(ns.DataError, match=r"batch: expected a pickle .*one that cannot be read"):
        read(tmp_path, content)


def test_the_length_of_a_frame_is_ignored(tmp_path):
    assert read(tmp_path, b"\x80\x04\x95" + struct.pack("<q", 2**62) + b"}.") == {}


def test_instructions_are_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(_pickles, "_MOST_INSTRUCTIONS", 1000)
    assert len(read(tmp_path, holding(b"](" + b"N" * 900 + b"e"))["data"]) == 900
    with pytest.raises(ns.DataError, match="more than 1,000 instructions is not allowed"):
        read(tmp_path, holding(b"](" + b"N" * 1000 + b"e"))


def test_large_files_are_not_read(tmp_path):
    path = tmp_path / "batch"
    with path.open("wb") as file:
        file.truncate(2**40)  # has a terabyte, and takes no space
    with pytest.raises(ns.DataError, match="a file of 1,099,511,627,776 bytes is not allowed"):
        read_plain_pickle(path)


@pytest.mark.parametrize("names", [[3] * 10, [None] * 10, [b"a"] * 10])
def test_names_of_classes_are_words(names, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    batch = {"data": np.zeros((1, 3072), np.uint8), "labels": [0]}
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(pickle.dumps(batch, 2))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}, 2))
    with pytest.raises(ns.DataError, match=r"batches\.meta: expected 'label_names' to list words"):
        load_dataset("cifar10", "test", tmp_path)


def test_text_that_grows_without_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(_pickles, "_MOST_BYTES", 50_000)
    text = "x" * 10_000
    encode = b"c_codecs\nencode\n(h\x00X\x06\x00\x00\x00latin1tR"
    first = b"X" + struct.pack("<I", len(text)) + text.encode() + b"q\x00"
    with pytest.raises(ns.DataError, match="text of more than 50,000 bytes is not allowed"):
        read(tmp_path, b"\x80\x02" + first + encode * 6 + b"}.")
