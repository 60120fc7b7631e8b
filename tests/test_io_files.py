"""Files written completely or not at all, locks, and the cache directory."""

import os
import subprocess
import sys

import pytest
from attacks import swaps
from support.folder_content import Interrupted, leftovers, read, write

from neural_similarity import _io

OLD, NEW = swaps.OLD, swaps.NEW


def test_locks_are_not_passed_on_to_forked_processes(tmp_path):
    """A worker that lives a little longer than its run must not keep the run's folder locked."""
    (ready, says_ready), (waits, release) = os.pipe(), os.pipe()
    with _io.locked(tmp_path) as mine:
        assert mine
        child = os.fork()
        if child == 0:
            os.close(release)
            os.write(says_ready, b"x")
            os.read(waits, 1)  # until the parent closes its end
            os._exit(0)
        os.read(ready, 1)
        with _io.locked(tmp_path) as other:
            assert not other  # the child has not unlocked it
    with _io.locked(tmp_path) as again:
        is_free = again
    os.close(release)
    assert os.waitpid(child, 0)[1] == 0
    assert is_free
    for handle in (ready, says_ready, waits):
        os.close(handle)


def test_a_shared_lock(tmp_path):
    with _io.locked(tmp_path, shared=True) as one, _io.locked(tmp_path, shared=True) as two:
        assert (one, two) == (True, True)
        with _io.locked(tmp_path) as alone:
            assert not alone


def test_a_folder_that_is_replaced_while_it_is_locked(tmp_path, monkeypatch):
    """Between opening and locking, another process replaced it: the new one is locked."""
    out, lock = tmp_path / "out", _io.locks._lock
    write(out, OLD)

    def replaced(handle, shared):
        if "only-old" in read(out):
            out.rename(tmp_path / "away")
            write(out, NEW)
        return lock(handle, shared)

    monkeypatch.setattr(_io.locks, "_lock", replaced)
    with _io.locked(out) as mine:
        monkeypatch.undo()
        assert mine
        with _io.locked(out) as other, _io.locked(tmp_path / "away") as away:
            assert (other, away) == (False, True)


def test_a_file_that_must_be_new(tmp_path):
    _io.write_file(tmp_path / "file", b"first", overwrite=False)
    with pytest.raises(FileExistsError, match="expected a new file, got one that exists"):
        _io.write_file(tmp_path / "file", b"second", overwrite=False)
    assert (tmp_path / "file").read_bytes() == b"first"
    assert leftovers(tmp_path) == []


def test_scratch_of_a_living_process_is_left_alone(tmp_path):
    with _io.scratch_folder(tmp_path) as mine:
        (mine / "half").write_text("written")
        _io.settle(tmp_path)
        with _io.whole_file(tmp_path / "other") as file:
            file.write_text("whole")
        assert (mine / "half").read_text() == "written"
    assert leftovers(tmp_path) == []


def test_a_file_is_replaced_whole(tmp_path):
    target = tmp_path / "file"
    target.write_text("old")

    def fail():
        with _io.whole_file(target) as file:
            file.write_text("half of the n")
            raise Interrupted

    with pytest.raises(Interrupted):
        fail()
    assert target.read_text() == "old"
    _io.write_file(target, b"new")
    assert target.read_text() == "new"
    assert oct(target.stat().st_mode)[-3:] == oct(0o666 & ~_umask())[-3:]
    assert leftovers(tmp_path) == []
    with pytest.raises(FileNotFoundError, match="no such folder"):
        _io.write_file(tmp_path / "nowhere" / "file", b"")


def test_a_lock_is_held_by_one(tmp_path):
    with _io.locked(tmp_path) as first, _io.locked(tmp_path) as second:
        assert (first, second) == (True, False)
    with _io.locked(tmp_path) as again:
        assert again


def _umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


RACE = """
import sys
from pathlib import Path
from neural_similarity import _io
for n in range(150):
    _io.write_file(Path(sys.argv[1]) / sys.argv[2], b"x" * n)
"""


def test_many_processes_write_to_one_folder_and_leave_nothing_else(tmp_path):
    command = [sys.executable, "-c", RACE, str(tmp_path)]
    processes = [subprocess.Popen([*command, name]) for name in "abc"]
    assert [process.wait() for process in processes] == [0, 0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "c"]


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    """Network file systems refuse such locks; writing works there, and nothing is cleaned up."""

    def refused(handle, operation):
        raise OSError(9, "Bad file descriptor")

    monkeypatch.setattr(_io.locks.fcntl, "flock", refused)
    (tmp_path / ".nsl-scratch-other").mkdir()  # perhaps of a process on another machine
    _io.write_file(tmp_path / "file", b"new")
    write(tmp_path / "out", OLD)
    with _io.whole_folder(tmp_path / "out") as folder:
        write(folder, NEW)
    assert read(tmp_path / "out") == NEW
    assert leftovers(tmp_path) == [tmp_path / ".nsl-scratch-other"]


def test_a_folder_in_place_of_a_file(tmp_path):
    with pytest.raises(IsADirectoryError, match="expected a file, got a folder"):
        _io.write_file(tmp_path, b"")


def test_a_user_without_a_home_is_asked_for_a_cache(monkeypatch, tmp_path):
    for name in ("NEURAL_SIMILARITY_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as without an entry of passwd
    with pytest.raises(OSError, match=r"expected a home folder.* set NEURAL_SIMILARITY_CACHE"):
        _io.cache_directory()
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(tmp_path))
    assert _io.cache_directory() == tmp_path


def test_the_cache_may_be_below_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", "~/x")
    assert _io.cache_directory() == tmp_path / "x"
