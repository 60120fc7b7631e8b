"""Who may talk to the server, and how much: checked before a request reaches anything else.

The server listens only on the loopback address, but every web page open in the same browser can
send requests there, and so can every program on the machine. So:

- ``Host`` must be our own address. A foreign name that resolves to this machine (DNS rebinding) is
  refused.
- ``Origin`` and the browser's ``Sec-Fetch`` headers must name this page. A request that changes
  something must have an ``Origin``.
- Everything needs the token of the opened address, which is then kept in a cookie that scripts
  cannot read and other sites cannot send.
- A body is counted while it arrives; if it is too long or stalls, the request ends.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from secrets import compare_digest
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..project.pictures import MOST_BYTES
from ..refused import RefusedError
from .limits import Limits, in_time

__all__ = ["MOST_JSON", "Guard", "refusal"]

MOST_JSON = 2**20
"""The longest request body that is not a picture."""
_SAFE = ("GET", "HEAD")
_USUAL_PORT = 80  # of http
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_ENTER = """<!doctype html><html lang="en"><meta charset="utf-8"><title>nsl teach</title>
<link rel="icon" href="/static/icon.svg">
<meta http-equiv="refresh" content="0; url=/"><p><a href="/">Open the page</a></p></html>"""
_STRANGER = """<!doctype html><html lang="en"><meta charset="utf-8"><title>nsl teach</title>
<h1>Please use the full address</h1><p>Open the address that <code>nsl teach</code> printed in the
terminal, including the token at the end.</p></html>"""


class Guard:
    """Middleware around the whole application.

    Args:
        app: the application.
        token: what the opened address must end with.
        port: of our address.
        once: another token, for a single use. The address that a browser is started with is visible
            to everyone on the machine, in its command line.
        limits: how long a request body may stall.
    """

    def __init__(
        self, app: ASGIApp, token: str, port: int, once: str = "", limits: Limits | None = None
    ) -> None:
        self.app, self.token, self.cookie = app, token, f"nsl_teach_{port}"
        self._once, self._limits = once, limits or Limits()
        self.hosts = {f"{name}{end}" for name in ("127.0.0.1", "localhost") for end in _ends(port)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # a websocket: not supported; no answer closes it
        guarded_send = _with_headers(send)
        try:
            answer = self._check(scope)
        except RefusedError as error:
            answer = refusal(error)
        if answer is not None:
            await answer(scope, receive, guarded_send)
        else:
            body = _counted(scope, in_time(receive, self._limits))
            await self.app(scope, body, guarded_send)

    def _check(self, scope: Scope) -> Response | None:
        """An answer that ends the request; None lets it pass."""
        headers = Headers(scope=scope)
        self._check_origin(scope["method"], headers)
        is_page = scope["path"] == "/" and scope["method"] in _SAFE
        token = parse_qs(scope["query_string"].decode("ascii", "replace")).get("token", [""])[0]
        if is_page and token and self._opens(token):
            # A page that forwards itself, not a redirect: after a click on another site the browser
            # would not send the cookie along.
            answer = HTMLResponse(_ENTER, headers={"cache-control": "no-store"})
            answer.set_cookie(self.cookie, self.token, httponly=True, samesite="strict")
            return answer
        if not _equal(_cookie(headers, self.cookie), self.token):
            if is_page:
                return HTMLResponse(_STRANGER, 403)
            raise RefusedError("Open the address that nsl teach printed in the terminal.", 403)
        _check_length(scope, headers)
        return None

    def _opens(self, token: str) -> bool:
        """Whether a token in the address is one of ours; the single-use one is then spent."""
        if self._once and _equal(token, self._once):
            self._once = ""
            return True
        return _equal(token, self.token)

    def _check_origin(self, method: str, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if host not in self.hosts:
            raise RefusedError("This server answers only at its own address.", 403)
        if origin is None and method not in _SAFE:
            raise RefusedError("Only this server's own page can make changes.", 403)
        if origin is not None and origin != f"http://{host}":
            raise RefusedError("Another site cannot use this server.", 403)
        if headers.get("sec-fetch-site", "none") not in ("same-origin", "none") and not (
            method in _SAFE and headers.get("sec-fetch-mode") == "navigate"
        ):
            raise RefusedError("Another site cannot use this server.", 403)


def refusal(error: RefusedError) -> JSONResponse:
    """The response that explains why something cannot be done."""
    return JSONResponse({"error": str(error)}, error.status)


def _ends(port: int) -> tuple[str, ...]:
    """How our address may end; browsers leave out the usual port."""
    return (f":{port}", "") if port == _USUAL_PORT else (f":{port}",)


def _is_picture(scope: Scope) -> bool:
    path: str = scope["path"]
    return path.endswith("/pictures") or path == "/api/try"


def _limit(scope: Scope) -> int:
    return MOST_BYTES if _is_picture(scope) else MOST_JSON


def _too_long(scope: Scope) -> RefusedError:
    what = "file" if _is_picture(scope) else "request"
    return RefusedError(f"The {what} is larger than {_limit(scope) // 2**20} MB.", 413)


def _check_length(scope: Scope, headers: Headers) -> None:
    """Refuse a body whose declared length is too long, before any of it is read."""
    length = headers.get("content-length", "0")
    if not length.isdecimal() or int(length) > _limit(scope):
        raise _too_long(scope)


def _counted(scope: Scope, receive: Receive) -> Receive:
    """The body as it arrives, up to the limit."""
    count, limit = 0, _limit(scope)

    async def counted() -> Message:
        nonlocal count
        message = await receive()
        count += len(message.get("body", b""))
        if count > limit:
            raise _too_long(scope)
        return message

    return counted


def _with_headers(send: Send) -> Send:
    async def with_headers(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return with_headers


def _cookie(headers: Headers, name: str) -> str:
    """One cookie. Other programs at this address may have set odd ones too."""
    for part in headers.get("cookie", "").split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""


def _equal(text: str, token: str) -> bool:
    """Whether two texts are equal, in constant time."""
    return compare_digest(text.encode("utf-8", "replace"), token.encode())
