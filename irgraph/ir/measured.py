"""Measured times in a model: notes of its ops, and the card that they come from."""

from __future__ import annotations

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.quantity import Quantity

CARD = "measured_on"
"""Setting of a model: the card that its measured times come from, as its driver calls it."""


def measured_card(graph: Graph) -> str:
    """Return the card that a model's measured times come from, ``""`` if it does not say."""
    return str(graph.settings.get(CARD, ""))


def has_measured_times(graph: Graph) -> bool:
    """Return whether any op of a model carries a measured time."""
    return any(op_time(op) is not None for op in graph.walk())


def op_time(op: Op) -> Quantity | None:
    """Return the microseconds of device work measured at an op itself, not below it."""
    time = op.notes.get("time")
    return time if isinstance(time, Quantity) and op.notes.get("by") == "measured" else None


def label_time(graph: Graph) -> float:
    """Return microseconds of measured work launched by annotations, not by operators in them."""
    labels = (op_time(op) for op in graph.walk() if op.is_annotation)
    return sum(time.value for time in labels if time is not None)
