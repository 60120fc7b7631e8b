"""The compiled operator in its cache: who could have written it, and what if it is broken."""

from __future__ import annotations

import hashlib
import os
import stat
import warnings
from pathlib import Path

import pytest
import torch

from neural_similarity import _io
from neural_similarity.ops.similarity_conv import compiled, trusted_files

pytestmark = pytest.mark.skipif(os.name != "posix", reason="owners and modes of files")
STRANGER = 12345
AS_ROOT = pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away"
)


class Machine:
    """A compiler and a loader that only write down what they are asked."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.built, self.loaded = folder, 0, 0
        self.broken: set[bytes] = set()

    def build(self, path: Path, flags: tuple[str, ...]) -> None:
        self.built += 1
        self.write(path, b"built %d" % self.built)

    def write(self, path: Path, content: bytes) -> None:
        path.write_bytes(content)
        path.with_suffix(".sha256").write_text(hashlib.sha256(content).hexdigest())
        for file in (path, path.with_suffix(".sha256")):
            file.chmod(0o644)

    def load(self, path: str) -> None:
        content = Path(path).read_bytes()
        if content in self.broken or b"all" in self.broken:
            raise OSError(f"{path}: invalid ELF header")
        self.loaded += 1

    def run(self) -> None:
        """What a new process does."""
        compiled._load_library()

    @property
    def library(self) -> Path:
        return next(self.folder.glob("*.so"))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    machine = Machine(tmp_path / "a" / "cache")
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(machine.folder))
    monkeypatch.setattr(compiled, "_build", machine.build)
    monkeypatch.setattr(torch.ops, "load_library", machine.load)
    return machine


def test_the_folder_is_created_for_this_user_alone(machine: Machine) -> None:
    before = os.umask(0)
    try:
        machine.run()
    finally:
        os.umask(before)
    for folder in (machine.folder, machine.folder.parent):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    machine.run()
    assert (machine.built, machine.loaded) == (1, 2)


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777, 0o1777])
def test_a_folder_that_others_may_write(machine: Machine, mode: int) -> None:
    machine.run()
    machine.folder.chmod(mode)
    with pytest.raises(OSError, match=f"^{machine.folder}: .* others may write to it"):
        machine.run()
    assert machine.loaded == 1


@pytest.mark.parametrize("suffix", [".so", ".sha256"])
@pytest.mark.parametrize("mode", [0o664, 0o646])
def test_a_file_that_others_may_write(machine: Machine, suffix: str, mode: int) -> None:
    machine.run()
    file = machine.library.with_suffix(suffix)
    file.chmod(mode)
    with pytest.raises(OSError, match=f"^{file}: .* others may write to it"):
        machine.run()
    assert (machine.built, machine.loaded) == (1, 1)


@AS_ROOT
@pytest.mark.parametrize("what", ["folder", "parent", ".so", ".sha256"])
def test_what_belongs_to_another_user(machine: Machine, what: str) -> None:
    machine.run()
    places = {"folder": machine.folder, "parent": machine.folder.parent}
    place = places.get(what) or machine.library.with_suffix(what)
    os.chown(place, STRANGER, -1)
    with pytest.raises(OSError, match=f"^{place}: .* it belongs to another user"):
        machine.run()
    assert machine.loaded == 1


def test_another_user_in_any_process(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for those who are not root: to this process, all files are another's."""
    machine.run()
    monkeypatch.setattr(os, "geteuid", lambda: STRANGER)
    if machine.folder.stat().st_uid == 0:
        machine.run()  # root can do everything anyway
    else:
        with pytest.raises(OSError, match="it belongs to another user"):
            machine.run()


def test_a_parent_in_which_others_may_replace_it(machine: Machine) -> None:
    machine.run()
    machine.folder.parent.chmod(0o777)
    with pytest.raises(OSError, match=f"^{machine.folder.parent}: .* others may write to it"):
        machine.run()
    machine.folder.parent.chmod(0o1777)  # as /tmp: nobody can replace what belongs to another
    machine.run()
    assert machine.loaded == 2


