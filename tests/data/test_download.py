"""Downloading a file: complete, resumed, interrupted, wrong, refused; existing files stay."""

import errno
import hashlib
import os
import random
import socket
from multiprocessing import get_context

import pytest
from support.web_server import PAGE, web_server

from neural_similarity.data.fetching import _disk as _writing
from neural_similarity.data.fetching import download as fetch
from neural_similarity.data.fetching.download import digest, fetch_file
from neural_similarity.errors import FetchError

CONTENT = random.Random(1).randbytes(300_000)
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()
SHA256 = "sha256:" + hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch):
    monkeypatch.setattr(fetch, "PAUSES", (0.0, 0.0))


@pytest.fixture
def target(tmp_path):
    return tmp_path / "sets" / "digits.bin"


def part_of(target):
    return target.with_name(target.name + ".part")


def names(folder):
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.mark.parametrize("checksum", [MD5, SHA256])
@pytest.mark.parametrize("size", [None, len(CONTENT)])
def test_a_whole_file(target, checksum, size):
    seen = []
    with web_server({"/digits.bin": CONTENT}) as server:
        url = server.url("/digits.bin")
        progress = lambda done, total: seen.append((done, total))  # noqa: E731
        assert fetch_file(url, target, checksum, size=size, progress=progress)
        assert not fetch_file(url, target, checksum)
        assert len(server.asked) == 1
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["digits.bin"]
    assert seen == sorted(seen)
    assert seen[-1] == (len(CONTENT), len(CONTENT))


def test_a_file_of_this_machine(tmp_path, target):
    here = tmp_path / "here.bin"
    here.write_bytes(CONTENT)
    fetch_file(here.as_uri(), target, MD5)
    assert target.read_bytes() == CONTENT
    with pytest.raises(FetchError, match=r"expected an answer from file:.*none\.bin, got: "):
        fetch_file((tmp_path / "none.bin").as_uri(), target.with_name("other"), MD5)


@pytest.mark.parametrize("ranges", [True, False])
def test_it_goes_on_where_it_stopped(target, ranges):
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT[:100_000])
    with web_server({"/digits.bin": CONTENT}, ranges=ranges) as server:
        fetch_file(server.url("/digits.bin"), target, MD5)
        assert server.asked == [("/digits.bin", "bytes=100000-")]
        assert server.sent == (200_000 if ranges else 300_000)
    assert target.read_bytes() == CONTENT


def test_a_part_that_is_whole_needs_no_server(target):
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT)
    fetch_file("http://127.0.0.1:9/digits.bin", target, MD5, size=len(CONTENT))
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("old", [b"an older file" * 999, CONTENT + b"too long"])
def test_a_part_of_another_file_is_fetched_anew(target, old):
    target.parent.mkdir()
    part_of(target).write_bytes(old)
    with web_server({"/digits.bin": CONTENT}) as server:
        fetch_file(server.url("/digits.bin"), target, MD5)
        assert [wanted for _, wanted in server.asked] == [f"bytes={len(old)}-", None]
    assert target.read_bytes() == CONTENT


def test_dropped_connections_are_taken_up_again(target):
    with web_server({"/digits.bin": CONTENT}, drop_after=70_000) as server:
        fetch_file(server.url("/digits.bin"), target, MD5)
        assert [w for _, w in server.asked] == [None, *(f"bytes={n}0000-" for n in (7, 14, 21, 28))]
    assert target.read_bytes() == CONTENT


def test_a_server_that_is_busy_for_a_while(target):
    with web_server({"/digits.bin": CONTENT}, failures=2) as server:
        fetch_file(server.url("/digits.bin"), target, MD5)
    assert target.read_bytes() == CONTENT


def test_a_server_that_stays_busy(target):
    with (
        web_server({"/digits.bin": CONTENT}, failures=99) as server,
        pytest.raises(FetchError, match=r"got 0 bytes and then: HTTP 503 .*Run the command again"),
    ):
        fetch_file(server.url("/digits.bin"), target, MD5)
    assert names(target.parent) == []


