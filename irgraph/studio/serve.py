"""Serves the studio on this machine, until it is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from typing import Any

from irgraph.diagnostics import fail
from irgraph.studio.app import Studio, application

HOST = "127.0.0.1"


def serve(
    studio: Studio, *, port: int = 0, browser: bool = True, say: Callable[[str], None]
) -> None:
    """Answer on 127.0.0.1 until the program is interrupted.

    Args:
        studio: what to serve.
        port: where it listens; 0 takes any that is free.
        browser: whether to open the page in a browser.
        say: called with the address, which holds the token.

    Raises:
        IrgraphError: the port is taken (exit code 2).
    """
    import uvicorn

    listening = _listening(port)
    found = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    address = f"http://{HOST}:{found}/{token}/"
    app: Any = application(studio, token, found)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        ws="none",
        h11_max_incomplete_event_size=1 << 16,
        timeout_graceful_shutdown=2,
    )
    say(f"{address}\nEnds with Ctrl + C.")
    if browser:
        import webbrowser

        webbrowser.open(address)
    uvicorn.Server(config).run(sockets=[listening])


def _listening(port: int) -> socket.socket:
    found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        found.bind((HOST, port))
    except OSError:
        found.close()
        message = f"--port: {HOST}:{port} is already in use"
        raise fail(message, exit_code=2) from None
    return found
