"""The page on a real server, and a real browser to view it."""

import os
import secrets
import shutil
import socket
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from neural_similarity.page import Engine, open_project

CHROMIUM = os.environ.get("NSL_CHROMIUM") or next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
AXE = Path(os.environ.get("NSL_AXE", Path(__file__).parents[2] / ".venv/npm/axe-core/axe.min.js"))
FLAGS = ("--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@contextmanager
def chromium():
    """A browser whose camera is a test pattern; without one, the test is skipped."""
    api = pytest.importorskip("playwright.sync_api", reason="the extra page-tests is missing")
    if CHROMIUM is None:
        pytest.skip("no chromium: install it, or name it in NSL_CHROMIUM")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


class Server:
    """The server of one project in a thread; its address contains the token."""

    def __init__(self, project, backbone, **limits):
        import uvicorn

        from neural_similarity.page.server import create_app
        from neural_similarity.page.server.events import Events
        from neural_similarity.page.server.limits import Limits, server_config

        limits = Limits(**limits)
        self.project, self.engine, self.events = project, Engine(project, backbone), Events()
        listening = socket.create_server(("127.0.0.1", 0))
        port, token = listening.getsockname()[1], secrets.token_urlsafe(8)
        self.address = f"http://127.0.0.1:{port}/?token={token}"
        app = create_app(project, self.engine, token, port, self.events, limits=limits)
        self._server = uvicorn.Server(server_config(app, limits))
        self._listening = listening
        run = {"target": self._server.run, "kwargs": {"sockets": [listening]}, "daemon": True}
        self._thread = Thread(**run)

    def start(self):
        self.engine.start()
        self._thread.start()

    def stop(self):
        self.events.close()
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()
        self.engine.stop()


@contextmanager
def served(folder, backbone, **limits):
    with open_project(folder) as project:
        server = Server(project, backbone, **limits)
        server.start()
        try:
            yield server
        finally:
            if server._thread.is_alive():
                server.stop()


def learned(page):
    """Wait until everything has been learned; return the line that states the accuracy."""
    page.wait_for_function(
        """() => document.querySelector("#summary strong")?.textContent.includes("accuracy on new")
          && !document.querySelector("#summary .activity").textContent
          && !document.querySelector("#summary").classList.contains("old")"""
    )
    return page.inner_text("#summary strong")
