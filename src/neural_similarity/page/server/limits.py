"""Timeouts, so that a silent connection does not block others.

A server has a limited number of connections, and few slots for picture bodies. A program that opens
connections and sends nothing would take them all, and so would uploads from a computer that went to
sleep. So the head of a request must arrive within seconds, and a body must keep arriving.
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
        head: seconds from the start of a connection, or from the last response, until the head of a
            request has arrived.
        silence: seconds within which the next part of a body must arrive.
        slowest: bytes per second that a body must reach on average, after a first silence.
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
    """The body of a request, as long as it keeps arriving."""
    loop = asyncio.get_running_loop()
    waited, count, is_whole = 0.0, 0, False

    async def receive_in_time() -> Message:
        nonlocal waited, count, is_whole
        if is_whole:  # what follows is the end of the connection, at any time
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
    return RefusedError("The upload was interrupted. Please try again.", 408)


class _Connection(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time.

    uvicorn itself closes a connection that is silent after a response, but not one that never sent
    a request, or sent only part of a head.
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
        if self._is_asked():  # the next request has already arrived
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
