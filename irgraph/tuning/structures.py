"""Structural variants of a step: each pipeline of passes is applied once, for all sizes."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.manage.run import run_stages
from irgraph.manage.stage import PipelineStep, stages
from irgraph.schedule.memory.peak import Peaks

MAX_STRUCTURES = 512
"""Maximum number of cached structures; unchanged parts are shared."""


class Structure(Struct, frozen=True):
    """A step after a pipeline.

    Attributes:
        graph: the step; if the pipeline is refused, the step before the refused pass.
        refused: reason why the pipeline cannot be applied, ``""`` if it can.
        peaks: peak memory at any sizes; ``None`` if the pipeline is refused.
    """

    graph: Graph
    refused: str = ""
    peaks: Peaks | None = None


class Structures:
    """The variants of one step, by their calls of passes.

    Attributes:
        pass_runs: number of passes run; each sequence of calls is run once.
    """

    def __init__(self, graph: Graph, pass_path: Sequence[str] = ()) -> None:
        self.graph, self.pass_path = graph, tuple(pass_path)
        self.pass_runs = 0
        self._cache: dict[tuple[str, ...], Structure] = {}

    def variant(self, calls: tuple[str, ...]) -> Structure:
        """Return the step after some calls of passes, in order."""
        cached = self._cache.get(calls)
        if cached is None:
            while len(self._cache) >= MAX_STRUCTURES:
                del self._cache[next(iter(self._cache))]
            cached = self._cache[calls] = self._build(calls)
        return cached

    def _build(self, calls: tuple[str, ...]) -> Structure:
        if not calls:
            return Structure(self.graph, peaks=Peaks(self.graph))
        parent = self.variant(calls[:-1])
        if parent.refused:
            return parent
        self.pass_runs += 1
        try:
            pipeline = stages([PipelineStep("pass", calls[-1])])
            graph = run_stages(parent.graph, pipeline, pass_path=self.pass_path).graph
        except IrgraphError as error:
            return Structure(parent.graph, f"{calls[-1]}: {error.diagnostics[0].message}")
        return Structure(graph, peaks=Peaks(graph))
