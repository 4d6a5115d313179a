"""A studio without a server, and one beside the tests for a browser."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

import irgraph
from irgraph.studio.app import Studio, application
from irgraph.studio.session import Session
from tests.test_api import DLRM

PORT, TOKEN = 8765, "secret-token"
HOST = f"127.0.0.1:{PORT}"
OWN = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
"""What a browser sends with requests of the page."""

SMALL = """model "small" { format = 2  dims = {B = 64} }

device @gpu0 "v100"
input %x : f32[B, 8] in $x
param %c "top.bias" : f32[8] in $c
param %w "top.weight" : f32[8, 8] in $w

%h = aten.addmm(%c, %x, %w) : f32[B, 8] in $h in module "top.0"
%y = aten.relu(%h) : f32[B, 8] in $y in module "top.1"
%z = aten.neg(%y) : f32[B, 8] in $z
return %z
"""


@pytest.fixture(scope="session")
def dlrm() -> irgraph.Graph:
    """Return DLRM."""
    return irgraph.load(DLRM)


@pytest.fixture
def session() -> Session:
    """Return a session on a model of three ops."""
    return Session(irgraph.parse(SMALL))


def studio(graph: irgraph.Graph, folder: Path, pass_path: tuple[str, ...] = ()) -> Studio:
    """Return a studio that writes into a folder."""
    title = (f"{graph.name} ({graph.source})", "predicted")
    return Studio(Session(graph, pass_path=pass_path), title, graph.name, folder)


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    """Return what sends requests to a studio of the small model, as no page does."""
    app: Any = application(studio(irgraph.parse(SMALL), tmp_path), TOKEN, PORT)
    return TestClient(app, base_url=f"http://{HOST}", follow_redirects=False)


@pytest.fixture
def post(client: TestClient) -> Callable[..., Any]:
    """Return what sends requests as the page does, and returns the answer in JSON."""

    def call(what: str, status: int = 200, **value: Any) -> Any:
        answer = client.post(f"/{TOKEN}/{what}", json=value, headers=OWN)
        assert answer.status_code == status, answer.text
        return answer.json()

    return call


@contextmanager
def served(made: Studio) -> Iterator[str]:
    """Serve a studio in a thread; yield its address."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        app: Any = application(made, TOKEN, port)
        server = uvicorn.Server(uvicorn.Config(app, log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield f"http://127.0.0.1:{port}/{TOKEN}/"
        finally:
            server.should_exit = True
            thread.join()
