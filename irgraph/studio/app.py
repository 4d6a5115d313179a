"""Web application of the studio: the page, its scripts and styles, and the session in JSON."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

import irgraph
from irgraph import Diagnostic, IrgraphError, gc_pause
from irgraph.html.page import asset, island
from irgraph.studio import folder, page_data, patterns, words
from irgraph.studio.guard import Guard
from irgraph.studio.session import Session

REPORT_SCRIPTS = (
    "base",
    "colours",
    "table",
    "figures",
    "slices",
    "draw",
    "lanes",
    "steer",
    "search",
)
"""Scripts that the page shares with reports."""

PAGE_SCRIPTS = ("server", "editor", "ops", "passes", "result", "main")
"""Scripts of the page, in the order of their dependences."""

LIBRARY = ("codemirror/codemirror.js", "codemirror/show-hint.js")
STYLES = ("codemirror/codemirror.css", "codemirror/show-hint.css", "studio.css")


class PreviewRequest(msgspec.Struct):
    """Statements; ``number`` counts the page's requests, so that only the last is evaluated."""

    text: str
    number: int = 0


class SelectionRequest(msgspec.Struct):
    """Ops that were selected, by their positions among all."""

    verb: str
    ops: list[int]


class HistoryRequest(msgspec.Struct):
    """Number of edits to undo (negative) or to apply again."""

    by: int


class SaveRequest(msgspec.Struct):
    """Names of the files to write."""

    script: str
    model: str
    replace: bool = False


class Studio:
    """Handler of the page's requests to a session, one at a time.

    Args:
        session: the edits.
        about: title and one line about the model, as the page shows them.
        name: base of the names of files.
        directory: the folder where files are written.
    """

    def __init__(
        self, session: Session, about: tuple[str, str], name: str, directory: Path
    ) -> None:
        self.session, self.about, self.name, self.directory = session, about, name, directory
        self.lock = threading.Lock()
        self.passes = irgraph.passes(session.pass_path)
        self._latest = 0

    def start(self) -> dict[str, Any]:
        """Return the initial data of the page."""
        stem = re.sub(r"[^A-Za-z0-9_]", "", self.name)[:60] or "model"
        return {
            "title": self.about[0],
            "about": self.about[1],
            "folder": str(self.directory),
            "names": {"script": f"{stem}-edited.irg", "model": f"{stem}-edited.ir"},
            "rules": words.rules(),
            "forms": [[verb, label] for verb, (label, _) in patterns.FORMS.items()],
            "passes": [
                [
                    script_pass.name,
                    script_pass.description,
                    words.call(script_pass),
                    script_pass.changing,
                ]
                for script_pass in self.passes
            ],
            "state": page_data.state(self.session),
        }

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock the session without garbage collection, which takes a quarter of an edit's time."""
        with self.lock, gc_pause.gc_paused():
            yield

    def preview(self, request: PreviewRequest) -> dict[str, Any]:
        """Return the effect of statements, or only that they are late if others followed."""
        self._latest = max(self._latest, request.number)
        with self._exclusive():
            if request.number < self._latest:
                return {"late": True}
            return page_data.attempt(self.session, self.session.attempt(request.text))

    def apply(self, request: PreviewRequest) -> dict[str, Any]:
        """Apply statements; return the state after them, or the reasons of a refusal."""
        with self._exclusive():
            attempt = self.session.apply(request.text)
            if attempt.step is None:
                return page_data.attempt(self.session, attempt)
            return {"legal": True, "state": page_data.state(self.session)}

    def move(self, request: HistoryRequest) -> dict[str, Any]:
        """Undo or redo edits."""
        with self.lock:
            self.session.move(request.by)
            return {"state": page_data.state(self.session)}

    def select(self, request: SelectionRequest) -> dict[str, Any]:
        """Return a statement about ops."""
        with self.lock:
            return {"text": patterns.statement(self.session.step.graph, request.verb, request.ops)}

    def complete(self, request: PreviewRequest) -> dict[str, Any]:
        """Return the words that may follow a text."""
        earlier_text = "".join(step.text.rstrip() + "\n" for step in self.session.edits)
        graph = self.session.step.graph
        part, candidates = words.completions(earlier_text + request.text, graph, self.passes)
        return {"part": len(part), "words": candidates}

    def save(self, request: SaveRequest) -> dict[str, Any]:
        """Write the script and the model into the folder."""
        with self.lock:
            text = self.session.script()
            model = irgraph.print_graph(self.session.step.graph)
        files = {"script": (request.script, text), "model": (request.model, model)}
        try:
            paths = folder.write(self.directory, files, replace=request.replace)
        except folder.FileConflictError as error:
            return {"taken": error.diagnostics[0].message}
        return {"saved": [path.name for path in paths]}


