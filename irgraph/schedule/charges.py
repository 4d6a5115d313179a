"""Charges of a host, operation by operation, in the order of the program.

Algorithm 1 and the simulator read the same charges; they differ in what runs concurrently.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import replace

from irgraph.ir.cost import Host, Kernel, Overheads, Priced
from irgraph.ir.graph import outermost
from irgraph.ir.loading import LOAD, loading_time
from irgraph.ir.op import Op
from irgraph.ir.ranks import EXCHANGE_PREFIXES
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

SPECIAL_OPS = SYNCS | SYNCHRONISING | {GRAPH_LAUNCH, LOAD}
"""Ops that do more than launch kernels one by one."""


class Charge(NamedTuple):
    """One thing that a host thread does.

    Attributes:
        kind: ``host`` (time passes); ``launch``; ``inner`` (work that the launch before started
            too) and ``join`` (after the last of it); or ``wait`` (as ``node`` specifies).
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
    """Kernels that a call launches, and the ops that they come from.

    Attributes:
        kernels: all of them in order.
        nodes: for each the op at or below the call that launches it.
        parts: the call and each op below it whose price was looked up, with its kernels if it has
            a price; the innermost of them have a price, or no ops inside.
    """

    kernels: list[Kernel]
    nodes: list[Op]
    parts: list[tuple[Op, tuple[Kernel, ...] | None]]


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
        self._unknown_ops = set(priced.unknown)
        calls = (op for op in priced.graph.walk() if op.name.startswith(EXCHANGE_PREFIXES))
        self._exchanging = {op.origin for op in calls if op.origin}

    def __iter__(self) -> Iterator[Charge]:
        """Yield all charges in the order of the program."""
        return self.all(self.of_call)

    def all(self, of_call: Callable[[Op], Iterable[Charge]]) -> Iterator[Charge]:
        """Yield all charges in the order of the program; ``of_call`` returns those of a call."""
        for op in self.priced.graph.ops:
            yield from self._run(op, of_call)

    def _run(self, op: Op, of_call: Callable[[Op], Iterable[Charge]]) -> Iterable[Charge]:
        """Charge a top-level operation, or those inside a label."""
        if not op.is_annotation:
            return of_call(op)
        is_charged = self.rules.annotations != "free" and self._has_own_overheads(op)
        if is_charged and self.rules.annotations == "whole":
            return of_call(op)
        return self._label(op, is_charged, of_call)

    def _label(
        self, op: Op, is_charged: bool, of_call: Callable[[Op], Iterable[Charge]]
    ) -> Iterator[Charge]:
        """Charge the ops inside a label; a label in the table also costs entry and exit."""
        calls = (o for child in op.body for o in outermost(child)) if is_charged else ()
        launching_calls = [o for o in calls if self.priced.of(o)]
        overheads = self.host.overheads(op, 1) if is_charged and launching_calls else None
        if overheads is not None:
            # A label's T2 was measured from its own start to the first launch inside, which
            # includes that of the op that launches: the difference is the label's.
            entry_time = overheads.t2 - self._overheads_of(launching_calls[0]).t2
            yield from _host_charges("T2", max(0.0, entry_time), op)
        for child in op.body:
            yield from self._run(child, of_call)
        if overheads is not None:
            exit_time = overheads.t3 - self._overheads_of(launching_calls[-1]).t3
            yield from _host_charges("T3", max(0.0, exit_time), op)

    def of_call(self, op: Op) -> list[Charge]:
        """Return the charges of a call: lines 5 to 20 of Algorithm 1."""
        if op.name == LOAD:  # Algorithm 1 begins when the batch exists
            time = loading_time(op) if self.rules.simulated else 0.0
            return _host_charges("loader", time, op)
        # The host's table has the whole call of a collective, with the events that it records and
        # waits for: only their effect on the streams is left to charge.
        if op.name in SYNCS and op.origin in self._exchanging:
            return [self._wait_charge(op, op)]
        items = self._items(op)
        kinds = tuple([kernel.launch for kernel, _ in items if kernel is not None])
        kinds += self._unmodelled_launches(op, len(kinds))
        graph = op.name == GRAPH_LAUNCH
        costs = self.host.overheads(op, 1 if graph else len(kinds))
        self.levels[costs.level] += 1
        # The program of 2021 charges a label that is priced as a whole for entry and exit twice,
        # and for no launches of its own.
        if op.is_annotation:
            costs = _with_double_overheads(costs)
        charges = _host_charges("T1", costs.t1, op)
        if not kinds:
            charges += _host_charges("T5", costs.t5, op)
            charges += [self._wait_charge(op, node) for _, node in items]
            return charges
        charges += _host_charges("T2", costs.t2, op)
        launches = self._graph_launch_charges(op, items, costs) if graph else None
        charges += launches or self._launch_charges(op, items, kinds, costs)
        charges += _host_charges("T3", costs.t3, op)
        if self.rules.sync == "to" and op.name == "aten.to":
            charges.append(Charge("wait", "sync", self.rules.sync_return, op, node=op))
        return charges

    def _launch_charges(
        self,
        op: Op,
        items: list[tuple[Kernel | None, Op]],
        kinds: tuple[str, ...],
        costs: Overheads,
    ) -> list[Charge]:
        """Return the charges of launches: lines 9 to 16 of Algorithm 1.

        The time of launches without T4 is part of the times around them.
        """
        timed_launches = 0
        charges: list[Charge] = []
        unmodelled_kinds = kinds[sum([kernel is not None for kernel, _ in items]) :]
        sequence = [(k, node, k.launch if k else "") for k, node in items]
        sequence += [(None, op, kind) for kind in unmodelled_kinds]
        for kernel, node, kind in sequence:
            if not kind:
                charges.append(self._wait_charge(op, node))
                continue
            t4 = self._t4(kind, costs.t4)
            # T5 is the time between two launches of one call: there is none before the first.
            if t4 is not None:
                if timed_launches:
                    charges += _host_charges("T5", costs.t5, op)
                timed_launches += 1
            charges.append(Charge("launch", "T4", t4 or 0.0, op, kernel, node))
            if kernel is not None and kernel.blocking and self.rules.sync == "blocking":
                charges.append(self._wait_charge(op, node))
        return charges

    def _graph_launch_charges(
        self, op: Op, items: list[tuple[Kernel | None, Op]], costs: Overheads
    ) -> Iterator[Charge]:
        """Yield one launch for all kernels, which the device then orders among themselves."""
        yield Charge("launch", "T4", self._t4("kernel", costs.t4) or 0.0, op, node=op)
        for kernel, node in items:
            if kernel is None:
                yield Charge("wait", "event", 0.0, op, node=node)
            else:
                yield Charge("inner", "kernel", 0.0, op, kernel, node)
        yield Charge("join", "event", 0.0, op, node=op)

    def _wait_charge(self, op: Op, node: Op) -> Charge:
        return_time = (
            self.rules.sync_return if node.name not in ("sync.record", "sync.wait") else 0.0
        )
        return Charge("wait", "sync", return_time, op, node=node)

    def _items(self, node: Op) -> list[tuple[Kernel | None, Op]]:
        """Return the kernels below an op, each with the op that launches it; syncs as ``None``."""
        if node.name in SYNCS:
            return [(None, node)]
        kernels = self.priced.kernels.get(node)
        items: list[tuple[Kernel | None, Op]]
        if kernels is not None:
            items = [(kernel, node) for kernel in kernels]
        else:
            items = [item for child in node.body for item in self._items(child)]
        if self.rules.sync == "blocking" and node.name in SYNCHRONISING and _on_device(node):
            items.append((None, node))
        return items

    def launches(self, op: Op) -> LaunchedWork | None:
        """Return the work that a call launches, ``None`` if it does anything else."""
        if op.is_annotation or self.rules.sync == "to":
            return None
        work = LaunchedWork([], [], [])
        only_launches = self._add_launches(op, work)
        return (
            work if only_launches and not self._unmodelled_launches(op, len(work.kernels)) else None
        )

    def _add_launches(self, node: Op, work: LaunchedWork) -> bool:
        """Add the kernels of an op to ``work``; return whether it only launches them."""
        if node.name in SPECIAL_OPS:
            return False
        kernels = self.priced.kernels.get(node)
        work.parts.append((node, kernels))
        if kernels is None:
            return all(self._add_launches(child, work) for child in node.body)
        work.kernels.extend(kernels)
        work.nodes.extend([node] * len(kernels))
        return True

    def includes_unknown_op(self, parts: Iterable[tuple[Op, tuple[Kernel, ...] | None]]) -> bool:
        """Return whether an op among the parts of a call is one that no cost model knows."""
        unknown_ops = self._unknown_ops
        return bool(unknown_ops) and any(op in unknown_ops for op, _ in parts)

    def _overheads_of(self, op: Op) -> Overheads:
        return self.host.overheads(op, len(self.priced.of(op)))

    def _has_own_overheads(self, op: Op) -> bool:
        return self.host.overheads(op, 1).level.startswith("op")

    def _t4(self, kind: str, table: Mapping[str, float]) -> float | None:
        return table.get(kind) if self.rules.t4 is None or kind not in table else self.rules.t4

    def _unmodelled_launches(self, op: Op, launch_count: int) -> tuple[str, ...]:
        """Return the kinds of launches in the host's table beyond those of the cost models."""
        policy, unknown_ops = self.rules.listed, self._unknown_ops
        has_unknown_op = bool(unknown_ops) and any(leaf in unknown_ops for leaf in op.leaves())
        if policy == "always" or (policy == "unknown" and has_unknown_op):
            return self._overheads_of(op).listed[launch_count:]
        return ()


def _host_charges(cause: str, length: float, op: Op) -> list[Charge]:
    return [Charge("host", cause, length, op)] if length else []


def _on_device(op: Op) -> bool:
    return any(t.device != "cpu" for t in op.inputs)


def _with_double_overheads(costs: Overheads) -> Overheads:
    zero_t4 = dict.fromkeys(costs.t4, 0.0)
    return replace(costs, t2=2 * costs.t2, t3=2 * costs.t3, t4=zero_t4)
