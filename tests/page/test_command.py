"""``nsl teach`` as a process: two on one project, and one that is killed during an upload."""

import http.client
import json
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from support.command import nsl
from support.page_cases import picture

pytest.importorskip("fastapi", reason="the extra page is not installed")

TOY = """
from torch import nn
from neural_similarity.adapt import FeatureExtractor, Preprocessing

def make():
    network = nn.Sequential(nn.AvgPool2d(8), nn.Flatten())
    return FeatureExtractor(network.eval(), Preprocessing(16, (0.4,) * 3, (0.3,) * 3), "toy")
"""
COMMAND = (sys.executable, "-m", "neural_similarity", "teach", "mine", "--no-browser")


@contextmanager
def running(folder):
    """The process, and the address that it printed."""
    (folder / "toy.py").write_text(TOY)
    command = [*COMMAND, "--port", "0", "--backbone", "toy:make"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)
    try:
        word, address = process.stdout.readline().split()
        assert word == "Open"
        yield process, address
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


class Page:
    """A browser, down to its bytes."""

    def __init__(self, address):
        parts = urlsplit(address)
        self.home = parts.netloc
        self.cookie = ""
        self.cookie = self._answer("GET", f"/?{parts.query}")[0]["set-cookie"]

    def request(self, method, path, body=None):
        return json.loads(self._answer(method, path, body)[1])

    def _answer(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.home, timeout=60)
        headers = {"origin": f"http://{self.home}", "content-type": "application/json"}
        connection.request(method, path, body, headers | {"cookie": self.cookie})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return answer.headers, content

    def begin_upload(self, path, body):
        """Send a request with half of its body."""
        connection = http.client.HTTPConnection(self.home, timeout=60)
        connection.putrequest("POST", path)
        for name, value in {
            "origin": f"http://{self.home}", "cookie": self.cookie, "content-length": len(body),
        }.items():  # fmt: skip
            connection.putheader(name, str(value))
        connection.endheaders(body[: len(body) // 2])
        return connection


@pytest.mark.slow
def test_killed_during_an_upload_nothing_is_lost(tmp_path):
    with running(tmp_path) as (process, address):
        page = Page(address)
        id = page.request("POST", "/api/classes", '{"name": "red"}')["id"]
        upload = f"/api/classes/{id}/pictures"
        for seed in range(3):
            page.request("POST", f"{upload}?name={seed}.png", picture(seed=seed))
        connection = page.begin_upload(f"{upload}?name=late.png", picture(seed=9))
        again = subprocess.run(COMMAND, cwd=tmp_path, capture_output=True, text=True)
        assert again.returncode == 2
        assert "another `nsl teach` has open" in again.stderr
        process.kill()
        process.wait()
        connection.close()
    names = sorted(path.name for path in (tmp_path / "mine" / "red").iterdir())
    assert names == ["0.png", "1.png", "2.png"]
    with running(tmp_path) as (process, address):
        (red,) = Page(address).request("GET", "/api/state")["classes"]
        assert [one["name"] for one in red["pictures"]] == names
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("mine", "--backbone", "nothing"), "backbone: expected"),
        (("file",), "file: expected a folder, got a file."),
        (("mine", "--port", "{port}"), "teach: expected a port that is free, got {port}"),
    ],
    ids=["backbone", "file", "port"],
)
def test_bad_input_is_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        given = [word.format(port=port) for word in arguments]
        ended = nsl(capsys, monkeypatch, "teach", "--no-browser", *given)
    assert ended.code == 2
    assert words.format(port=port) in ended.err
    assert len(ended.err.splitlines()) == 1
    assert not (tmp_path / "mine").exists()


def test_a_missing_extra_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for name in [name for name in sys.modules if name.startswith("neural_similarity.page.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    ended = nsl(capsys, monkeypatch, "teach", "mine")
    assert ended.code == 2
    assert "pip install 'neural-similarity[page]'" in ended.err
    assert not (tmp_path / "mine").exists()
