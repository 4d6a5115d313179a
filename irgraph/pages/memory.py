"""Memory of a device over a predicted step, as a chart."""

from __future__ import annotations

import numpy as np

from irgraph.html import sections
from irgraph.html.sections import Section
from irgraph.ir.op import Op
from irgraph.predict.prediction import Prediction
from irgraph.schedule.memory.peak import memory_by_op
from irgraph.schedule.tasks import Floats, Ints

MAX_POINTS = 1500
"""Maximum number of points of a chart, each with the peak memory of its part of the step."""

TEXT = (
    "Bytes of tensors by kind, as the caching allocator hands them out when the host launches; "
    "workspace and context come on top."
)


def memory_over_time(prediction: Prediction) -> Section | None:
    """Return the chart, ``None`` for a step without ops."""
    leaves, bytes_by_kind = memory_by_op(prediction.priced.graph)
    if not leaves or not bytes_by_kind:
        return None
    times = _start_times(prediction, leaves)
    total = sum(bytes_by_kind.values(), np.zeros(len(leaves), np.int64))
    points = _chart_points(total, times)
    layers = {
        kind: values[points].tolist()
        for kind, values in sorted(bytes_by_kind.items(), key=_variation)
    }
    limit = prediction.sheet.memory_bytes
    return sections.areas(
        "memory", "Memory over the step", times[points].tolist(), layers, limit=limit, text=TEXT
    )


def _variation(item: tuple[str, Ints]) -> tuple[int, str]:
    """Return the sort key of a layer: layers that vary least are at the bottom of the chart."""
    return int(item[1].max() - item[1].min()), item[0]


def _start_times(prediction: Prediction, leaves: list[Op]) -> Floats:
    """Return the host's start of each innermost op, microseconds, as a running maximum."""
    timeline, columns = prediction.timeline, prediction.timeline.columns
    host = np.array([r.kind == "host" for r in timeline.resources] or [False])
    host_intervals = np.flatnonzero(host[columns.tasks.resource] & (columns.tasks.op >= 0))
    starts = np.full(len(columns.ops) + 1, np.inf)
    np.minimum.at(starts, columns.tasks.op[host_intervals], columns.start[host_intervals])
    interval_starts = dict(zip(columns.ops, starts.tolist(), strict=False))
    start_by_op: dict[Op, float] = {}
    for op in prediction.priced.graph.ops:
        _inherit_starts(op, interval_starts, 0.0, start_by_op)
    times = np.array([start_by_op.get(leaf, 0.0) for leaf in leaves])
    return np.maximum.accumulate(np.where(np.isfinite(times), times, 0.0))


def _inherit_starts(
    op: Op, interval_starts: dict[Op, float], outer_start: float, start_by_op: dict[Op, float]
) -> None:
    start = interval_starts.get(op, outer_start)
    start_by_op[op] = start
    for child in op.body:
        _inherit_starts(child, interval_starts, start, start_by_op)


def _chart_points(total: Ints, times: Floats) -> Ints:
    """Return positions of the chart's points: the highest of each part, the first and the last."""
    if len(total) <= MAX_POINTS:
        return np.arange(len(total))
    segment = np.minimum((times / (times[-1] or 1.0) * MAX_POINTS).astype(np.int64), MAX_POINTS - 1)
    order = np.lexsort((-total, segment))
    first = np.concatenate([[True], np.diff(segment[order]) != 0])
    return np.unique(np.concatenate([[0], order[first], [len(total) - 1]]))
