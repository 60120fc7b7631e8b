"""Unpacking archives from the network: only plain files, only in their folder, all or nothing."""

import gzip
import io
import random
import stat
import tarfile
import zipfile

import pytest
from support.web_server import PAGE

from neural_similarity import _io
from neural_similarity.data.fetching.archives import unpack
from neural_similarity.errors import FetchError

FILES = {"letters/a/1.png": b"one", "letters/a/2.png": b"two", "letters/b/1.png": b""}
KINDS = ("tar", "tar.gz", "zip")


def make(path, files, kind):
    """An archive of a kind, with files by name and whatever names they have."""
    if kind == "zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as zipped:
            for name, content in files.items():
                zipped.writestr(name, content)
    else:
        with tarfile.open(path, "w:gz" if kind == "tar.gz" else "w") as tar:
            for name, content in files.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return path


def add_special(path, kind, name, what):
    """A link or a device in an archive that is otherwise fine."""
    if kind == "zip":
        info = zipfile.ZipInfo(name)
        info.external_attr = (stat.S_IFLNK if what == "symlink" else stat.S_IFCHR) << 16
        with zipfile.ZipFile(path, "a") as zipped:
            zipped.writestr(info, "/etc/passwd")
        return
    info = tarfile.TarInfo(name)
    info.type = {"symlink": tarfile.SYMTYPE, "hardlink": tarfile.LNKTYPE}.get(what, tarfile.CHRTYPE)
    info.linkname = "../../../etc/passwd"
    with tarfile.open(path, "a") as tar:
        tar.addfile(info)


def tree(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def place(tmp_path):
    (tmp_path / "sets").mkdir()
    return tmp_path / "sets" / "letters"


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_becomes_a_folder(tmp_path, place, kind):
    more = {**FILES, "./letters/c": b"three", "__MACOSX/letters/._a": b"left out"}
    unpack(make(tmp_path / "archive", more, kind), place)
    assert tree(place.parent) == {**FILES, "letters/c": b"three"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("../escaped", "a path that leaves the folder"),
        ("letters/../../escaped", "a path that leaves the folder"),
        ("letters\\..\\..\\escaped", "a path that leaves the folder"),
        ("C:escaped", "a path that leaves the folder"),
        ("/escaped", "an absolute path"),
        ("//escaped", "an absolute path"),
    ],
)
def test_an_archive_that_climbs_out_is_refused_whole(tmp_path, place, kind, name, why):
    archive = make(tmp_path / "archive", {**FILES, name: b"out"}, kind)
    with pytest.raises(FetchError, match=rf"got '.*escaped', which is {why}. Nothing was unpacked"):
        unpack(archive, place)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive", "sets"]


