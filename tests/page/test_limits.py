"""Idle connections do not keep others out."""

import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest
from support.page_cases import picture, toy_backbone, write_pictures
from support.page_server import served

pytest.importorskip("fastapi", reason="the extra page is not installed")

from neural_similarity.page.project.names import identifier

PATIENCE = 30  # seconds, after which a test gives up
UPLOAD = f"/api/classes/{identifier('red')}/pictures"


class Visitor:
    """What talks to a server, down to its bytes."""

    def __init__(self, address):
        parts = urlsplit(address)
        self.home, self.cookie = parts.netloc, ""
        self.cookie = self.ask("GET", f"/?{parts.query}").headers["set-cookie"].split(";")[0]

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection(self.home, timeout=PATIENCE)
        connection.request(method, path, body, self._headers())
        answer = connection.getresponse()
        answer.content = answer.read()
        connection.close()
        return answer

    def begin(self, text=""):
        """A connection on which a part of something was sent."""
        host, port = self.home.split(":")
        connection = socket.create_connection((host, int(port)), timeout=PATIENCE)
        connection.sendall(text.encode())
        return connection

    def begin_upload(self, part, length):
        headers = self._headers() | {"host": self.home, "content-length": length}
        lines = [f"POST {UPLOAD}?name=a.png HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        connection = self.begin("\r\n".join(lines) + "\r\n\r\n")
        connection.sendall(part)
        return connection

    def _headers(self):
        return {"origin": f"http://{self.home}", "cookie": self.cookie}


def to_the_end(connection):
    """All that a server sends until it closes the connection."""
    with connection, connection.makefile("rb") as file:
        return file.read()


def test_connections_without_a_request_are_closed(tmp_path):
    with served(tmp_path / "mine", toy_backbone(), connections=8, head=0.2) as server:
        visitor = Visitor(server.address)
        idle = [visitor.begin("GET / HTTP/1.1\r\nhost: 127" * (n % 2)) for n in range(12)]
        assert [to_the_end(one) for one in idle] == [b""] * 12
        assert visitor.ask("GET", "/api/state").status == 200


def test_a_body_for_a_stranger_is_not_awaited(tmp_path):
    with served(tmp_path / "mine", toy_backbone(), head=0.2) as server:
        visitor = Visitor(server.address)
        visitor.cookie = ""
        answer = to_the_end(visitor.begin_upload(b"a", 1000))
        assert answer.startswith(b"HTTP/1.1 403")


def test_a_page_that_listens_stays_connected(tmp_path):
    with served(tmp_path / "mine", toy_backbone(), head=0.05, silence=0.05) as server:
        visitor = Visitor(server.address)
        connection = http.client.HTTPConnection(visitor.home, timeout=PATIENCE)
        connection.request("GET", "/api/events", headers=visitor._headers())
        stream = connection.getresponse()
        assert stream.readline() == b"event: news\n"
        for _ in range(3):  # each lives for as long as a silent connection may
            assert to_the_end(visitor.begin()) == b""
        server.project.add_class("red")
        lines = [stream.readline() for _ in range(5)]
        assert b"event: news\n" in lines
        connection.close()


@pytest.mark.parametrize("part", [10, 0])
def test_uploads_that_stall_give_their_places_to_others(tmp_path, part):
    write_pictures(tmp_path / "mine", {"red": 1})
    content = picture(seed=9)
    with served(tmp_path / "mine", toy_backbone(), head=0.2, silence=0.2) as server:
        visitor = Visitor(server.address)
        slow = [visitor.begin_upload(content[:part], len(content)) for _ in range(4)]
        answer = visitor.ask("POST", f"{UPLOAD}?name=b.png", content)
        assert (answer.status, json.loads(answer.content)["name"]) == (200, "b.png")
        for connection in slow:
            text = to_the_end(connection)
            assert text.startswith(b"HTTP/1.1 408")
            assert b"The upload was interrupted" in text
        assert len(server.project.listing.pictures) == 2


def test_a_body_that_only_drips_is_ended(tmp_path):
    """A byte now and then is no silence, but on average it is too slow."""
    write_pictures(tmp_path / "mine", {"red": 1})
    with served(tmp_path / "mine", toy_backbone(), head=0.2, silence=0.3) as server:
        connection = Visitor(server.address).begin_upload(b"a", 10**6)
        connection.settimeout(0.02)
        answer = b""
        for _ in range(PATIENCE * 50):
            try:
                answer = connection.recv(1000)
                break
            except TimeoutError:
                connection.sendall(b"a")
        assert answer.startswith(b"HTTP/1.1 408")
        connection.close()
