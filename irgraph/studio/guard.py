"""Access control: only this machine's browser is answered, on the page with the token.

Other users of the machine and pages of other origins do not know the token. The name of another
host that resolves to 127.0.0.1 (DNS rebinding) appears in the header ``Host``, and is refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

MAX_BYTES = 1 << 20
"""Maximum number of bytes of a request's body, far more than a script; it is read as a whole."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: the page loads and calls only this server."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer; no address with the token leaves in a ``Referer``."""


class Guard:
    """Middleware that refuses requests without the token or from other pages.

    Args:
        app: the application, which receives paths without the token.
        token: the first part of every path.
        port: of this server.
    """

    def __init__(self, app: App, token: str, port: int) -> None:
        self.app, self.token = app, token
        self.hosts = {f"{name}:{port}" for name in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it with the reason."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # a web socket: none is served
            await send({"type": "websocket.close", "code": 1008})
            return
        reason = self._refusal(scope)
        body = None if reason else await _body(scope, receive)
        if reason or body is None:
            status = 403 if reason else 413
            await _refuse(send, status, reason or f"more than {MAX_BYTES} bytes")
            return
        inner = {**scope, "path": "/" + scope["path"].split("/", 2)[2], "root_path": ""}
        await self.app(inner, _replay_body(body, receive), _with_headers(send))

    def _refusal(self, scope: Scope) -> str:
        """Return the reason why a request is refused, ``""`` if it is not."""
        headers = scope["headers"]
        host = _values(headers, b"host")
        if len(host) != 1 or host[0] not in self.hosts:
            return "this answers to this machine's own name alone"
        parts = scope["path"].split("/", 2)
        has_token = len(parts) == 3 and secrets.compare_digest(
            parts[1].encode(errors="replace"), self.token.encode()
        )
        if not has_token:
            return "the address lacks the token that irgraph studio printed"
        origins = _values(headers, b"origin")
        if scope["method"] not in ("GET", "HEAD") and len(origins) != 1:
            return "this answers to its own page alone"
        sites = _values(headers, b"sec-fetch-site")
        if any(origin != f"http://{host[0]}" for origin in origins) or any(
            site not in ("same-origin", "none") for site in sites
        ):
            return "this answers to its own page alone: open the address itself"
        return ""


def _values(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in headers if key.lower() == name]


async def _body(scope: Scope, receive: Receive) -> bytes | None:
    """Return a request's body, ``None`` if it is too large; reading stops at the limit."""
    lengths = _values(scope["headers"], b"content-length")
    if any(
        not length.isdecimal() or int(length) > MAX_BYTES for length in lengths if len(length) < 19
    ):
        return None
    if any(len(length) >= 19 for length in lengths):
        return None
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BYTES:
            return None
        if not message.get("more_body", False):
            return b"".join(parts)


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a receiver of a body as one message, and then of the messages after it."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_next() -> MutableMapping[str, Any]:
        return messages.pop() if messages else await receive()

    return receive_next


def _with_headers(send: Send) -> Send:
    async def send_message(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *_encoded_headers()]
        await send(message)

    return send_message


def _encoded_headers() -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in HEADERS.items()]


async def _refuse(send: Send, status: int, reason: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8"), *_encoded_headers()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": f"{reason}\n".encode()})
