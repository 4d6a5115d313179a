"""Algorithm 1 of the paper: one host clock, one device clock (section III-D).

A later simulator may run several threads and streams; it records the same kind of timeline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace

from irgraph.ir.cost import Host, Kernel, Overheads, Priced
from irgraph.ir.op import Op
from irgraph.schedule.accounting import Accounting
from irgraph.schedule.timeline import Recorder, Timeline


def algorithm1(priced: Priced, host: Host, *, accounting: Accounting) -> Timeline:
    """Return the timeline of a step by the rules of ``accounting``.

    Operations follow each other on one host thread in launch order, backward ones behind forward
    ones, and all device work on one stream. Every top-level operation pays T1; then T2, T4 for
    each launch, T5 between two, and T3; or, without launches, T5 (Algorithm 1, lines 4-21).
    """
    clock = _Clock(priced, host, accounting)
    for op in priced.graph.ops:
        clock.run(op)
    return Timeline(
        clock.record.intervals,
        clock.record.resources,
        priced.device,
        host.name,
        accounting.name,
        dict(clock.levels),
        priced.unknown,
    )


class _Clock:
    """The two clocks of Algorithm 1 and the rules that move them."""

    def __init__(self, priced: Priced, host: Host, rules: Accounting) -> None:
        self.priced = priced
        self.host = host
        self.rules = rules
        self.record = Recorder()
        self.cpu = self.record.resource("host", "main")
        self.gpu = self.record.resource(priced.graph.device, "default")
        self.levels: Counter[str] = Counter()
        self.unknown = {id(op) for op in priced.unknown}

    def run(self, op: Op) -> None:
        """Run a top-level operation, or those inside a label."""
        if not op.is_annotation:
            self._call(op)
            return
        known = self.rules.annotations != "free" and self._known(op)
        if known and self.rules.annotations == "whole":
            self._call(op)
        else:
            self._label(op, known)

    def _label(self, op: Op, known: bool) -> None:
        """Run what a label encloses; a label the table knows costs its entry and its exit."""
        launching = [o for child in op.body for o in _calls(child) if self.priced.of(o)]
        paid = known and bool(launching)
        own = self.host.overheads(op, 1) if paid else None
        if own is not None:
            self._host("T2", max(0.0, own.t2 - self._costs(launching[0]).t2), op)
        for child in op.body:
            self.run(child)
        if own is not None:
            self._host("T3", max(0.0, own.t3 - self._costs(launching[-1]).t3), op)

    def _call(self, op: Op) -> None:
        """Lines 5 to 20 of Algorithm 1."""
        kernels = self.priced.of(op)
        kinds = (*(k.launch for k in kernels), *self._beyond(op, len(kernels)))
        costs = self.host.overheads(op, len(kinds))
        self.levels[costs.level] += 1
        if op.is_annotation:
            costs = _doubled(costs)
        self._host("T1", costs.t1, op)
        if not kinds:
            self._host("T5", costs.t5, op)
            return
        self._host("T2", costs.t2, op)
        self._launches(op, kernels, kinds, costs)
        self._host("T3", costs.t3, op)
        if self.rules.sync == "to" and op.name == "aten.to":
            self._wait(op)

    def _launches(
        self, op: Op, kernels: tuple[Kernel, ...], kinds: tuple[str, ...], costs: Overheads
    ) -> None:
        """Lines 9 to 16. A kind of launch without T4 was counted into the times around it."""
        paid = 0
        for position, kind in enumerate(kinds):
            t4 = self._t4(kind, costs.t4)
            if t4 is not None:
                if paid:
                    self._host("T5", costs.t5, op)
                paid += 1
            kernel = kernels[position] if position < len(kernels) else None
            self._launch(op, kernel, t4 or 0.0)

    def _launch(self, op: Op, kernel: Kernel | None, t4: float) -> None:
        """Lines 11 and 12: the host spends T4, part of it before the device may start."""
        share = self.rules.launch_share
        before = self.record.add(self.cpu, "T4", t4 * share, op, kernel)
        if kernel is not None:
            self._start(op, kernel, before)
        if share < 1.0:
            self.record.add(self.cpu, "T4", t4 * (1.0 - share), op)
        if kernel is not None and kernel.blocking and self.rules.sync == "blocking":
            self._wait(op)

    def _start(self, op: Op, kernel: Kernel, launch: int) -> None:
        """Line 11: behind the launch, and behind the kernel before with a gap."""
        rules = self.rules
        if rules.gap:
            self.record.add(self.gpu, "gap", rules.gap, op, kernel)
        if rules.latency:
            launch = self.record.add(
                self.gpu, "latency", rules.latency, op, kernel, (launch,), ordered=False
            )
        self.record.add(self.gpu, "kernel", kernel.time + rules.per_kernel, op, kernel, (launch,))

    def _wait(self, op: Op) -> None:
        """Let the host go on only when the device has done all earlier work."""
        last = self.record.last(self.gpu)
        waits = (last,) if last >= 0 else ()
        self.record.add(self.cpu, "sync", self.rules.sync_return, op, waits=waits)

    def _host(self, cause: str, length: float, op: Op) -> None:
        if length:
            self.record.add(self.cpu, cause, length, op)

    def _costs(self, op: Op) -> Overheads:
        return self.host.overheads(op, len(self.priced.of(op)))

    def _known(self, op: Op) -> bool:
        return self.host.overheads(op, 1).level.startswith("op")

    def _t4(self, kind: str, table: Mapping[str, float]) -> float | None:
        return table.get(kind) if self.rules.t4 is None or kind not in table else self.rules.t4

    def _beyond(self, op: Op, known: int) -> tuple[str, ...]:
        """Launches that the host's table lists beyond those that the cost models know."""
        when = self.rules.listed
        unknown = any(id(leaf) in self.unknown for leaf in op.leaves())
        if when == "always" or (when == "launching" and (known or unknown)):
            return self._costs(op).listed[known:]
        return ()


def _doubled(costs: Overheads) -> Overheads:
    free = dict.fromkeys(costs.t4, 0.0)
    return replace(costs, t2=2 * costs.t2, t3=2 * costs.t3, t4=free)


def _calls(op: Op) -> Iterator[Op]:
    """Yield the operations of a label that pay overheads, or the operation itself."""
    if not op.is_annotation:
        yield op
        return
    for child in op.body:
        yield from _calls(child)
