"""Notes of a capture that belong to each prediction of its model."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from irgraph.ir.graph import Graph

NOTES = "notes"
"""Setting with the notes, as one text."""

BETWEEN = "; "


def with_step_notes(graph: Graph, notes: Sequence[str]) -> Graph:
    """Return a graph that stores these notes about the step, and no others."""
    settings = {name: value for name, value in graph.settings.items() if name != NOTES}
    stored = {NOTES: BETWEEN.join(notes)} if notes else {}
    return replace(graph, settings=settings | stored)


def step_notes(graph: Graph) -> tuple[str, ...]:
    """Return the notes that a graph stores."""
    text = graph.settings.get(NOTES)
    return tuple(text.split(BETWEEN)) if isinstance(text, str) else ()
