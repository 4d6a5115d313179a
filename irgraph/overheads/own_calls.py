"""What a host alone calls: on a CPU a call is its own launch, and its own work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from msgspec.structs import replace

from irgraph.capture.kineto.events.host import Call, HostView, Item
from irgraph.capture.kineto.reading.trace import Kind, KinetoTrace
from irgraph.ir.effects import always_alias
from irgraph.ir.live_out import UNFILLED
from irgraph.ir.schema import schemas_of


def of_cpu(trace: KinetoTrace) -> bool:
    """Return whether a trace shows a step on the CPU: no device, nor calls that could reach one."""
    reaches = trace.on_device | (trace.columns["kind"] == Kind.RUNTIME)
    return not (trace.device_name or reaches.any())


def with_own_calls(view: HostView, items: Sequence[Item]) -> Sequence[Item]:
    """Return the items of a CPU's trace with the calls that compute in each; others as they are.

    Those are the outermost operators that are made of no other ones (torch: not composite) and give
    more than views or memory, as a captured step has them for leaves.
    """
    if not of_cpu(view.tree.trace):
        return items
    below = view.tree.children()
    return [
        replace(item, calls=tuple(_calls(view, item.row, below))) if item.kind == "op" else item
        for item in items
    ]


def _calls(view: HostView, row: int, below: Mapping[int, Sequence[int]]) -> Iterator[Call]:
    """Yield the calls at or below a row in order of time."""
    columns, name = view.tree.trace.columns, view.name(row)
    kind = _kind(name) if columns["kind"][row] == Kind.OP else "scope"
    if kind == "work":
        start, end = int(columns["start"][row]), int(view.tree.end[row])
        yield Call(row, name, start, end, (row,), events=_events(row, below))
    elif kind == "scope":
        for child in below.get(row, ()):
            yield from _calls(view, child, below)


@cache
def _kind(name: str) -> str:
    """Return what an operator is: a ``scope`` around others, ``work``, or ``nothing``."""
    plain = name.replace("::", ".")
    schemas = schemas_of(plain)
    if not schemas or schemas[0].composite:  # other overloads may differ: those with names do
        return "scope"
    idle = always_alias(plain) or plain.rpartition(".")[2] in UNFILLED
    return "nothing" if idle else "work"


def _events(row: int, below: Mapping[int, Sequence[int]]) -> int:
    return 1 + sum(_events(child, below) for child in below.get(row, ()))
