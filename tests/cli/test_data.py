"""``nsl data`` as a user sees it: list, get, check, and wrong usage."""

import os
import pty
import signal
import subprocess
import sys
import time

import pytest
from PIL import Image
from support.command import nsl, nsl_process, one_line
from support.data_files import cifar10_source, image_folder
from support.web_server import web_server

from neural_similarity.data import load_dataset
from neural_similarity.data.fetching.sources import SOURCES


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """``nsl data`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NEURAL_SIMILARITY_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return lambda *arguments: nsl(capsys, monkeypatch, "data", *arguments)


@pytest.fixture
def server(monkeypatch):
    with web_server({}) as running:
        monkeypatch.setitem(SOURCES, "cifar10", cifar10_source(running))
        yield running


def test_help_teaches(run):
    assert {"list", "get", "check"} <= set(run("--help").out.split())
    for command, example in (("get", "nsl data get cifar10"), ("check", "nsl data check cifar10")):
        ended = run(command, "--help")
        assert ended.code == 0
        assert example in ended.out


def test_help_does_not_wait_for_torch():
    code = "import sys, neural_similarity.cli.app; print({'torch', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "torch" not in done.stdout


def test_list(run, server, tmp_path, monkeypatch):
    def here(ended):
        rows = (line.split() for line in ended.out.splitlines())
        return {row[0]: row[2] for row in rows if len(row) > 3 and row[0] in SOURCES}

    before = run("list")
    assert before.code == 0
    assert here(before)["digits"] == "always"
    assert here(before)["cifar10"] == "no"
    assert "https://github.com/zalandoresearch" in before.out
    assert f"Data sets are looked up in {tmp_path / 'data'}.\n" in before.out
    assert "nsl data get NAME (not imagefolder, imagenet, mini-imagenet" in before.out
    run("get", "cifar10", "--data-dir", tmp_path / "mine")
    assert here(run("list"))["cifar10"] == "no"
    assert here(run("list", "--data-dir", tmp_path / "mine"))["cifar10"] == "yes"
    monkeypatch.setenv("NEURAL_SIMILARITY_DATA", str(tmp_path / "mine"))
    assert here(run("list"))["cifar10"] == "yes"


def test_get_then_check(run, server, tmp_path):
    got = run("get", "cifar10")
    assert (got.code, got.err) == (0, "")
    assert got.out.startswith(
        "cifar10: downloaded to data/cifar-10-batches-py, verified as published."
    )
    again = run("get", "cifar10")
    assert again.out == "cifar10: already in data/cifar-10-batches-py, verified as published.\n"
    assert len(server.asked) == 1
    checked = run("check", "cifar10")
    assert checked.code == 0
    rows = [line.split() for line in checked.out.splitlines()]
    assert rows[0][-2:] == ["size", "fingerprint"]
    assert rows[1][-1] == load_dataset("cifar10", "train").fingerprint
    assert rows[1][:9] == ["train", "100", "10", "10", "3", "×", "32", "×", "32"]
    assert rows[2][:4] == ["test", "20", "10", "2"]
    assert "files: in data/cifar-10-batches-py, as published" in checked.out
    with Image.open(tmp_path / "cifar10.png") as sheet:
        assert sheet.width > 8 * 48
        assert sheet.height > 10 * 48


def test_get_that_fails_says_what_to_do(run, server):
    server.files.clear()
    line = one_line(run("get", "cifar10"))
    assert "got HTTP 404" in line
    assert "by hand to data/cifar.tar.gz" in line


def test_get_leaves_other_files_alone(run, server, tmp_path):
    run("get", "cifar10")
    batch = tmp_path / "data" / "cifar-10-batches-py" / "data_batch_1"
    batch.write_bytes((batch.parent / "data_batch_2").read_bytes())
    ended = run("get", "cifar10")
    assert ended.code == 0
    assert "differ from the published ones. They were not changed." in ended.out
    assert "readable, but not the published ones" in run("check", "cifar10").out
    assert "downloaded to" in run("get", "cifar10", "--force").out
    assert batch.read_bytes() != (batch.parent / "data_batch_2").read_bytes()


def test_get_what_is_not_fetched(run):
    assert run("get", "digits").out.startswith("digits: nothing to download (")
    assert "image-net.org" in one_line(run("get", "imagenet"))
    assert "Did you mean 'cifar100'" in one_line(run("get", "cifar1000"))
    assert "Missing argument" in one_line(run("get"))


def test_check_does_not_overwrite(run, tmp_path):
    assert "contact sheet: digits.png" in run("check", "digits").out
    (tmp_path / "digits.png").write_text("mine")
    ended = run("check", "digits")
    assert ended.code == 0
    assert "digits.png exists and was not changed" in ended.out
    line = one_line(run("check", "digits", "--sheet", "digits.png"))
    assert "expected --sheet to name a new file" in line
    assert (tmp_path / "digits.png").read_text() == "mine"
    run("check", "digits", "--sheet", "digits.png", "--force")
    with Image.open(tmp_path / "digits.png") as sheet:
        assert sheet.format == "PNG"
    run("check", "digits", "--sheet", "other.png", "--split", "test")
    assert sorted(path.name for path in tmp_path.glob("*.png*")) == ["digits.png", "other.png"]


def test_check_names_damaged_files_and_empty_classes(run, tmp_path):
    root = image_folder(tmp_path / "pets" / "train", ("cat", "dog", "eel"))
    image_folder(tmp_path / "pets" / "test", ("cat", "dog"))
    (root / "dog" / "3.png").write_bytes(b"no image")
    ended = run("check", "imagefolder", "--data-dir", "pets")
    assert ended.code == 0
    rows = [line.split() for line in ended.out.splitlines()]
    assert rows[1][:6] == ["train", "29", "3", "9", "to", "10"]
    assert rows[2][:6] == ["test", "20", "3", "0", "to", "10"]
    assert "damaged files: 1\n  pets/train/dog/3.png (no image format that we read)" in ended.out
    assert "classes without images: 1\n  test/eel" in ended.out
    line = one_line(run("check", "imagefolder", "--data-dir", "pets", "--strict"))
    assert "pets/train/dog/3.png" in line
    (root / "dog" / "3.png").unlink()
    line = one_line(run("check", "imagefolder", "--data-dir", "pets", "--strict"))
    assert "expected images of every class, got none of test/eel" in line


def test_check_of_what_cannot_be_read(run, server, tmp_path):
    assert "nsl data get cifar10" in one_line(run("check", "cifar10"))
    assert "Did you mean 'digits'" in one_line(run("check", "digit"))
    assert "expected --split to be one of 'test', 'train'" in one_line(
        run("check", "digits", "--split", "all")
    )
    run("get", "cifar10")
    (tmp_path / "data" / "cifar-10-batches-py" / "test_batch").write_bytes(b"damaged")
    ended = run("check", "cifar10")
    assert "test_batch" in one_line(ended)
    assert ended.out.splitlines()[1].startswith("train")
    line = one_line(run("check", "digits", "--sheet", "no/such/sheet.png"))
    assert "expected --sheet in an existing folder, got no/such/sheet.png" in line


SLOW_GET = """
import sys, time
from neural_similarity.cli import main
from neural_similarity.data.fetching import download, sources
pieces = iter([100] * 6)
def slowly(response):
    size = next(pieces, None)
    time.sleep(0.05 if size else 600)  # what comes then is Ctrl-C
    return response.read(size)
