"""Reader of any ``model.ir`` text: line by line if it is canonical, else by the grammar."""

from __future__ import annotations

import re

from msgspec.structs import replace

from irgraph import gc_pause
from irgraph.ir.graph import Graph
from irgraph.text.canonical import NotCanonicalError, read_canonical


def parse(text: str, source: str = "model.ir") -> Graph:
    """Return the graph of a text; raise ``IrgraphError`` (exit code 4) with the place of an error.

    Canonical text is read line by line; any other layout through the grammar. Models after the
    first are its rarer steps.
    """
    first, *further = _SECTION.split(text)
    if not first.strip() and further:  # comments or blank lines before the first model
        first, *further = first + further[0], *further[1:]
    graph = _parse_step(first.removesuffix("\n") if further else text, source, 0)
    rarer = []
    line = first.count("\n")
    for number, section in enumerate(further, 1):
        is_last = number == len(further)
        rarer.append(_parse_step(section if is_last else section.removesuffix("\n"), source, line))
        line += section.count("\n")
    return replace(graph, rarer=tuple(rarer)) if rarer else graph


_SECTION = re.compile(r"^(?=model \")", re.MULTILINE)


def _parse_step(text: str, source: str, line: int) -> Graph:
    """Return the graph of one step, whose text begins after ``line`` lines of the file."""
    try:
        with gc_pause.gc_paused():
            return read_canonical(text, source)
    except NotCanonicalError:
        from irgraph.text.parser import parse_any  # the grammar's library takes time to load

        return parse_any("\n" * line + text, source)