def application(studio: Studio, token: str, port: int) -> Guard:
    """Return the application for a server: the studio, accessible only to its own page."""
    calls: dict[str, tuple[type[msgspec.Struct], Callable[[Any], dict[str, Any]]]] = {
        "try": (PreviewRequest, studio.preview),
        "apply": (PreviewRequest, studio.apply),
        "move": (HistoryRequest, studio.move),
        "select": (SelectionRequest, studio.select),
        "complete": (PreviewRequest, studio.complete),
        "save": (SaveRequest, studio.save),
    }
    routes = [
        Route("/", lambda _: _page(studio)),
        Route("/studio.js", lambda _: Response(_script(), media_type="text/javascript")),
        Route("/editor.js", lambda _: Response(_library(), media_type="text/javascript")),
        Route("/studio.css", lambda _: Response(_style(), media_type="text/css")),
        *(Route(f"/{name}", _call(*call), methods=["POST"]) for name, call in calls.items()),
    ]
    return Guard(Starlette(routes=routes), token, port)


def _call(
    kind: type[msgspec.Struct], act: Callable[[Any], dict[str, Any]]
) -> Callable[[Request], Any]:
    """Return a handler that answers requests in JSON; a refusal is an answer as well."""

    async def answer(request: Request) -> Response:
        if request.headers.get("content-type", "").partition(";")[0] != "application/json":
            return _json({"problems": _problems("send JSON")}, 415)
        try:
            body = msgspec.json.decode(await request.body(), type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return _json({"problems": _problems(f"not what this takes: {error}")}, 400)
        try:
            return _json(await run_in_threadpool(act, body))
        except IrgraphError as error:
            return _json(
                {"problems": [page_data.problem(diagnostic) for diagnostic in error.diagnostics]},
                422,
            )
        except Exception as error:
            return _json({"problems": _problems(_defect(error))}, 500)

    return answer


def _defect(error: Exception) -> str:
    import os

    if os.environ.get("IRGRAPH_DEBUG"):
        raise error
    return f"internal error: {type(error).__name__}: {error}; this is a bug in irgraph"


def _problems(message: str) -> list[dict[str, Any]]:
    return [page_data.problem(Diagnostic(message))]


def _json(value: Mapping[str, Any], status: int = 200) -> Response:
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:  # the name of a file that is no UTF-8
        text = json.dumps(value).encode()
    return Response(text, status, media_type="application/json")


def _page(studio: Studio) -> Response:
    with studio.lock:
        data = island(studio.start())
    return Response(Template(_asset("studio.html")).substitute(data=data), media_type="text/html")


@cache
def _asset(name: str) -> str:
    return (resources.files("irgraph.studio") / "assets" / name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = [asset(f"js/{name}.js") for name in REPORT_SCRIPTS]
    parts += [_asset(f"js/{name}.js") for name in PAGE_SCRIPTS]
    return '(() => {\n"use strict";\n' + "\n".join(parts) + "\n})();"


@cache
def _library() -> str:
    return "\n".join(map(_asset, LIBRARY))


@cache
def _style() -> str:
    return asset("page.css") + "\n".join(map(_asset, STYLES))