download._read = slowly
url, checksum, size, data_dir = sys.argv[1:]
remote = sources.RemoteFile(url, checksum, "cifar-10-batches-py", int(size), archive=True)
source = sources.SOURCES["cifar10"]
sources.SOURCES["cifar10"] = sources.Source((remote,), source.folders, source.names)
sys.argv = ["nsl", "data", "get", "cifar10", "--data-dir", data_dir]
main()
"""


def heed_interrupts():
    """A shell lets what it runs in the background ignore Ctrl-C, and so would our child."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_an_interrupted_get_goes_on(run, server, tmp_path):
    """In a terminal of its own: a bar is drawn, Ctrl-C ends it, the next command resumes."""
    remote = SOURCES["cifar10"].files[0]
    part = tmp_path / "data" / "cifar.tar.gz.part"
    ours, theirs = pty.openpty()
    arguments = [remote.url, remote.checksum, remote.size, tmp_path / "data"]
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_GET, *map(str, arguments)], stderr=theirs, stdout=theirs,
        preexec_fn=heed_interrupts,
    )  # fmt: skip
    os.close(theirs)
    until = time.monotonic() + 240
    while not (part.exists() and part.stat().st_size > 500) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    shown = b""
    try:
        while chunk := os.read(ours, 4096):
            shown += chunk
    except OSError:  # how a terminal says that its last user has gone
        pass
    os.close(ours)
    assert process.wait(timeout=30) == 130
    assert b"the same command continues where it stopped" in shown
    assert b"cifar.tar.gz" in shown
    assert b"Traceback" not in shown
    assert part.stat().st_size > 500
    server.asked.clear()
    assert "downloaded to" in run("get", "cifar10").out
    assert server.asked[0][1].startswith("bytes=")


def test_a_process_of_its_own(tmp_path):
    ended = nsl_process("data", "get", "no-such-set", cwd=tmp_path)
    assert "expected NAME to be one of" in one_line(ended)
