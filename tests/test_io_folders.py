"""Files and folders written completely or not at all: stopped at any step, nothing is lost."""

import itertools
import shutil
import signal
from contextlib import nullcontext
from pathlib import Path

import pytest
from attacks import swaps
from support.folder_content import Interrupted, leftovers, read, write
from support.forks import Stop

from neural_similarity import _io

OLD, NEW = swaps.OLD, swaps.NEW


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
