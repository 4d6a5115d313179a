"""What changed between two graphs: ops added, removed, moved, retyped and rewired."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from irgraph.ir.cost import Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.values import spell
from irgraph.report.pairing import Pairing, TreePosition, pair_ops, unmoved

KINDS = {
    "removed": "-", "added": "+", "moved": ">", "retyped": "~", "rewired": "=", "repriced": "$",
}  # fmt: skip
"""Kinds of change, in the order in which they are shown, with their marks."""


class Change(Struct, frozen=True):
    """One op that differs.

    Attributes:
        kind: a key of ``KINDS``; ``repriced`` where only the predicted time differs.
        before, after: the op in either graph; ``None`` where it is not there.
        detail: what changed, such as ``f32[8, 4] -> bf16[8, 4]``.
        times: predicted device time before and after, microseconds; zeros without a device.
    """

    kind: str
    before: Op | None
    after: Op | None
    detail: str = ""
    times: tuple[float, float] = (0.0, 0.0)

    @property
    def op(self) -> Op:
        """The op where it is now, or else where it was."""
        op = self.after or self.before
        assert op is not None
        return op


@dataclass
class Group:
    """Changes of one kind to ops of one name."""

    kind: str
    name: str
    changes: list[Change] = field(default_factory=list)

    @property
    def times(self) -> tuple[float, float]:
        """Predicted device time of all, before and after, microseconds."""
        before, after = zip(*(change.times for change in self.changes), strict=True)
        return sum(before), sum(after)

    @property
    def detail(self) -> str:
        """What changed, the most frequent first."""
        return _several([change.detail for change in self.changes if change.detail], 2)

    @property
    def where(self) -> str:
        """Modules of the ops, or where they came from."""
        places = [change.op.module or change.op.origin for change in self.changes]
        return _several([place for place in places if place], 2)

    def row(self) -> dict[str, object]:
        """Return the group as plain values; times in microseconds."""
        before, after = self.times
        return {
            "change": self.kind,
            "op": self.name,
            "count": len(self.changes),
            "detail": self.detail,
            "where": self.where,
            "before_us": round(before, 3),
            "after_us": round(after, 3),
        }


def _several(texts: Sequence[str], most: int) -> str:
    counts: dict[str, int] = {}
    for text in texts:
        counts[text] = counts.get(text, 0) + 1
    names = sorted(counts, key=lambda text: -counts[text])
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more


def structural_diff(
    before: Graph,
    after: Graph,
    priced: tuple[Priced, Priced] | None = None,
) -> list[Change]:
    """Return what changed from one graph to another, in launch order, kind by kind.

    Ops are matched by identity, origin, name, operands and results. An op that was removed or
    added includes its body. With both graphs priced, each change has its device time
    before and after; all of them add up to the change of all device time.
    """
    pairing = pair_ops(before, after)
    times = _Times(pairing, priced)
    changes = [*_one_sided("removed", pairing, times), *_one_sided("added", pairing, times)]
    steady = unmoved(pairing)
    for i, j in pairing.pairs:
        found = _changed(pairing.before[i], pairing.after[j], i in steady)
        spent = times.own(i, j)
        if found is None and abs(spent[1] - spent[0]) > 1e-6:
            found = ("repriced", "")
        if found is not None:
            kind, detail = found
            ops = pairing.before[i].op, pairing.after[j].op
            changes.append(Change(kind, *ops, detail, spent))
    return sorted(changes, key=lambda change: list(KINDS).index(change.kind))


class _Times(Struct, frozen=True):
    """Predicted times of ops in both graphs: of what is priced at the op itself."""

    pairing: Pairing
    priced: tuple[Priced, Priced] | None

    def own(self, i: int, j: int) -> tuple[float, float]:
        """Return the times of a matched op, without those of ops inside it."""
        first, second = self.pairing.before[i].op, self.pairing.after[j].op
        return self.at(0, first), self.at(1, second)

    def at(self, side: int, op: Op) -> float:
        """Return the time priced at an op of the first or second graph, microseconds."""
        if self.priced is None:
            return 0.0
        return sum(kernel.time for kernel in self.priced[side].kernels.get(id(op), ()))


def _one_sided(kind: str, pairing: Pairing, times: _Times) -> Iterable[Change]:
    """Yield the unmatched ops of one graph, each with the time of all unmatched ones in it."""
    side = 0 if kind == "removed" else 1
    places = pairing.after if side else pairing.before
    kept = pairing.backward if side else pairing.forward
    tops: dict[int, int] = {}
    spent: dict[int, float] = {}
    for here, place in enumerate(places):
        if here in kept:
            continue
        top = tops[here] = tops.get(place.parent, here)
        spent[top] = spent.get(top, 0.0) + times.at(side, place.op)
    for here, time in spent.items():
        op = places[here].op
        if side:
            yield Change(kind, None, op, types_of(op), (0.0, time))
        else:
            yield Change(kind, op, None, types_of(op), (time, 0.0))


def _changed(a: TreePosition, b: TreePosition, steady: bool) -> tuple[str, str] | None:
    """Return kind and detail of what differs between two matched ops, if anything does."""
    first, second = types_of(a.op), types_of(b.op)
    if first != second:
        return "retyped", f"{first} -> {second}"
    lanes = f"{a.op.thread}/{a.op.stream or 'default'}", f"{b.op.thread}/{b.op.stream or 'default'}"
    if lanes[0] != lanes[1]:
        return "moved", f"{lanes[0]} -> {lanes[1]}"
    if not steady:
        return "moved", ""
    for find in (_attributes, _operands):
        detail = find(a.op, b.op)
        if detail:
            return "rewired", detail
    return None


def types_of(op: Op) -> str:
    """Return the types of an op's results with their present sizes."""
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


def grouped(changes: Iterable[Change]) -> list[Group]:
    """Return changes by kind and op, largest change of time first."""
    found: dict[tuple[str, str], Group] = {}
    for change in changes:
        key = change.kind, change.op.name
        found.setdefault(key, Group(*key)).changes.append(change)
    groups = list(found.values())
    return sorted(groups, key=lambda group: -abs(group.times[1] - group.times[0]))


def structure_lines(before: Graph, after: Graph) -> list[str]:
    """Return the structural difference of two graphs as lines of text, grouped."""
    lines = []
    for group in grouped(structural_diff(before, after)):
        where = f"  in {group.where}" if group.where else ""
        detail = f"  {group.detail}" if group.detail else ""
        head = f"{KINDS[group.kind]} {len(group.changes):>4} {group.name}"
        lines.append(f"  {head}{detail}{where}")
    return lines or ["  no difference"]
