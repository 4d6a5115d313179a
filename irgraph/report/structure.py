"""Structural difference of two graphs: ops added, removed, moved, retyped and rewired."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from irgraph.ir.cost import Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.values import spell
from irgraph.report.pairing import Pairing, TreePosition, pair_ops, unmoved_indices

KINDS = {
    "removed": "-", "added": "+", "moved": ">", "retyped": "~", "rewired": "=", "repriced": "$",
}  # fmt: skip
"""Marks of changes by kind, in the order of the output."""


class Change(Struct, frozen=True):
    """One op that differs.

    Attributes:
        kind: a key of ``KINDS``; ``repriced`` if only the predicted time differs.
        before, after: the op in either graph; ``None`` if it is missing.
        detail: description of the change, such as ``f32[8, 4] -> bf16[8, 4]``.
        times: predicted device time before and after in microseconds; zeros without a device.
    """

    kind: str
    before: Op | None
    after: Op | None
    detail: str = ""
    times: tuple[float, float] = (0.0, 0.0)

    @property
    def op(self) -> Op:
        """The op in the second graph, or else in the first one."""
        op = self.after or self.before
        assert op is not None
        return op


@dataclass
class ChangeGroup:
    """Changes of one kind to ops of one name."""

    kind: str
    name: str
    changes: list[Change] = field(default_factory=list)

    @property
    def times(self) -> tuple[float, float]:
        """Predicted device time of all changes, before and after, in microseconds."""
        before, after = zip(*(change.times for change in self.changes), strict=True)
        return sum(before), sum(after)

    @property
    def detail(self) -> str:
        """Descriptions of the changes, the most frequent first."""
        return _most_frequent([change.detail for change in self.changes if change.detail], 2)

    @property
    def location(self) -> str:
        """Modules of the ops, or their origins."""
        places = [change.op.module or change.op.origin for change in self.changes]
        return _most_frequent([place for place in places if place], 2)

    def row(self) -> dict[str, object]:
        """Return the group as plain values; times in microseconds."""
        before, after = self.times
        return {
            "change": self.kind,
            "op": self.name,
            "count": len(self.changes),
            "detail": self.detail,
            "where": self.location,
            "before_us": round(before, 3),
            "after_us": round(after, 3),
        }


def _most_frequent(texts: Sequence[str], max_texts: int) -> str:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    names = sorted(counts, key=lambda text: -counts[text])
    more = f" and {len(names) - max_texts} more" if len(names) > max_texts else ""
    return "; ".join(names[:max_texts]) + more


def structural_diff(
    before: Graph,
    after: Graph,
    priced: tuple[Priced, Priced] | None = None,
) -> list[Change]:
    """Return the changes from one graph to another, by kind and in launch order.

    Ops are matched by identity, origin, name, operands and results. A removed or added op includes
    its body. If both graphs are priced, each change has its device time before and after; their
    sum is the change of the total device time.
    """
    pairing = pair_ops(before, after)
    times = _Times(pairing, priced)
    changes = [
        *_unmatched_changes("removed", pairing, times),
        *_unmatched_changes("added", pairing, times),
    ]
    unmoved = unmoved_indices(pairing)
    for i, j in pairing.pairs:
        difference = _difference(pairing.before[i], pairing.after[j], i in unmoved)
        op_times = times.matched_times(i, j)
        if difference is None and abs(op_times[1] - op_times[0]) > 1e-6:
            difference = ("repriced", "")
        if difference is not None:
            kind, detail = difference
            ops = pairing.before[i].op, pairing.after[j].op
            changes.append(Change(kind, *ops, detail, op_times))
    return sorted(changes, key=lambda change: list(KINDS).index(change.kind))


class _Times(Struct, frozen=True):
    """Predicted times of ops in both graphs, without the ops inside them."""

    pairing: Pairing
    priced: tuple[Priced, Priced] | None

    def matched_times(self, i: int, j: int) -> tuple[float, float]:
        """Return the times of a matched op in both graphs, without the ops inside it."""
        first, second = self.pairing.before[i].op, self.pairing.after[j].op
        return self.time_of(0, first), self.time_of(1, second)

    def time_of(self, side: int, op: Op) -> float:
        """Return the time priced at an op of the first or second graph in microseconds."""
        if self.priced is None:
            return 0.0
        return sum(kernel.time for kernel in self.priced[side].kernels.get(op, ()))


def _unmatched_changes(kind: str, pairing: Pairing, times: _Times) -> Iterable[Change]:
    """Yield the unmatched ops of one graph, each with the time of all unmatched ones in it."""
    side = 0 if kind == "removed" else 1
    positions = pairing.after if side else pairing.before
    matched = pairing.backward if side else pairing.forward
    tops: dict[int, int] = {}
    time_by_top: dict[int, float] = {}
    for index, position in enumerate(positions):
        if index in matched:
            continue
        top = tops[index] = tops.get(position.parent, index)
        time_by_top[top] = time_by_top.get(top, 0.0) + times.time_of(side, position.op)
    for index, time in time_by_top.items():
        op = positions[index].op
        if side:
            yield Change(kind, None, op, types_of(op), (0.0, time))
        else:
            yield Change(kind, op, None, types_of(op), (time, 0.0))


def _difference(a: TreePosition, b: TreePosition, is_unmoved: bool) -> tuple[str, str] | None:
    """Return kind and detail of the difference of two matched ops, ``None`` if they are equal."""
    first, second = types_of(a.op), types_of(b.op)
    if first != second:
        return "retyped", f"{first} -> {second}"
    lanes = f"{a.op.thread}/{a.op.stream or 'default'}", f"{b.op.thread}/{b.op.stream or 'default'}"
    if lanes[0] != lanes[1]:
        return "moved", f"{lanes[0]} -> {lanes[1]}"
    if not is_unmoved:
        return "moved", ""
    for find in (_attributes, _operands):
        detail = find(a.op, b.op)
        if detail:
            return "rewired", detail
    return None


def types_of(op: Op) -> str:
    """Return the types of an op's results with their current sizes."""
    return ", ".join(map(_type, op.outputs[:3])) + (", …" if len(op.outputs) > 3 else "")


