"""On-disk cache of captured programs as model files: capturing one takes at least ten seconds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from irgraph.api import load
from irgraph.diagnostics import fail
from irgraph.files import write_atomic
from irgraph.ir.graph import Graph
from irgraph.text import print_graph

NO_NAME = re.compile(r"[^A-Za-z0-9_.=-]+")


def cached_program(folder: Path | None, name: str, make: Callable[[], Graph]) -> Graph:
    """Return the cached program of this name, or capture it with ``make`` and cache it.

    Raises ``IrgraphError`` if it cannot be captured, read or written.
    """
    if folder is None:
        return make()
    path = folder / f"{NO_NAME.sub('_', name)}.ir"
    if path.exists():
        return load(path)
    graph = make()
    write_atomic(path, print_graph(graph))
    return graph


def folder_for(path: str | None) -> Path | None:
    """Return the folder of the cache, created if it is missing; ``None`` without a path.

    Raises ``IrgraphError`` if it cannot be created.
    """
    if path is None:
        return None
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(f"--keep: {error.strerror}: {path}", exit_code=2) from None
    return folder
