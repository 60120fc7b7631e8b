"""Every input file may be damaged or forged: it is read, or refused with one of our errors."""

import os
import signal
import socket
import traceback
from itertools import chain

import pytest
from attacks.file_kinds import KINDS
from attacks.files import changed_tensors, changed_values, damaged_bytes

from neural_similarity.errors import NeuralSimilarityError


@pytest.fixture
def place(name, tmp_path, monkeypatch):
    if KINDS[name].cached:
        monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.mark.parametrize("name", KINDS)
def test_changed_files(name, place, chosen):
    kind = KINDS[name]
    file = kind.make(place)
    content = file.read_bytes()
    kind.load(place)  # as it is, it can be read
    cases = chain(
        changed_values(kind.codec, content) if kind.codec else (),
        changed_tensors(content) if kind.tensors else (),
        damaged_bytes(content, kind.bytes),
    )
    failures = []
    for case, changed in chosen(cases, sample=12):
        file.write_bytes(changed())
        if (failure := attempt(kind.load, place)) is not None:
            failures.append(f"{case}: {failure}")
    assert not failures, f"{len(failures)} of {name}:\n" + "\n".join(failures[:30])


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_regular_file(name, place, chosen, monkeypatch):
    kind = KINDS[name]
    file = kind.make(place)
    monkeypatch.chdir(file.parent)  # the path of a socket must be short
    makers = {
        "a named pipe": lambda: os.mkfifo(file.name),
        "a socket": lambda: _make_socket(file.name),
        "a device": lambda: file.symlink_to("/dev/zero"),
        "a folder": file.mkdir,
        "a link to itself": lambda: file.symlink_to(file.name),
        "a link to nothing": lambda: file.symlink_to("nothing"),
    }
    for case in chosen(makers, sample=2):
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)
        makers[case]()
        assert attempt(kind.load, place, OSError) is None, case


def _make_socket(name):
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(name)


def attempt(load, place, *also):
    """None if the load ends well or with an error of ours within seconds; else what happened."""
    signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(60)
    try:
        load(place)
    except (NeuralSimilarityError, *also) as error:
        return None if str(error).strip() else "an error without a message"
    except Exception:
        return "".join(traceback.format_exc(limit=-3))
    finally:
        signal.alarm(0)
    return None


def _too_long(*_):
    raise TimeoutError("it does not end")
