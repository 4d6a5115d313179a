"""Structural variants of a step: each pipeline of passes is applied once, for all sizes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.manage.run import run_stages
from irgraph.manage.stage import PipelineStep, stages
from irgraph.schedule.memory import Peaks

MOST = 512
"""Structures that are kept; they share what they have in common."""


class Structure(Struct, frozen=True):
    """A step as a pipeline leaves it.

    Attributes:
        graph: the step; the one before where the pipeline is refused.
        refused: why the pipeline cannot be applied, ``""`` where it was.
        peaks: its peak memory at any sizes; ``None`` where it is refused.
    """

    graph: Graph
    refused: str = ""
    peaks: Peaks | None = None


class Structures:
    """The variants of one step, by their calls of passes.

    Attributes:
        applied: passes that were run; each call behind each other one once.
    """

    def __init__(self, graph: Graph, pass_path: Sequence[str] = ()) -> None:
        self.graph, self.pass_path = graph, tuple(pass_path)
        self.applied = 0
        self._known: dict[tuple[str, ...], Structure] = {}

    def of(self, calls: tuple[str, ...]) -> Structure:
        """Return the step after some calls of passes, in order."""
        found = self._known.get(calls)
        if found is None:
            while len(self._known) >= MOST:
                del self._known[next(iter(self._known))]
            found = self._known[calls] = self._made(calls)
        return found

    def _made(self, calls: tuple[str, ...]) -> Structure:
        if not calls:
            return Structure(self.graph, peaks=Peaks(self.graph))
        before = self.of(calls[:-1])
        if before.refused:
            return before
        self.applied += 1
        try:
            pipeline = stages([PipelineStep("pass", calls[-1])])
            graph = run_stages(before.graph, pipeline, pass_path=self.pass_path).graph
        except IrgraphError as error:
            return Structure(before.graph, f"{calls[-1]}: {error.diagnostics[0].message}")
        return Structure(graph, peaks=Peaks(graph))
