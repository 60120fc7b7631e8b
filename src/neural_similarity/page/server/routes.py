"""The routes of the page: addresses hold identifiers, never names of classes or files."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse
from pydantic import BaseModel, Field
from starlette.concurrency import run_in_threadpool

from ..engine import Engine
from ..project import Project
from ..project.pictures import decoded
from ..refused import RefusedError
from ..takeaway import Packing
from .events import Events
from .state import describe, describe_answer, describe_picture

__all__ = ["Parts", "add_routes"]

_AT_ONCE = 4  # picture bodies in memory
_MOST_IDS = 10_000


@dataclass(frozen=True)
class Parts:
    """What the routes work with."""

    project: Project
    engine: Engine
    packing: Packing
    events: Events


class Named(BaseModel):
    """A name that a person typed."""

    name: str = Field(max_length=1000)


class Chosen(BaseModel):
    """Some pictures."""

    ids: list[str] = Field(max_length=_MOST_IDS)


class Moved(Chosen):
    """Some pictures, and the class that they go to."""

    to: str


def add_routes(app: FastAPI, parts: Parts) -> None:
    """Add all routes below ``/api``."""
    _add_project_routes(app, parts.project)
    _add_picture_routes(app, parts)
    _add_takeaway_routes(app, parts.packing)

    @app.get("/api/state")
    def state() -> dict[str, Any]:
        return describe(parts.project, parts.engine, parts.packing)

    @app.get("/api/events")
    async def events() -> StreamingResponse:
        await run_in_threadpool(parts.project.refresh)
        return StreamingResponse(parts.events.open_stream(), media_type="text/event-stream")


def _add_project_routes(app: FastAPI, project: Project) -> None:
    @app.post("/api/classes")
    def add_class(body: Named) -> dict[str, str]:
        return {"id": project.add_class(body.name)}

    @app.patch("/api/classes/{id}")
    def rename_class(id: str, body: Named) -> dict[str, str]:
        return {"id": project.rename_class(id, body.name)}

    # A response that offers an undo gives the revision from which on the state contains it.
    @app.delete("/api/classes/{id}")
    def delete_class(id: str) -> dict[str, Any]:
        entries = [project.delete_class(id)]
        return {"entries": entries, "revision": project.listing.revision}

    @app.post("/api/move")
    def move_pictures(body: Moved) -> dict[str, Any]:
        ids, name = project.move_pictures(body.ids, body.to)
        return {"ids": ids, "move": name, "revision": project.listing.revision}

    @app.post("/api/moves/{name}/undo")
    def undo_move(name: str) -> dict[str, bool]:
        project.undo_move(name)
        return {"done": True}

    @app.post("/api/delete")
    def delete_pictures(body: Chosen) -> dict[str, Any]:
        entries = project.delete_pictures(body.ids)
        return {"entries": entries, "revision": project.listing.revision}

    @app.post("/api/keep/{id}")
    def keep_label(id: str) -> dict[str, bool]:
        project.keep_label(id)
        return {"done": True}

    @app.post("/api/bin/{entry}/restore")
    def restore(entry: str) -> dict[str, str]:
        return {"id": project.restore(entry)}

    @app.delete("/api/bin")
    def empty_bin() -> dict[str, bool]:
        project.empty_bin()
        return {"done": True}


def _add_picture_routes(app: FastAPI, parts: Parts) -> None:
    project, engine, places = parts.project, parts.engine, asyncio.Semaphore(_AT_ONCE)

    @app.post("/api/classes/{id}/pictures")
    async def add_picture(
        id: str, request: Request, name: Annotated[str, Query(max_length=1000)] = ""
    ) -> dict[str, Any]:
        project.listing.label(id)  # refused before the picture is read
        async with places:
            content = await request.body()
            picture = await run_in_threadpool(project.add_picture, id, name, content)
        return describe_picture(picture, {})

    @app.get("/api/pictures/{id}")
    def picture(id: str, large: bool = False) -> Response:
        engine.defer()
        content = project.small_copy(id, large)
        # The address contains the picture's version, so it can be cached forever.
        headers = {"cache-control": "private, max-age=31536000, immutable"}
        return Response(content, media_type="image/jpeg", headers=headers)

    @app.post("/api/try")
    async def try_picture(request: Request) -> dict[str, Any]:
        lesson = engine.lesson
        if lesson is None:
            raise RefusedError("Nothing has been learned yet: teach two classes first.", 409)
        async with places:
            content = await request.body()
            image = await run_in_threadpool(decoded, content)
            answer = await run_in_threadpool(lesson.answer, image)
        return describe_answer(answer, lesson)


def _add_takeaway_routes(app: FastAPI, packing: Packing) -> None:
    @app.post("/api/take-away")
    def start() -> dict[str, bool]:
        packing.start()
        return {"done": True}

    @app.get("/api/take-away")
    def download() -> FileResponse:
        return FileResponse(
            packing.file, media_type="application/zip", filename=f"{packing.name}.zip"
        )
