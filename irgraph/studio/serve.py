"""Server of the studio on this machine, until it is interrupted."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from typing import Any

from irgraph.diagnostics import fail
from irgraph.studio.app import Studio, application

HOST = "127.0.0.1"


def serve(
    studio: Studio, *, port: int = 0, browser: bool = True, announce: Callable[[str], None]
) -> None:
    """Answer on 127.0.0.1 until the program is interrupted.

    Args:
        studio: the studio to serve.
        port: of the server; 0 selects any free one.
        browser: whether to open the page in a browser.
        announce: called with the address, which contains the token.

    Raises:
        IrgraphError: the port is in use (exit code 2).
    """
    import uvicorn

    from irgraph.studio.connections import BoundedProtocol

    listener = _open_listener(port)
    bound_port = listener.getsockname()[1]
    token = secrets.token_urlsafe(24)
    address = f"http://{HOST}:{bound_port}/{token}/"
    app: Any = application(studio, token, bound_port)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        http=BoundedProtocol,
        ws="none",
        h11_max_incomplete_event_size=1 << 16,
        timeout_graceful_shutdown=2,
    )
    announce(f"{address}\nEnds with Ctrl + C.")
    if browser:
        import webbrowser

        webbrowser.open(address)
    uvicorn.Server(config).run(sockets=[listener])


def _open_listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError:
        listener.close()
        message = f"--port: {HOST}:{port} is already in use"
        raise fail(message, exit_code=2) from None
    return listener
