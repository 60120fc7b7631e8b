"""Files and folders written completely or not at all: stopped at any step, nothing is lost."""

import itertools
import os
import shutil
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from attacks import swaps
from support.forks import Stop

from neural_similarity import _io

OLD, NEW = swaps.OLD, swaps.NEW


class Interrupted(BaseException):
    """Stands for Ctrl-C."""


def write(folder, content):
    folder.mkdir(exist_ok=True)
    for name, text in content.items():
        (folder / name).write_text(text)


def read(folder):
    return {path.name: path.read_text() for path in _io.foreign_entries(folder)}


def leftovers(folder):
    return list(folder.rglob(".nsl-*"))


@pytest.fixture(params=["exchange", "file by file", "somebody stands in it"])
def way(request, monkeypatch, tmp_path):
    """Each way in which two folders are swapped."""
    if request.param == "file by file":
        monkeypatch.setattr(_io.folders, "exchange", lambda new, old: False)
    if request.param == "somebody stands in it":
        (tmp_path / "out").mkdir()
        monkeypatch.chdir(tmp_path / "out")
    return request.param


def test_a_folder_is_replaced_whole(way, tmp_path):
    out = tmp_path / "out"
    write(out, OLD)
    inode = out.stat().st_ino
    with _io.whole_folder(out) as folder:
        write(folder, NEW)
        assert read(out) == OLD
    assert read(out) == NEW
    assert leftovers(tmp_path) == []
    assert (out.stat().st_ino == inode) == (way != "exchange")  # who stands in it stays in it


def test_a_new_folder(tmp_path):
    with _io.whole_folder(tmp_path / "a" / "b") as folder:
        write(folder, NEW)
        assert not (tmp_path / "a" / "b").exists()
    assert read(tmp_path / "a" / "b") == NEW
    assert leftovers(tmp_path) == []


def test_a_block_that_fails_changes_nothing(way, tmp_path):
    out = tmp_path / "out"
    write(out, OLD)

    def fail():
        with _io.whole_folder(out) as folder:
            write(folder, NEW)
            raise Interrupted

    with pytest.raises(Interrupted):
        fail()
    assert read(out) == OLD
    assert leftovers(tmp_path) == []


def test_a_link_to_a_folder_stays_a_link(tmp_path):
    write(tmp_path / "real", OLD)
    (tmp_path / "out").symlink_to("real")
    with _io.whole_folder(tmp_path / "out") as folder:
        write(folder, NEW)
    assert (tmp_path / "out").is_symlink()
    assert read(tmp_path / "real") == NEW


@pytest.mark.parametrize("error", [Interrupted, OSError])
@pytest.mark.parametrize("step", range(10))
def test_interrupted_at_any_step_of_a_swap(way, step, error, tmp_path, monkeypatch):
    """A swap file by file takes up to ten moves: Ctrl-C, or a refusal by the disk, at each."""
    out, moves, rename = tmp_path / "out", 0, Path.rename
    write(out, OLD)

    def interrupted(self, target):
        nonlocal moves
        moves += 1
        if moves == step + 1:
            raise error(5, "refused")
        return rename(self, target)

    def swap():
        with _io.whole_folder(out) as folder:
            write(folder, NEW)
            monkeypatch.setattr(Path, "rename", interrupted)

    if way == "exchange":
        swap()
    else:
        # The new folder, the mark, the old files, the mark again, the new files.
        steps = 2 + len(OLD) + 1 + len(NEW)
        if step < steps:
            with pytest.raises(error):
                swap()
        else:
            swap()
    monkeypatch.setattr(Path, "rename", rename)
    assert read(out) in (OLD, NEW)
    if error is OSError and way != "exchange" and step < 9:
        assert read(out) == OLD
    assert leftovers(tmp_path) == []


def swapped_until(forks, way, out, step):
    """A process that swaps a folder and is killed at a change of the disk; None: not at all."""
    stop = Stop("change", step)
    words = ("folder", way, False, out.parent, out)
    return forks.call("attacks.swaps:replace", *words, cwd=out.parent, stop=stop)


@pytest.mark.parametrize("way", swaps.WAYS)
def test_killed_at_any_step_of_a_swap(way, tmp_path, forks):
    out, seen = tmp_path / "out", []
    for step in itertools.count(1):
        write(out, OLD)
        ended = swapped_until(forks, way, out, step)
        if ended.code == 0:
            break
        assert ended.code == -signal.SIGKILL
        _io.settle(out)
        seen.append(NEW if "only-new" in read(out) else OLD)
        assert read(out) == seen[-1]
        with _io.whole_folder(out) as folder:
            write(folder, NEW)
        assert read(out) == NEW
        assert leftovers(tmp_path) == []
        shutil.rmtree(out)
    assert {OLD["model"], NEW["model"]} == {files["model"] for files in seen}
    assert [files["model"] for files in seen] == sorted((f["model"] for f in seen), reverse=True)