def test_a_truncated_transfer_keeps_what_came(target):
    with web_server({"/digits.bin": CONTENT}, ranges=False, drop_after=70_000) as server:
        url = server.url("/digits.bin")
        message = (
            rf"expected all of {url}, got 70,000 bytes and then: the connection ended 230,000 "
            rf"bytes early\. .*digits\.bin\.part\. Run the command again"
        )
        with pytest.raises(FetchError, match=message):
            fetch_file(url, target, MD5)
        assert len(server.asked) == 3
    assert part_of(target).read_bytes() == CONTENT[:70_000]
    assert not target.exists()


def test_a_wrong_checksum(target):
    with web_server({"/digits.bin": CONTENT[::-1]}) as server:
        url, got = server.url("/digits.bin"), "md5:" + hashlib.md5(CONTENT[::-1]).hexdigest()
        with pytest.raises(FetchError, match=rf"expected {url} with {MD5}, got {got} \(300,000 by"):
            fetch_file(url, target, MD5)
    assert names(target.parent) == []


def test_a_web_page_in_place_of_the_file(target):
    with web_server({"/digits.bin": PAGE}) as server:
        with pytest.raises(FetchError, match=r"got md5:\w+ \(55 bytes, a web page\)"):
            fetch_file(server.url("/digits.bin"), target, MD5)
        with pytest.raises(FetchError, match=r"expected 300,000 bytes at .*, got 55 \(text/html\)"):
            fetch_file(server.url("/digits.bin"), target, MD5, size=len(CONTENT))
    assert names(target.parent) == []


def test_a_web_page_does_not_cost_what_was_received_before(target):
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    part.write_bytes(CONTENT[:150_000])
    with (
        web_server({"/digits.bin": PAGE}, ranges=False) as server,
        pytest.raises(FetchError, match=r"expected 300,000 bytes at .*, got 55 \(text/html\)"),
    ):
        fetch_file(server.url("/digits.bin"), target, MD5, size=len(CONTENT))
    assert part.read_bytes() == CONTENT[:150_000]


def test_another_file_in_the_place(target):
    target.parent.mkdir()
    target.write_bytes(b"mine")
    with web_server({"/digits.bin": CONTENT}) as server:
        url = server.url("/digits.bin")
        with pytest.raises(FetchError, match=r"expected .*digits\.bin with md5:.* --force"):
            fetch_file(url, target, MD5)
        assert server.asked == []
        with pytest.raises(FetchError, match="The download was removed"):
            fetch_file(url, target, "md5:" + "0" * 32, replace=True)
        assert target.read_bytes() == b"mine"
        fetch_file(url, target, MD5, replace=True)
    assert target.read_bytes() == CONTENT


def test_addresses_that_do_not_answer(target):
    with web_server({}) as server:
        url = server.url("/digits.bin")
        by_hand = r"download it by hand to .*digits\.bin and run the command again"
        with pytest.raises(FetchError, match=rf"at {url}, got HTTP 404 \(Not Found\).*{by_hand}"):
            fetch_file(url, target, MD5)
        assert len(server.asked) == 1
    with pytest.raises(FetchError, match=rf"answer from {url}, got: Connection refused.*{by_hand}"):
        fetch_file(url, target, MD5)
    with pytest.raises(FetchError, match=r"with https, http or file, got 'ftp://"):
        fetch_file("ftp://127.0.0.1/digits.bin", target, MD5)
    assert names(target.parent) == []


def test_no_network(target, monkeypatch):
    def fail(*args, **options):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    with pytest.raises(FetchError, match=r"got: Name or service not known\. Check the network"):
        fetch_file("http://example.invalid/digits.bin", target, MD5)


def test_a_server_that_falls_silent(target, monkeypatch):
    monkeypatch.setattr(fetch, "TIMEOUT", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/digits.bin"
        with pytest.raises(FetchError, match=r"got 0 bytes and then: timed out"):
            fetch_file(url, target, MD5)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "sets").write_text("a file")
    with web_server({"/digits.bin": CONTENT}) as server:
        with pytest.raises(FetchError, match=r"got: a file in place of its folder.*--data-dir"):
            fetch_file(server.url("/digits.bin"), tmp_path / "sets" / "digits.bin", MD5)
        assert server.asked == []
    assert (tmp_path / "sets").read_text() == "a file"