def test_a_parent_of_a_group(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.run()
    machine.folder.parent.chmod(0o770)
    monkeypatch.setattr(trusted_files, "_is_private_group", lambda group: True)
    machine.run()
    monkeypatch.setattr(trusted_files, "_is_private_group", lambda group: False)
    with pytest.raises(OSError, match=f"^{machine.folder.parent}: .* others may write to it"):
        machine.run()


def test_above_the_home_folder_nothing_is_checked(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.run()
    home = machine.folder.parent
    home.parent.chmod(0o777)
    with pytest.raises(OSError, match=f"^{home.parent}: "):
        machine.run()
    monkeypatch.setenv("HOME", str(home))
    machine.run()


def test_a_link_to_a_library(machine: Machine, tmp_path: Path) -> None:
    machine.run()
    forged = tmp_path / "forged"
    forged.write_bytes(machine.library.read_bytes())
    library = machine.library
    library.unlink()
    library.symlink_to(forged)
    with pytest.raises(OSError, match=f"^{library}: .* neither a file nor a folder"):
        machine.run()


def test_a_link_to_the_folder(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.run()
    (tmp_path / "link").symlink_to(machine.folder)
    monkeypatch.setenv("NEURAL_SIMILARITY_CACHE", str(tmp_path / "link"))
    machine.run()
    assert (machine.built, machine.loaded) == (1, 2)
    machine.folder.chmod(0o777)
    with pytest.raises(OSError, match=f"^{machine.folder}: "):  # the folder, not the link
        machine.run()


def test_refused_with_one_warning(machine: Machine) -> None:
    machine.folder.mkdir(parents=True)
    machine.folder.chmod(0o777)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert compiled._load.__wrapped__() is None
    (warning,) = caught
    assert "the slower pure PyTorch path is used" in str(warning.message)
    assert "others may write to it" in str(warning.message)
    assert (machine.built, machine.loaded) == (0, 0)


def test_a_damaged_library_is_built_again(machine: Machine) -> None:
    machine.run()
    machine.library.write_bytes(b"half")
    machine.run()
    assert (machine.built, machine.loaded) == (2, 2)


def test_a_library_that_cannot_be_loaded_is_built_again(machine: Machine) -> None:
    """Its checksum is right, as after a change of the system below it."""
    machine.run()
    machine.broken.add(b"built 1")
    machine.run()
    machine.run()
    assert (machine.built, machine.loaded) == (2, 3)


def test_it_is_built_again_only_once(machine: Machine) -> None:
    machine.run()
    machine.broken.add(b"all")
    for _ in range(3):
        with pytest.raises(OSError, match="invalid ELF header"):
            machine.run()
    assert machine.built == 2
    machine.broken.clear()  # as when the disk may hold programs again
    machine.run()
    assert (machine.built, machine.loaded) == (2, 2)


def test_a_new_library_that_cannot_be_loaded(machine: Machine) -> None:
    machine.broken.add(b"all")
    for _ in range(2):
        with pytest.raises(OSError, match="invalid ELF header"):
            machine.run()
    assert machine.built == 1


def test_what_is_built_is_for_this_user_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "compiler"
    script.write_text('#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\necho library > "$2"\n')
    script.chmod(0o700)
    monkeypatch.setenv("CXX", str(script))
    before = os.umask(0)
    try:
        compiled._build(tmp_path / "kernels.so", ())
    finally:
        os.umask(before)
    assert compiled._is_whole(tmp_path / "kernels.so")  # or it would be refused


def test_private_folders_leave_existing_ones(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    _io.make_private_folder(tmp_path / "a" / "b")
    modes = [
        stat.S_IMODE(p.stat().st_mode) for p in (tmp_path, tmp_path / "a", tmp_path / "a" / "b")
    ]
    assert modes == [0o755, 0o700, 0o700]
    _io.make_private_folder(tmp_path / "a" / "b")
