"""Requests that never end occupy no connection for long, and no more of them than the limit."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")

from irgraph.studio import connections  # noqa: E402
from irgraph.studio.serve import serve  # noqa: E402

BEGINNINGS = (b"", b"GET / HT", b"GET / HTTP/1.1\r\nhost: x\r\n", b"POST / HTTP/1.1\r\nhost: x\r\n"
              b"content-length: 9\r\n\r\nabc")  # fmt: skip
WHOLE = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"whole"})


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(connections, "MAX_REQUEST_SECONDS", 1.0)
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    config = uvicorn.Config(
        _answer, http=connections.BoundedProtocol, lifespan="off", log_level="error"
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listener.getsockname()
    server.should_exit = True
    thread.join(10)


def _is_closed(client: socket.socket) -> bool:
    try:
        while client.recv(1 << 16):  # an answer may come before the rest of the request
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


def _answered(address: tuple[str, int]) -> bytes:
    with socket.create_connection(address, timeout=10) as client:
        client.sendall(WHOLE)
        return client.recv(1 << 16)


def test_requests_that_never_end_are_closed(address: tuple[str, int]) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(address, timeout=20)) for _ in range(40)
        ]
        for number, client in enumerate(clients):
            client.sendall(BEGINNINGS[number % len(BEGINNINGS)])
        assert b"whole" in _answered(address)
        assert all(map(_is_closed, clients))
    assert b"whole" in _answered(address)


def test_connections_beyond_the_limit_are_closed(address: tuple[str, int]) -> None:
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(address, timeout=0.3))
            for _ in range(connections.MAX_CONNECTIONS)
        ]
        late = stack.enter_context(socket.create_connection(address, timeout=20))
        assert _is_closed(late)
        assert clients
    time.sleep(0.2)
    assert b"whole" in _answered(address)


def test_a_connection_stays_open_between_whole_requests(address: tuple[str, int]) -> None:
    with socket.create_connection(address, timeout=10) as client:
        for _ in range(4):
            client.sendall(WHOLE)
            assert b"200" in client.recv(1 << 16)
            time.sleep(0.5)


def test_the_studio_bounds_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    servers: list[Any] = []
    monkeypatch.setattr(uvicorn.Server, "run", lambda self, sockets: servers.append(self))
    monkeypatch.setattr("irgraph.studio.serve.application", lambda *_: _answer)
    serve(object(), browser=False, announce=lambda _: None)  # type: ignore[arg-type]
    assert servers[0].config.http is connections.BoundedProtocol