def test_a_full_disk(target, monkeypatch):
    def full(file, chunk):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(fetch, "append", full)
    with (
        web_server({"/digits.bin": CONTENT}) as server,
        pytest.raises(FetchError, match=r"got: No space left on device.* Free some space"),
    ):
        fetch_file(server.url("/digits.bin"), target, MD5)
    assert not target.exists()


def test_two_processes_do_not_write_into_each_other(target):
    target.parent.mkdir()
    context = get_context("spawn")
    here, there = context.Pipe()
    other = context.Process(target=_hold, args=(str(part_of(target)), there))
    other.start()
    here.recv()
    with web_server({"/digits.bin": CONTENT}) as server:
        with pytest.raises(FetchError, match=r"That process is fetching the same file\. Wait"):
            fetch_file(server.url("/digits.bin"), target, MD5)
        other.kill()
        other.join()
        fetch_file(server.url("/digits.bin"), target, MD5)
    assert target.read_bytes() == CONTENT


def test_a_part_that_was_moved_away_before_it_was_locked(target, monkeypatch):
    """Another process may finish between our opening and our locking of its part."""
    target.parent.mkdir()
    part_of(target).write_bytes(CONTENT)
    opened = _writing._locked

    def finished_by_another(part):
        file = opened(part)
        if not target.exists():
            part.rename(target)
        return file

    monkeypatch.setattr(_writing, "_locked", finished_by_another)
    assert not fetch_file("http://127.0.0.1:9/digits.bin", target, MD5)
    assert target.read_bytes() == CONTENT
    assert names(target.parent) == ["digits.bin"]


def test_digest(tmp_path):
    (tmp_path / "a").write_bytes(CONTENT)
    assert digest(tmp_path / "a", "sha256:") == SHA256


def _hold(part, ready):
    """Keep a file locked, as a fetch under way does."""
    import fcntl
    import time

    with open(part, "ab") as file:  # noqa: PTH123
        fcntl.flock(file, fcntl.LOCK_EX)
        ready.send(True)
        time.sleep(60)


def test_a_proxy_that_does_not_say_how_long_its_page_is(target):
    part_of(target).parent.mkdir(parents=True)
    part_of(target).write_bytes(CONTENT[:150_000])
    with (
        web_server({"/digits.bin": PAGE}, ranges=False, says_length=False) as server,
        pytest.raises(FetchError, match=r"expected the rest of .*, got HTTP 200 \(text/html\)"),
    ):
        fetch_file(server.url("/digits.bin"), target, MD5, size=len(CONTENT))
    assert part_of(target).read_bytes() == CONTENT[:150_000]


def test_a_server_that_does_not_stop(target):
    with (
        web_server({"/digits.bin": CONTENT}, ranges=False, says_length=False) as server,
        pytest.raises(FetchError, match=r"expected 100,000 bytes at .*, got more"),
    ):
        fetch_file(server.url("/digits.bin"), target, MD5, size=100_000)
    assert names(target.parent) == []


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_part_that_is_no_plain_file(target, kind):
    target.parent.mkdir(parents=True)
    mine = target.parent / "mine"
    mine.write_bytes(b"mine")
    if kind == "link":
        part_of(target).symlink_to(mine)
    else:
        os.mkfifo(part_of(target))
    with (
        web_server({"/digits.bin": CONTENT}) as server,
        pytest.raises(FetchError, match="to be a plain file, got a link or something else"),
    ):
        fetch_file(server.url("/digits.bin"), target, MD5)
    assert mine.read_bytes() == b"mine"


def test_a_file_of_this_machine_is_fetched_anew_and_is_no_program(tmp_path, target):
    source = tmp_path / "source.bin"
    source.write_bytes(CONTENT)
    part_of(target).parent.mkdir(parents=True)
    part_of(target).write_bytes(CONTENT[:1000])
    fetch_file(source.as_uri(), target, MD5)
    assert target.read_bytes() == CONTENT
    fetch_file(source.as_uri(), target.with_name("new"), MD5)
    assert not target.with_name("new").stat().st_mode & 0o111
