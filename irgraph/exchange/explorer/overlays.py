"""Predictions of each op, as node data of Model Explorer.

The fields are those of ``node_data_builder.py`` of github.com/google-ai-edge/model-explorer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from irgraph.exchange.explorer.names import node_ids
from irgraph.ir.cost import PROVENANCES, Kernel, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.schedule.critical_path import CriticalPath
from irgraph.schedule.memory.peak import memory_by_op
from irgraph.schedule.tasks import Ints
from irgraph.schedule.timeline import Timeline

OpChange: TypeAlias = tuple[str, Op | None, Op | None]
"""Kind of a change, and the op before and after."""

COLOURS = {"measured": "#2e7d32", "scaled": "#7cb342", "learned": "#1e88e5",
           "heuristic": "#fb8c00", "none": "#e53935"}  # fmt: skip
"""Colours of provenances, from measured to unknown."""

CHANGES = {"removed": "#e57373", "added": "#81c784", "moved": "#ffd54f", "retyped": "#ba68c8",
           "rewired": "#4fc3f7", "repriced": "#ffb74d"}  # fmt: skip
"""Colours of kinds of change."""

DIGITS = 3
"""Number of displayed digits after the point: nanoseconds."""

WHITE, RED, BLUE, GREEN = "#ffffff", "#e57373", "#64b5f6", "#81c784"


class Overlay(Struct, frozen=True):
    """One value for each op that has it.

    Attributes:
        name: displayed name, with its unit.
        values: by node id.
        colours: ends of a gradient from the smallest to the largest value, or colours by value.
        single: whether the sum of a layer is meaningless.
    """

    name: str
    values: Mapping[str, float | str]
    colours: tuple[str, str] | Mapping[str, str] = (WHITE, RED)
    single: bool = False

    def data(self) -> dict[str, Any]:
        """Return the node data of one graph."""
        if isinstance(self.colours, Mapping):
            colours = self.colours
            results = {
                node: {"value": value, "bgColor": colours.get(str(value), WHITE)}
                for node, value in self.values.items()
            }
            return {"results": results, "showExpandedSummaryOnGroupNode": True}
        low, high = self.colours
        hidden = {"hideAggregatedStats": ["sum", "avg"]} if self.single else {}
        return {
            **hidden,
            "results": {n: {"value": round(float(v), DIGITS)} for n, v in self.values.items()},
            "gradient": [{"stop": 0, "bgColor": low}, {"stop": 1, "bgColor": high}],
        }


def overlays(priced: Priced, timeline: Timeline, path: CriticalPath) -> list[Overlay]:
    """Return the overlays of a predicted step: times in microseconds, memory in bytes.

    Device time is shown at the priced op, host time and slack at the outermost op, to which they
    are charged. A layer sums the values of its nodes.
    """
    ids = node_ids(priced.graph)
    kernels = {
        ids[key]: op_kernels
        for key, op_kernels in priced.kernels.items()
        if op_kernels and key in ids
    }
    device = {node: sum(k.time for k in op_kernels) for node, op_kernels in kernels.items()}
    provenances = {node: _provenance(op_kernels) for node, op_kernels in kernels.items()}
    provenances |= {ids[op]: "none" for op in priced.unknown}
    slack = {ids[key]: value for key, value in path.slack.items() if key in ids}
    return [
        Overlay("device time (us)", device),
        Overlay("host time (us)", _durations(timeline, ids, _on_host(timeline))),
        Overlay("critical path (us)", _durations(timeline, ids, path.chain)),
        Overlay("slack (us)", slack, (GREEN, WHITE), single=True),
        Overlay("provenance", provenances, COLOURS),
        Overlay("memory (bytes)", _memory(priced, ids), (WHITE, BLUE), single=True),
    ]


def changes(
    before: Graph, after: Graph, differences: Iterable[OpChange]
) -> tuple[Overlay, Overlay]:
    """Return the changes from one model to another as an overlay of each.

    ``differences`` has the kind of each change, and the op before and after it, ``None`` if there
    is none.
    """
    sides: list[dict[str, str]] = []
    for graph in (before, after):
        sides.append(dict.fromkeys(node_ids(graph).values(), "kept"))
    ids = node_ids(before), node_ids(after)
    for kind, *ops in differences:
        for side, op_ids, top in zip(sides, ids, ops, strict=True):
            side.update((op_ids[op], kind) for op in (top.walk() if top else ()))
    first, second = (Overlay("change", side, CHANGES) for side in sides)
    return first, second


def _provenance(kernels: tuple[Kernel, ...]) -> str:
    """Return the least reliable of the kernels' provenances."""
    return max((kernel.by for kernel in kernels), key=PROVENANCES.index)


def _on_host(timeline: Timeline) -> Ints:
    """Return the indices of the host threads' intervals."""
    hosts = [index for index, resource in enumerate(timeline.resources) if resource.kind == "host"]
    return np.flatnonzero(np.isin(timeline.columns.tasks.resource, hosts))


def _durations(timeline: Timeline, ids: Mapping[Op, str], selected: Ints) -> dict[str, float]:
    """Sum the lengths of some intervals by op, microseconds."""
    columns = timeline.columns
    sums: dict[str, float] = defaultdict(float)
    times = (columns.end - columns.start)[selected].tolist()
    for op, time in zip(columns.tasks.op[selected].tolist(), times, strict=True):
        if op >= 0:
            sums[ids[columns.ops[op]]] += time
    return dict(sums)


def _memory(priced: Priced, ids: Mapping[Op, str]) -> dict[str, float]:
    """Return the bytes that are allocated while each innermost op runs."""
    leaves, bytes_by_kind = memory_by_op(priced.graph)
    total = sum(bytes_by_kind.values(), np.zeros(len(leaves), np.int64))
    return {ids[leaf]: int(size) for leaf, size in zip(leaves, total, strict=True)}