@pytest.mark.parametrize(
    ("kind", "what", "why"),
    [
        ("tar", "symlink", "a link"),
        ("tar", "hardlink", "a link"),
        ("tar", "device", "a device"),
        ("zip", "symlink", "a link"),
        ("zip", "device", "a device"),
    ],
)
def test_links_and_devices_are_refused(tmp_path, place, kind, what, why):
    archive = make(tmp_path / "archive", FILES, kind)
    add_special(archive, kind, "letters/a/3.png", what)
    with pytest.raises(FetchError, match=rf"got 'letters/a/3\.png', which is {why}\."):
        unpack(archive, place)
    assert list(place.parent.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_that_would_fill_the_disk(tmp_path, place, kind):
    archive = make(tmp_path / "archive", {"letters/zeros": bytes(1_000_000)}, kind)
    with pytest.raises(FetchError, match=r"unpack to at most 999,999 bytes, got more"):
        unpack(archive, place, limit=999_999)
    assert list(place.parent.iterdir()) == []
    unpack(archive, place, limit=1_000_000)


def test_a_size_that_lies_brings_no_more_than_it_says(tmp_path, place):
    archive = make(tmp_path / "archive", {"letters/zeros": bytes(1_000_000)}, "zip")
    content = archive.read_bytes()
    assert content.count((1_000_000).to_bytes(4, "little")) == 2
    archive.write_bytes(content.replace((1_000_000).to_bytes(4, "little"), bytes((9, 0, 0, 0))))
    with pytest.raises(FetchError, match="a damaged one"):
        unpack(archive, place, limit=1000)
    assert list(place.parent.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_there_stays(tmp_path, place, kind):
    place.mkdir()
    (place / "mine").write_bytes(b"mine")
    archive = make(tmp_path / "archive", FILES, kind)
    with pytest.raises(FetchError, match=r"expected .*letters not to exist.*--force"):
        unpack(archive, place)
    broken = tmp_path / "broken"
    broken.write_bytes(archive.read_bytes()[:100])
    with pytest.raises(FetchError, match="expected"):
        unpack(broken, place, replace=True)
    assert tree(place) == {"mine": b"mine"}
    unpack(archive, place, replace=True)
    assert tree(place.parent) == FILES
    assert [path.name for path in place.parent.iterdir()] == ["letters"]


def test_the_old_folder_comes_back_if_the_new_one_cannot_be_moved(tmp_path, place, monkeypatch):
    place.mkdir()
    (place / "mine").write_bytes(b"mine")

    def refused(new, old):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(_io.folders, "exchange", refused)
    with pytest.raises(FetchError, match=r"got: No space left on device\. Existing files are"):
        unpack(make(tmp_path / "archive", FILES, "zip"), place, replace=True)
    assert tree(place.parent) == {"letters/mine": b"mine"}


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (PAGE, "a web page"),
        (b"plain text " * 99, "a file of another kind"),
        (b"", "a file of another kind"),
        (b"PK\x03\x04 and so on", "a damaged one"),
        (gzip.compress(b"not a tar", mtime=0), "a damaged one"),
    ],
)
def test_files_that_are_no_archives(tmp_path, place, content, got):
    (tmp_path / "archive").write_bytes(content)
    with pytest.raises(FetchError, match=rf"a complete tar or zip file, got {got} \(.*Nothing was"):
        unpack(tmp_path / "archive", place)
    assert list(place.parent.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_archives_that_end_early(tmp_path, place, kind):
    noise = {"letters/noise": random.Random(2).randbytes(200_000)}
    content = make(tmp_path / "archive", noise, kind).read_bytes()
    (tmp_path / "archive").write_bytes(content[:100_000])
    with pytest.raises(FetchError, match=r"a complete tar or zip file, got a"):
        unpack(tmp_path / "archive", place)
    assert list(place.parent.iterdir()) == []


def test_a_damaged_byte(tmp_path, place):
    """Checksums inside of the archives are looked at, too."""
    noise = {"letters/noise": random.Random(2).randbytes(200_000)}
    for kind in ("tar.gz", "zip"):
        content = bytearray(make(tmp_path / "archive", noise, kind).read_bytes())
        content[100_000] ^= 255
        (tmp_path / "archive").write_bytes(content)
        with pytest.raises(FetchError, match="got a damaged one"):
            unpack(tmp_path / "archive", place)
        assert list(place.parent.iterdir()) == []


def test_other_archives(tmp_path, place):
    with pytest.raises(FetchError, match=r"to hold a folder 'letters', got 'words'\. It is anothe"):
        unpack(make(tmp_path / "archive", {"words/a": b"one"}, "zip"), place)
    with pytest.raises(FetchError, match=r"to hold a folder 'letters', got 'letters'\."):
        unpack(make(tmp_path / "archive", {"letters": b"one"}, "zip"), place)
    with pytest.raises(FetchError, match=r"expected the file .*none, got none"):
        unpack(tmp_path / "none", place)
    locked = make(tmp_path / "locked", FILES, "zip")
    locked.write_bytes(_encrypted(locked.read_bytes()))
    with pytest.raises(FetchError, match=r"got 'letters/a/1\.png', which is encrypted"):
        unpack(locked, place)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "sets").write_text("a file")
    with pytest.raises(FetchError, match=r"expected to write .*letters, got: .*--data-dir"):
        unpack(make(tmp_path / "archive", FILES, "zip"), tmp_path / "sets" / "letters")


def _encrypted(content):
    """The first member of a zip marked as encrypted, in the list at its end."""
    place = content.index(b"PK\x01\x02") + 8
    return content[:place] + bytes((content[place] | 1,)) + content[place + 1 :]


def head(name, size, kind=tarfile.REGTYPE):
    info = tarfile.TarInfo(name)
    info.size, info.type = size, kind
    return info.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize(
    "content",
    [
        head("letters/a", 0) + head("letters/b", -512) + bytes(1024),
        head("letters", -(2**40), tarfile.DIRTYPE) + head("letters/a", 512) + bytes(1536),
    ],
)
def test_negative_sizes_neither_hang_nor_lift_the_limit(tmp_path, place, content):
    (tmp_path / "letters.tar").write_bytes(content)
    with pytest.raises(FetchError, match=r"expected .* to be a complete tar or zip file"):
        unpack(tmp_path / "letters.tar", place, limit=10)
    assert not place.exists()
