"""What a host is charged for, operation by operation, in the order of the program.

Algorithm 1 and the simulator read the same charges; they differ in what runs beside what.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from irgraph.ir.cost import Host, Kernel, Overheads, Priced
from irgraph.ir.graph import outermost
from irgraph.ir.op import Op
from irgraph.ir.ranks import EXCHANGING
from irgraph.schedule.accounting import Accounting

GRAPH_LAUNCH = "cuda.graph_launch"
"""An op whose body the device runs after one launch."""

SYNCS = frozenset({"sync.record", "sync.wait", "sync.event", "sync.stream", "sync.device"})
"""Ops that only order others: an event is recorded on a stream; a stream waits for one; the host
waits for an event, a stream, or all streams of a device."""

SYNCHRONISING = frozenset(
    {"aten.nonzero", "aten.masked_select", "aten._unique2", "aten.unique_dim", "aten.unique"}
)
"""Ops whose results' sizes the host has to read from the device."""

ODD = SYNCS | SYNCHRONISING | {GRAPH_LAUNCH}
"""Ops that do more than launch kernels one by one."""


class Charge(NamedTuple):
    """One thing that a host thread does.

    Attributes:
        kind: ``host`` (time passes); ``launch``; ``inner`` (work that the launch before started
            too) and ``join`` (after the last of it); or ``wait`` (for what ``node`` says).
        cause: a key of ``irgraph.schedule.timeline.CAUSES``.
        length: microseconds of the host.
        op: the top-level operation, or the label, that pays.
        kernel: what is launched; ``None`` without a cost model.
        node: the op below it that launches or waits.
    """

    kind: str
    cause: str
    length: float
    op: Op
    kernel: Kernel | None = None
    node: Op | None = None


class LaunchedWork(NamedTuple):
    """What a call launches, and how that was found.

    Attributes:
        kernels: all of them in order.
        nodes: for each the op at or below the call that launches it.
        parts: the ``id`` of each op that was asked for its price, with its kernels, if it has any:
            the last ones have a price, or nothing inside.
    """

    kernels: list[Kernel]
    nodes: list[Op]
    parts: list[tuple[int, tuple[Kernel, ...] | None]]