def _type(tensor: Tensor) -> str:
    strides = ""
    if tensor.strides is not None:
        strides = f"; {', '.join(str(int(n)) for n in tensor.strides)}"
    return f"{tensor.dtype}[{', '.join(str(int(n)) for n in tensor.shape)}{strides}]"


def _attributes(a: Op, b: Op) -> str:
    if a.attributes is b.attributes:
        return ""
    names = sorted({*a.attributes, *b.attributes})
    pairs = [(name, _attribute(a, name), _attribute(b, name)) for name in names]
    return ", ".join(f"{name} = {old} -> {new}" for name, old, new in pairs if old != new)


def _attribute(op: Op, name: str) -> str:
    return spell(op.attributes[name]) if name in op.attributes else "its default"


def _operands(a: Op, b: Op) -> str:
    if a.operands is b.operands or a.body or b.body:
        return ""
    first, second = spell(a.operands), spell(b.operands)
    return "other operands" if first != second else ""


def group_changes(changes: Iterable[Change]) -> list[ChangeGroup]:
    """Return changes by kind and op, largest change of time first."""
    group_by_key: dict[tuple[str, str], ChangeGroup] = {}
    for change in changes:
        key = change.kind, change.op.name
        group_by_key.setdefault(key, ChangeGroup(*key)).changes.append(change)
    groups = list(group_by_key.values())
    return sorted(groups, key=lambda group: -abs(group.times[1] - group.times[0]))


def structure_lines(before: Graph, after: Graph) -> list[str]:
    """Return the structural difference of two graphs as lines of text, grouped."""
    lines = []
    for group in group_changes(structural_diff(before, after)):
        location = f"  in {group.location}" if group.location else ""
        detail = f"  {group.detail}" if group.detail else ""
        head = f"{KINDS[group.kind]} {len(group.changes):>4} {group.name}"
        lines.append(f"  {head}{detail}{location}")
    return lines or ["  no difference"]
