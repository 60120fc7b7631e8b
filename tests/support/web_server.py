"""A small web server in a thread, to fetch from: with or without ranges, and with faults."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

PAGE = b"<!DOCTYPE html><html><body>Please log in.</body></html>"


class WebServer(ThreadingHTTPServer):
    """Serves ``files`` by path; ``asked`` lists (path, Range header), ``sent`` counts bytes.

    Args of :func:`web_server`:
        files: path to bytes.
        ranges: whether it supports Range requests.
        drop_after: bytes after which it closes the connection, in every response.
        failures: responses with status 503 before the first good one.
        says_length: whether responses have a Content-Length.
    """

    daemon_threads = True
    files: dict[str, bytes]
    ranges: bool
    drop_after: int | None
    failures: int
    says_length: bool
    asked: list[tuple[str, str | None]]
    sent: int

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


@contextmanager
def web_server(
    files, *, ranges=True, drop_after=None, failures=0, says_length=True
) -> Iterator[WebServer]:
    server = WebServer(("127.0.0.1", 0), _Handler)
    server.files, server.ranges, server.asked = files, ranges, []
    server.drop_after, server.failures, server.sent = drop_after, failures, 0
    server.says_length = says_length
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: WebServer

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append((self.path, wanted))
        if server.failures:
            server.failures -= 1
            self.send_error(503)
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        content = server.files[self.path]
        start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and server.ranges else 0
        if start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Type", "text/html" if content == PAGE else "application/zip")
        if server.says_length:
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:][: server.drop_after]
        server.sent += len(body)
        self.wfile.write(body)

    def log_message(self, *args):
        pass
