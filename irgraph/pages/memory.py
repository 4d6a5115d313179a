"""Memory of a device over a predicted step, as a chart."""

from __future__ import annotations

import numpy as np

from irgraph.html import sections
from irgraph.html.sections import Section
from irgraph.ir.op import Op
from irgraph.predict.prediction import Prediction
from irgraph.schedule.memory import memory_by_op
from irgraph.schedule.tasks import Floats, Ints

POINTS = 1500
"""Points of a chart at most: of those between two, the one with most memory is kept."""

TEXT = (
    "Bytes of tensors by kind, as the caching allocator hands them out when the host launches; "
    "workspace and context come on top."
)


def memory_over_time(prediction: Prediction) -> Section | None:
    """Return the chart, ``None`` for a step without ops."""
    leaves, held = memory_by_op(prediction.priced.graph)
    if not leaves or not held:
        return None
    at = _times(prediction, leaves)
    total = sum(held.values(), np.zeros(len(leaves), np.int64))
    kept = _kept(total, at)
    layers = {kind: values[kept].tolist() for kind, values in sorted(held.items(), key=_steady)}
    limit = prediction.sheet.memory_bytes
    return sections.areas(
        "memory", "Memory over the step", at[kept].tolist(), layers, limit=limit, text=TEXT
    )


def _steady(item: tuple[str, Ints]) -> tuple[int, str]:
    """Put what changes least at the bottom of the chart."""
    return int(item[1].max() - item[1].min()), item[0]


def _times(prediction: Prediction, leaves: list[Op]) -> Floats:
    """Return when the host comes to each innermost op, microseconds; never less than before."""
    timeline, columns = prediction.timeline, prediction.timeline.columns
    host = np.array([r.kind == "host" for r in timeline.resources] or [False])
    mine = np.flatnonzero(host[columns.tasks.resource] & (columns.tasks.op >= 0))
    begun = np.full(len(columns.ops) + 1, np.inf)
    np.minimum.at(begun, columns.tasks.op[mine], columns.start[mine])
    of_op = {id(op): time for op, time in zip(columns.ops, begun.tolist(), strict=False)}
    found: dict[int, float] = {}
    for op in prediction.priced.graph.ops:
        _inherit(op, of_op, 0.0, found)
    times = np.array([found.get(id(leaf), 0.0) for leaf in leaves])
    return np.maximum.accumulate(np.where(np.isfinite(times), times, 0.0))


def _inherit(op: Op, of_op: dict[int, float], outer: float, found: dict[int, float]) -> None:
    begun = of_op.get(id(op), outer)
    found[id(op)] = begun
    for child in op.body:
        _inherit(child, of_op, begun, found)


def _kept(total: Ints, at: Floats) -> Ints:
    """Return positions of the points to show: the highest of each part, the first and the last."""
    if len(total) <= POINTS:
        return np.arange(len(total))
    part = np.minimum((at / (at[-1] or 1.0) * POINTS).astype(np.int64), POINTS - 1)
    order = np.lexsort((-total, part))
    first = np.concatenate([[True], np.diff(part[order]) != 0])
    return np.unique(np.concatenate([[0], order[first], [len(total) - 1]]))
