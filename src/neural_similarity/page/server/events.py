"""Notify every open page: two pages on one project see each other's changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ..refused import RefusedError

__all__ = ["Events"]

_MOST_PAGES = 24
_SIGN_OF_LIFE = 15.0  # seconds; after a longer silence, a page assumes that the server is gone


class Events:
    """Notifies open pages of changes; they then fetch the state.

    Notifications that come faster than a page reads them are combined.
    """

    def __init__(self) -> None:
        self._pages: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._number = 0
        self._is_closed = False

    def publish(self) -> None:
        """Notify all pages; any thread may call this."""
        self._number += 1
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake)

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._is_closed = True
        self.publish()

    def open_stream(self, sign_of_life: float = _SIGN_OF_LIFE) -> AsyncIterator[bytes]:
        """Server-sent events for one page: first the current state, then changes."""
        if len(self._pages) >= _MOST_PAGES:
            raise RefusedError("Too many pages are open; close one first.", 429)
        self._loop = asyncio.get_running_loop()
        return self._stream(sign_of_life)

    async def _stream(self, sign_of_life: float) -> AsyncIterator[bytes]:
        news = asyncio.Event()
        news.set()
        self._pages.add(news)
        try:
            while not self._is_closed:
                try:
                    await asyncio.wait_for(news.wait(), sign_of_life)
                except TimeoutError:
                    yield b"event: alive\ndata: 0\n\n"
                    continue
                news.clear()
                yield f"event: news\ndata: {self._number}\n\n".encode()
        finally:
            self._pages.discard(news)

    def _wake(self) -> None:
        for news in self._pages:
            news.set()
