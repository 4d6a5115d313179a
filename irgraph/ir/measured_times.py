"""Measured times in a model: notes of its ops, and the card on which they were measured."""

from __future__ import annotations

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.quantity import Quantity

CARD = "measured_on"
"""Setting of a model: the card on which its times were measured, as the card's driver calls it."""


EMULATED_CARD = "card"
"""Setting of a captured model: device sheet of the card whose properties the program read."""


def measured_card(graph: Graph) -> str:
    """Return the card on which a model's times were measured, ``""`` if it is unknown."""
    return str(graph.settings.get(CARD, ""))


def has_measured_times(graph: Graph) -> bool:
    """Return whether any op of a model carries a measured time."""
    return any(op.notes and op_time(op) is not None for op in graph.walk())


def op_time(op: Op) -> Quantity | None:
    """Return the device time measured at an op itself, not below it, in microseconds."""
    time = op.notes.get("time")
    return time if isinstance(time, Quantity) and op.notes.get("by") == "measured" else None


def label_time(graph: Graph) -> float:
    """Return the measured time of work launched by annotations themselves, in microseconds."""
    labels = (op_time(op) for op in graph.walk() if op.is_annotation)
    return sum(time.value for time in labels if time is not None)
