"""Calls of a trace without a device: on a CPU a call is its own launch and its own work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from msgspec.structs import replace

from irgraph.capture.kineto.events.host import HostItem, HostView, RuntimeCall
from irgraph.capture.kineto.reading.trace import EventKind, KinetoTrace
from irgraph.ir.effects import always_alias
from irgraph.ir.schema import schemas_of
from irgraph.ops.live_out import UNFILLED


def is_cpu_trace(trace: KinetoTrace) -> bool:
    """Return whether a trace is of a step on the CPU: no device, and no calls that reach one."""
    reaches_device = trace.on_device | (trace.columns["kind"] == EventKind.RUNTIME)
    return not (trace.device_name or reaches_device.any())


def with_own_calls(view: HostView, items: Sequence[HostItem]) -> Sequence[HostItem]:
    """Return the items of a CPU's trace with their computing calls; other traces' unchanged.

    Computing calls are the outermost operators that torch does not compose of others and that
    return more than views or memory: the leaves of a captured step.
    """
    if not is_cpu_trace(view.tree.trace):
        return items
    children = view.tree.children()
    return [
        replace(item, calls=tuple(_calls(view, item.row, children))) if item.kind == "op" else item
        for item in items
    ]


def _calls(
    view: HostView, row: int, children: Mapping[int, Sequence[int]]
) -> Iterator[RuntimeCall]:
    """Yield the computing calls at or below a row, in order of time."""
    columns, name = view.tree.trace.columns, view.name(row)
    kind = _operator_kind(name) if columns["kind"][row] == EventKind.OP else "scope"
    if kind == "work":
        start, end = int(columns["start"][row]), int(view.tree.end[row])
        yield RuntimeCall(row, name, start, end, (row,), events=_event_count(row, children))
    elif kind == "scope":
        for child in children.get(row, ()):
            yield from _calls(view, child, children)


@cache
def _operator_kind(name: str) -> str:
    """Return the kind of an operator: a ``scope`` around others, ``work``, or ``nothing``."""
    dotted_name = name.replace("::", ".")
    schemas = schemas_of(dotted_name)
    if not schemas or schemas[0].composite:  # named overloads may differ
        return "scope"
    computes_nothing = always_alias(dotted_name) or dotted_name.rpartition(".")[2] in UNFILLED
    return "nothing" if computes_nothing else "work"


def _event_count(row: int, children: Mapping[int, Sequence[int]]) -> int:
    return 1 + sum(_event_count(child, children) for child in children.get(row, ()))
