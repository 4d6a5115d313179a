"""Rarer steps of a program: complete steps that the usual one lists, each with its share.

A model's file has them after the usual step, as further models.
"""

from __future__ import annotations

from fractions import Fraction

from msgspec.structs import replace

from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph
from irgraph.ir.step_notes import step_notes, with_step_notes

SHARE = "steps"
"""Setting of a rarer step with its share of all steps, such as ``1/5``."""

OMITTED = "not part of the model"
"""End of a note on steps that the model lacks."""

INCLUDED = "a rarer step of the model"
"""End of a note on steps that the model has as rarer steps."""

SEVERAL = "--period: the model has {} kinds of rarer steps, and this specifies one"
NONE = "--period: the model has no rarer step: all captured steps make the same calls"


def share_of(rarer: Graph) -> Fraction:
    """Return the share of a rarer step; raise ``IrgraphError`` if the model does not state it."""
    text = rarer.settings.get(SHARE)
    try:
        share = Fraction(text) if isinstance(text, str) else Fraction(0)
    except (ValueError, ZeroDivisionError):
        share = Fraction(0)
    if not 0 < share < 1:
        message = f"the rarer step {rarer.name!r} has no share of all steps"
        raise fail(message, hint=f'write {SHARE} = "1/5" into its first line', exit_code=2)
    return share


def with_share(rarer: Graph, share: Fraction) -> Graph:
    """Return a rarer step with another share of all steps."""
    return replace(rarer, settings={**rarer.settings, SHARE: str(share)})


def with_period(graph: Graph, period: int) -> Graph:
    """Return a graph of whose steps one in ``period`` is its rarer step.

    Raises ``IrgraphError`` (exit code 2) if there is not exactly one kind of rarer steps.
    """
    if period < 2:
        raise fail(f"--period: at least 2 steps, not {period}", exit_code=2)
    if len(graph.rarer) != 1:
        message = SEVERAL.format(len(graph.rarer)) if graph.rarer else NONE
        hint = f'write {SHARE} = "1/{period}" into the first line of a rarer step'
        raise fail(message, hint=hint if graph.rarer else "", exit_code=2)
    notes = [
        f"{note}, here 1 in {period} steps" if note.endswith(INCLUDED) else note
        for note in step_notes(graph)
    ]
    rarer = with_share(graph.rarer[0], Fraction(1, period))
    return with_step_notes(replace(graph, rarer=(rarer,)), notes)


def without_rarer(graph: Graph) -> Graph:
    """Return a graph of the usual step alone; its notes state that rarer steps are missing."""
    if not graph.rarer:
        return graph
    notes = [note.replace(INCLUDED, OMITTED) for note in step_notes(graph)]
    return with_step_notes(replace(graph, rarer=()), notes)
