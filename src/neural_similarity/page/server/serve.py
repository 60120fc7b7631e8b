"""Run the server on the loopback address, until it is asked to stop."""

from __future__ import annotations

import errno
import secrets
import socket
import webbrowser
from collections.abc import Callable
from contextlib import closing, suppress
from threading import Thread
from types import FrameType

import uvicorn

from ...adapt import FeatureExtractor
from ...data.images import quietly
from ...errors import RunError
from ..engine import Engine
from ..project import Project
from ..takeaway import Packing
from .app import create_app
from .events import Events
from .limits import Limits, server_config

__all__ = ["HOST", "PORT", "serve"]

HOST, PORT = "127.0.0.1", 8350


def serve(
    project: Project,
    backbone: FeatureExtractor,
    port: int | None = None,
    announce: Callable[[str], None] = print,
    open_browser: bool = True,
) -> None:
    """Serve a project until Ctrl-C or SIGTERM.

    Args:
        project: the project.
        backbone: the network that computes features.
        port: where to listen; by default 8350, or a free port if that is taken. 0 is a free port.
        announce: called with the address to open, including the token, when the server listens.
        open_browser: also open it in the browser.
    """
    with closing(_listen(port)) as listening, quietly():
        number = listening.getsockname()[1]
        token, once = secrets.token_urlsafe(24), secrets.token_urlsafe(24)
        address = f"http://{HOST}:{number}/?token="
        events, engine = Events(), Engine(project, backbone)
        limits, packing = Limits(), Packing(engine, events.publish)
        app = create_app(project, engine, token, number, events, once, limits, packing)
        config = server_config(app, limits)
        engine.start()
        announce(address + token)
        if open_browser:  # it may wait for the browser to start, or for the first response
            Thread(target=webbrowser.open, args=(address + once,), daemon=True).start()
        try:
            with suppress(KeyboardInterrupt):  # uvicorn passes the signal on after it has stopped
                _Server(config, events).run(sockets=[listening])
        finally:
            packing.stop()
            engine.stop()


class _Server(uvicorn.Server):
    """A server that ends its streams of events when it is asked to stop."""

    def __init__(self, config: uvicorn.Config, events: Events) -> None:
        super().__init__(config)
        self._events = events

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._events.close()
        super().handle_exit(sig, frame)


def _listen(port: int | None) -> socket.socket:
    """A socket on the loopback address; connections wait until the server accepts them."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        try:
            listening.bind((HOST, PORT if port is None else port))
        except OSError as error:
            if port is not None or error.errno != errno.EADDRINUSE:
                raise
            listening.bind((HOST, 0))
        listening.listen(Limits.connections)
    except OSError as error:
        listening.close()
        raise RunError(
            f"teach: expected a port that is free, got {port} ({error.strerror}). Choose another "
            f"(--port), or leave it out."
        ) from error
    return listening
