"""The result of a front end: a captured step."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import Diagnostic, SourceSpan, fail
from irgraph.ir.graph import OPERANDS, Graph
from irgraph.ops.verify import describe, verify

MAX_FINDINGS = 10
"""Maximum number of findings that are shown for an invalid graph."""

DEFECT_EXIT_CODE = 70
"""Exit code of a defect of irgraph."""


class Capture(Struct, frozen=True):
    """A captured step with notes about the capture.

    Attributes:
        graph: the step.
        notes: assumptions, omissions and repairs, one sentence each.
        differing: ops whose form on the accelerator differs from the captured one, one line each.
        links: pairs of origins, of a backward op and of its forward op.
        health: repairs of the Kineto trace that was read with it, as lines of text.
    """

    graph: Graph
    notes: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    health: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Exit code of a command: 3 if a trace had to be repaired, else 0."""
        return 3 if self.health else 0


def require_valid(graph: Graph, source: str, *, program: bool = False) -> Graph:
    """Return a graph that obeys every rule, or raise an error with the rules that it breaks.

    A trace may be damaged (exit code 4); an invalid graph of a ``program`` that ran is a defect of
    irgraph (exit code 70). If a recorded call does not fit its schema, the graph is marked, and
    its calls are not compared with their schemas.
    """
    findings = verify(graph)
    if findings:
        graph = replace(graph, settings={**graph.settings, OPERANDS: "as recorded"})
        findings = verify(graph)
    if not findings:
        return graph
    notes = [Diagnostic(describe(graph, f), severity="note") for f in findings[:MAX_FINDINGS]]
    count = f"{len(findings)} rule is" if len(findings) == 1 else f"{len(findings)} rules are"
    message = f"the {'step' if program else 'trace'} gives an invalid model: {count} broken"
    hint = "this is a bug in irgraph, not in the program: please report it" if program else ""
    code = DEFECT_EXIT_CODE if program else 4
    raise fail(
        message, SourceSpan(source) if source else None, hint=hint, notes=notes, exit_code=code
    )
