"""Reader of any ``model.ir`` text: line by line if it is canonical, else by the grammar."""

from __future__ import annotations

from irgraph import gc_pause
from irgraph.ir.graph import Graph
from irgraph.text.canonical import NotCanonicalError, read_canonical


def parse(text: str, source: str = "model.ir") -> Graph:
    """Return the graph of a text; raise ``IrgraphError`` (exit code 4) with the place of an error.

    Canonical text is read line by line; any other layout through the grammar.
    """
    try:
        with gc_pause.gc_paused():
            return read_canonical(text, source)
    except NotCanonicalError:
        from irgraph.text.parser import parse_any  # the grammar's library takes time to load

        return parse_any(text, source)
