"""The application: routes, static files, one-sentence errors, and the guard around them."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from ...errors import NeuralSimilarityError
from ..engine import Engine
from ..project import Project
from ..refused import RefusedError
from ..takeaway import Packing
from .events import Events
from .guard import Guard, refusal
from .limits import Limits
from .routes import Parts, add_routes

__all__ = ["STATIC", "create_app"]

STATIC = Path(__file__).parents[1] / "static"
_LOGGER = logging.getLogger("neural_similarity")
_OTHER_DISK = (
    "The pictures are on another disk, because their class is a link. Move the files with another "
    "program."
)
_WORDS = {404: "There is nothing at this address.", 405: "This cannot be done at this address."}


def create_app(
    project: Project,
    engine: Engine,
    token: str,
    port: int,
    events: Events | None = None,
    once: str = "",
    limits: Limits | None = None,
    packing: Packing | None = None,
) -> ASGIApp:
    """The application of one project.

    Args:
        project: the project.
        engine: trains on it; the caller starts and stops it.
        token: what the opened address must end with.
        port: of the server's address.
        events: notifies open pages; a server closes it to stop.
        once: another token, for a single use.
        limits: how long a request body may stall.
        packing: packs the model to take away; the caller stops it.
    """
    news = Events() if events is None else events
    packing = packing or Packing(engine, news.publish)

    def on_change() -> None:
        engine.wake()
        news.publish()

    project.on_change, engine.on_news = on_change, news.publish
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_routes(app, Parts(project, engine, packing, news))
    _add_pages(app)
    _add_error_answers(app)
    return Guard(app, token, port, once, limits)


def _add_pages(app: FastAPI) -> None:
    @app.get("/")
    def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    app.mount("/static", StaticFiles(directory=STATIC))


def _add_error_answers(app: FastAPI) -> None:
    @app.exception_handler(NeuralSimilarityError)
    def on_refused(request: Request, error: Any) -> JSONResponse:
        refused = error if isinstance(error, RefusedError) else RefusedError(str(error))
        return refusal(refused)

    @app.exception_handler(RequestValidationError)
    def on_invalid(request: Request, error: Any) -> JSONResponse:
        return refusal(RefusedError("The request is not valid."))

    @app.exception_handler(HTTPException)
    def on_http(request: Request, error: Any) -> JSONResponse:
        if isinstance(error.__cause__, RefusedError):  # the guard aborted the body
            return refusal(error.__cause__)
        words = _WORDS.get(error.status_code, "The request cannot be answered.")
        return refusal(RefusedError(words, error.status_code))

    @app.exception_handler(ClientDisconnect)
    def on_gone(request: Request, error: Any) -> JSONResponse:
        return refusal(RefusedError("The upload was interrupted."))  # nobody reads it

    @app.exception_handler(OSError)
    def on_disk(request: Request, error: Any) -> JSONResponse:
        if isinstance(error, FileNotFoundError):
            return refusal(RefusedError("The file no longer exists.", 404))
        if error.errno == errno.EXDEV:
            return refusal(RefusedError(_OTHER_DISK, 409))
        _LOGGER.warning("neural_similarity: %s: %s", error.filename, error.strerror)
        return refusal(RefusedError(f"Disk error: {error.strerror or error}.", 507))

    @app.exception_handler(Exception)
    def on_failure(request: Request, error: Any) -> JSONResponse:
        return refusal(RefusedError("The server failed; see the terminal.", 500))