def test_a_torn_list_of_names_is_no_swap(tmp_path):
    """A kill while the journal was being written: nothing was swapped yet."""
    out = tmp_path / "out"
    write(out, OLD)
    journal = out / ".nsl-swap-x"
    (journal / "new").mkdir(parents=True)
    (journal / "names").write_text('{"old": ["mod')
    _io.settle(out)
    assert read(out) == OLD
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    "mark",
    [
        '{"old": ["../important"], "new": []}', '{"old": ["/important"], "new": []}',
        '{"old": [".."], "new": []}', '{"old": ["model", 3], "new": []}', '{"old": "model"}',
        '{"old": [""], "new": []}', '["model"]', "[" * 100_000, "no JSON", "\x80",
    ],
)  # fmt: skip
def test_the_journal_of_a_stranger_takes_nothing_from_elsewhere(mark, tmp_path):
    write(tmp_path / "important", OLD)
    out = tmp_path / "out"
    write(out, OLD)
    journal = out / ".nsl-swap-x"
    (journal / "new").mkdir(parents=True)
    (journal / "old").mkdir()
    (journal / "take-old-out").write_bytes(mark.encode("latin-1"))
    with pytest.raises(OSError, match=r"expected what an interrupted.* in \.nsl-swap-x may hold"):
        _io.settle(out)
    assert read(tmp_path / "important") == read(out) == OLD


@pytest.mark.parametrize("linked", ["new", "old", ""])
@pytest.mark.parametrize("mark", ["take-old-out", "put-new-in"])
def test_links_in_the_journal_of_a_stranger_are_not_followed(linked, mark, tmp_path):
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    write(elsewhere, {"theirs": "stays"})
    write(out, OLD)
    journal = out / ".nsl-swap-x"
    real = journal if linked else tmp_path / "journal"
    for name in {"new", "old"} - {linked}:
        (real / name).mkdir(parents=True)
    (real / mark).write_text('{"old": ["model"], "new": []}')
    (journal / linked if linked else journal).symlink_to(elsewhere if linked else real)
    with pytest.raises(OSError, match="expected what an") if linked else nullcontext():
        _io.settle(out)  # a journal that is a link is not one of ours
    assert (read(elsewhere), read(out)) == ({"theirs": "stays"}, OLD)
    assert (real / mark).exists()


def test_a_folder_that_another_process_has_is_not_replaced(way, tmp_path):
    out = tmp_path / "out"
    write(out, OLD)

    def swap():
        with _io.whole_folder(out) as folder:
            write(folder, NEW)

    with _io.locked(out), pytest.raises(OSError, match="another process is writing to this folder"):
        swap()
    assert read(out) == OLD
    swap()
    assert read(out) == NEW
    assert leftovers(tmp_path) == []


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


def test_errors_name_what_the_user_knows(way, tmp_path):
    out = tmp_path / "out"
    write(out, OLD)

    def full(folder):
        raise OSError(28, "No space left on device", str(folder))

    def write_folder():
        with _io.whole_folder(out) as folder, _io.whole_file(folder / "model") as file:
            full(file)

    def write_one():
        with _io.whole_file(out / "model") as file:
            full(file)

    for attempt in (write_folder, write_one):
        with pytest.raises(OSError, match="No space left") as error:
            attempt()
        assert error.value.filename == str(out / "model")


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


def test_what_appears_meanwhile_is_checked_before_the_swap(tmp_path):
    out = tmp_path / "out"

    def check():
        if out.exists():
            raise FileExistsError(str(out))

    def swap():
        with _io.whole_folder(out, check) as folder:
            write(folder, NEW)
            write(out, OLD)  # by another program, while ours was at work

    with pytest.raises(FileExistsError):
        swap()
    assert read(out) == OLD


def test_files_of_others_survive_the_end_of_an_interrupted_swap(tmp_path, forks):
    out = tmp_path / "out"
    for step in itertools.count(1):
        write(out, OLD)
        ended = swapped_until(forks, "files", out, step)
        if ended.code == 0:
            break
        (out / "notes").write_text("mine")
        _io.settle(out)
        assert read(out) in ({**OLD, "notes": "mine"}, {**NEW, "notes": "mine"})
        shutil.rmtree(out)


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
