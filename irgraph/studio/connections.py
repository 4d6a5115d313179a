"""Connections of the studio's server: a time limit for each request, and a limit of their number.

A client that never completes its request would otherwise occupy a connection for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_REQUEST_SECONDS = 10.0
"""Maximum time in seconds from the start of a request to its last byte."""

MAX_CONNECTIONS = 64
"""Maximum number of connections; a browser opens six."""


class BoundedProtocol(H11Protocol):
    """HTTP with a deadline for each request; further connections than the limit are closed."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401
        """Start the time of the first request, or close the connection at the limit."""
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.abort()
        else:
            self._start_deadline()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request; the deadline ends with its last part."""
        super().data_received(data)
        if self.conn.their_state in (h11.IDLE, h11.SEND_BODY):
            self._start_deadline()
        else:
            self._end_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the deadline with the connection."""
        self._end_deadline()
        super().connection_lost(exc)

    def _start_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(MAX_REQUEST_SECONDS, self.transport.abort)

    def _end_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
