"""Functions over files and graphs: what the commands do, for programs."""

from __future__ import annotations

from pathlib import Path

from irgraph.ir.graph import Graph
from irgraph.ir.verify import verify
from irgraph.report.files import read_text, write_atomic
from irgraph.text import Diagnostic, IrgraphError, Place, fail, parse, print_graph


def read_graph(path: str | Path) -> Graph:
    """Return the graph of a ``model.ir`` file (``-``: standard input), not yet verified.

    Raises ``IrgraphError`` with the place of an error; a trace given as a model is told so.
    """
    text = read_text(path)
    start = text.lstrip()[:1]
    if start in ("{", "["):
        kind = "a Kineto trace" if '"traceEvents"' in text[:100_000] else "JSON, not model.ir"
        if '"nodes"' in text and '"schema"' in text[:1000]:
            kind = "a PyTorch execution trace"
        raise fail(f"this is {kind}", Place(str(path)), hint=f"irgraph lower {path} -o model.ir")
    return parse(text, str(path))


def load(path: str | Path) -> Graph:
    """Return the graph of a ``model.ir`` file, verified.

    Raises ``IrgraphError`` with the place of every finding.
    """
    return verified(read_graph(path))


def verified(graph: Graph) -> Graph:
    """Return the graph if it breaks no rule; else raise ``IrgraphError`` with all findings."""
    findings = verify(graph)
    if findings:
        raise IrgraphError(
            tuple(
                Diagnostic(
                    f"{finding.op.name + ': ' if finding.op else ''}{finding.message}",
                    Place(graph.source or graph.name, "", finding.op.line if finding.op else 0),
                )
                for finding in findings
            )
        )
    return graph


def save(graph: Graph, path: str | Path) -> None:
    """Write a graph as canonical ``model.ir``, whole or not at all."""
    write_atomic(path, print_graph(graph))
