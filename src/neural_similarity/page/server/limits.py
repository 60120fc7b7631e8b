"""How long a connection may be silent: one that says nothing keeps no place from others.

A server has a limited number of connections, and few places for bodies of pictures. A program that
opens connections and sends nothing would have them all, and so would uploads from a computer that
went to sleep. So the head of a request must come within some seconds, and a body must keep coming.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp, Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..refused import RefusedError

__all__ = ["Limits", "in_time", "server_config"]


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        connections: how many may be open at once.
        head: seconds from the beginning of a connection, or from the last answer, until the head of
            a request is there.
        silence: seconds in which a part of a body must come.
        slowest: bytes in a second that a body must have on average, after a first silence.
    """

    connections: int = 64
    head: float = 10.0
    silence: float = 10.0
    slowest: float = 2.0**15


def server_config(app: ASGIApp, limits: Limits) -> uvicorn.Config:
    """How uvicorn runs an application within limits."""

    class Connection(_Connection):
        seconds = limits.head

    return uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, lifespan="off",
        http=Connection, ws="none", timeout_graceful_shutdown=3,
        limit_concurrency=limits.connections,
    )  # fmt: skip


def in_time(receive: Receive, limits: Limits) -> Receive:
    """The body of a request, as long as it keeps coming."""
    loop = asyncio.get_running_loop()
    waited, count, is_whole = 0.0, 0, False

    async def receive_in_time() -> Message:
        nonlocal waited, count, is_whole
        if is_whole:  # what comes now is the end of the connection, whenever that is
            return await receive()
        begin = loop.time()
        try:
            message = await asyncio.wait_for(receive(), limits.silence)
        except TimeoutError:
            raise _too_slow() from None
        waited += loop.time() - begin
        count += len(message.get("body", b""))
        is_whole = not message.get("more_body", False)
        if waited > limits.silence + count / limits.slowest:
            raise _too_slow()
        return message

    return receive_in_time


def _too_slow() -> RefusedError:
    return RefusedError("The upload stopped on its way. Please try again.", 408)


class _Connection(H11Protocol):
    """A connection that is closed when the head of a request does not come in time.

    uvicorn itself closes a connection that is silent after an answer, but not one that has never
    asked, nor one that has sent a part of a head.
    """

    seconds: float
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_asked():
            self._stop_waiting()

    def on_response_complete(self) -> None:
        self._wait_for_head()
        super().on_response_complete()
        if self._is_asked():  # the next request was there already
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _is_asked(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self._stop_waiting()
        self._timer = self.loop.call_later(self.seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