class Charges:
    """The charges of a priced step, by the rules of an accounting.

    Attributes:
        levels: how many operations found their overheads at each level of the host's table;
            complete when all charges have been read.
    """

    def __init__(self, priced: Priced, host: Host, rules: Accounting) -> None:
        self.priced = priced
        self.host = host
        self.rules = rules
        self.levels: Counter[str] = Counter()
        self._unknown = {id(op) for op in priced.unknown}
        calls = (op for op in priced.graph.walk() if op.name.startswith(EXCHANGING))
        self._exchanging = {op.origin for op in calls if op.origin}

    def __iter__(self) -> Iterator[Charge]:
        """Yield all charges in the order of the program."""
        return self.all(self.of_call)

    def all(self, of_call: Callable[[Op], Iterable[Charge]]) -> Iterator[Charge]:
        """Yield all charges in the order of the program, those of each call as a function says."""
        for op in self.priced.graph.ops:
            yield from self._run(op, of_call)

    def _run(self, op: Op, of_call: Callable[[Op], Iterable[Charge]]) -> Iterable[Charge]:
        """Charge a top-level operation, or those inside a label."""
        if not op.is_annotation:
            return of_call(op)
        known = self.rules.annotations != "free" and self._known(op)
        if known and self.rules.annotations == "whole":
            return of_call(op)
        return self._label(op, known, of_call)

    def _label(
        self, op: Op, known: bool, of_call: Callable[[Op], Iterable[Charge]]
    ) -> Iterator[Charge]:
        """Charge the ops inside a label; a label in the table also costs entry and exit."""
        calls = (o for child in op.body for o in outermost(child)) if known else ()
        launching = [o for o in calls if self.priced.of(o)]
        own = self.host.overheads(op, 1) if known and launching else None
        if own is not None:
            # A label's T2 was measured from its own start to the first launch inside, which
            # includes that of the op that launches: the difference is the label's.
            entry = own.t2 - self._costs(launching[0]).t2
            yield from _time("T2", max(0.0, entry), op)
        for child in op.body:
            yield from self._run(child, of_call)
        if own is not None:
            leaving = own.t3 - self._costs(launching[-1]).t3
            yield from _time("T3", max(0.0, leaving), op)

    def of_call(self, op: Op) -> list[Charge]:
        """Lines 5 to 20 of Algorithm 1; what a collective's call does with events is paid there."""
        # The host's table has the whole call of a collective, with the events that it records and
        # waits for: only their effect on the streams is left to charge.
        if op.name in SYNCS and op.origin in self._exchanging:
            return [self._wait(op, op)]
        items = self._items(op)
        kinds = tuple([kernel.launch for kernel, _ in items if kernel is not None])
        kinds += self._beyond(op, len(kinds))
        graph = op.name == GRAPH_LAUNCH
        costs = self.host.overheads(op, 1 if graph else len(kinds))
        self.levels[costs.level] += 1
        # The program of 2021 charges a label that is priced as a whole for entry and exit twice,
        # and for no launches of its own.
        if op.is_annotation:
            costs = _doubled(costs)
        found = _time("T1", costs.t1, op)
        if not kinds:
            found += _time("T5", costs.t5, op)
            found += [self._wait(op, node) for _, node in items]
            return found
        found += _time("T2", costs.t2, op)
        launches = self._graph(op, items, costs) if graph else None
        found += launches or self._launches(op, items, kinds, costs)
        found += _time("T3", costs.t3, op)
        if self.rules.sync == "to" and op.name == "aten.to":
            found.append(Charge("wait", "sync", self.rules.sync_return, op, node=op))
        return found

    def _launches(
        self,
        op: Op,
        items: list[tuple[Kernel | None, Op]],
        kinds: tuple[str, ...],
        costs: Overheads,
    ) -> list[Charge]:
        """Lines 9 to 16. The time of launches without T4 is part of the times around them."""
        paid = 0
        found: list[Charge] = []
        beyond = kinds[sum([kernel is not None for kernel, _ in items]) :]
        sequence = [(k, node, k.launch if k else "") for k, node in items]
        sequence += [(None, op, kind) for kind in beyond]
        for kernel, node, kind in sequence:
            if not kind:
                found.append(self._wait(op, node))
                continue
            t4 = self._t4(kind, costs.t4)
            # T5 is the time between two launches of one call: there is none before the first.
            if t4 is not None:
                if paid:
                    found += _time("T5", costs.t5, op)
                paid += 1
            found.append(Charge("launch", "T4", t4 or 0.0, op, kernel, node))
            if kernel is not None and kernel.blocking and self.rules.sync == "blocking":
                found.append(self._wait(op, node))
        return found

    def _graph(
        self, op: Op, items: list[tuple[Kernel | None, Op]], costs: Overheads
    ) -> Iterator[Charge]:
        """One launch for all kernels, which the device then orders among themselves."""
        yield Charge("launch", "T4", self._t4("kernel", costs.t4) or 0.0, op, node=op)
        for kernel, node in items:
            if kernel is None:
                yield Charge("wait", "event", 0.0, op, node=node)
            else:
                yield Charge("inner", "kernel", 0.0, op, kernel, node)
        yield Charge("join", "event", 0.0, op, node=op)

    def _wait(self, op: Op, node: Op) -> Charge:
        returning = self.rules.sync_return if node.name not in ("sync.record", "sync.wait") else 0.0
        return Charge("wait", "sync", returning, op, node=node)

    def _items(self, node: Op) -> list[tuple[Kernel | None, Op]]:
        """Return the kernels below an op, each with the op that launches it; syncs as ``None``."""
        if node.name in SYNCS:
            return [(None, node)]
        known = self.priced.kernels.get(id(node))
        found: list[tuple[Kernel | None, Op]]
        if known is not None:
            found = [(kernel, node) for kernel in known]
        else:
            found = [item for child in node.body for item in self._items(child)]
        if self.rules.sync == "blocking" and node.name in SYNCHRONISING and _on_device(node):
            found.append((None, node))
        return found

    def launches(self, op: Op) -> LaunchedWork | None:
        """Return what a call launches, ``None`` where that is not all it does."""
        if op.is_annotation or self.rules.sync == "to":
            return None
        found = LaunchedWork([], [], [])
        sound = self._add_launches(op, found)
        return found if sound and not self._beyond(op, len(found.kernels)) else None

    def _add_launches(self, node: Op, found: LaunchedWork) -> bool:
        """Add what an op launches; return whether it does nothing else."""
        if node.name in ODD:
            return False
        known = self.priced.kernels.get(id(node))
        found.parts.append((id(node), known))
        if known is None:
            return all(self._add_launches(child, found) for child in node.body)
        found.kernels.extend(known)
        found.nodes.extend([node] * len(known))
        return True

    def lacks(self, parts: Iterable[tuple[int, tuple[Kernel, ...] | None]]) -> bool:
        """Return whether an op among the parts of a call is one that no cost model knows."""
        unknown = self._unknown
        return bool(unknown) and any(key in unknown for key, _ in parts)

    def _costs(self, op: Op) -> Overheads:
        return self.host.overheads(op, len(self.priced.of(op)))

    def _known(self, op: Op) -> bool:
        return self.host.overheads(op, 1).level.startswith("op")

    def _t4(self, kind: str, table: Mapping[str, float]) -> float | None:
        return table.get(kind) if self.rules.t4 is None or kind not in table else self.rules.t4

    def _beyond(self, op: Op, known: int) -> tuple[str, ...]:
        """Launches in the host's table beyond those of the cost models."""
        when, lacking = self.rules.listed, self._unknown
        unknown = bool(lacking) and any(id(leaf) in lacking for leaf in op.leaves())
        if when == "always" or (when == "unknown" and unknown):
            return self._costs(op).listed[known:]
        return ()


def _time(cause: str, length: float, op: Op) -> list[Charge]:
    return [Charge("host", cause, length, op)] if length else []


def _on_device(op: Op) -> bool:
    return any(t.device != "cpu" for t in op.inputs)


def _doubled(costs: Overheads) -> Overheads:
    free = dict.fromkeys(costs.t4, 0.0)
    return replace(costs, t2=2 * costs.t2, t3=2 * costs.t3, t4=free)
