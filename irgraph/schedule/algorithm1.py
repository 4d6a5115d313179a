"""Algorithm 1 of the paper: one host clock, one device clock (section III-D)."""

from __future__ import annotations

from irgraph.ir.cost import CALL, Host, Kernel, Priced
from irgraph.ir.op import Op
from irgraph.schedule.accounting import Accounting
from irgraph.schedule.charges import SYNCS, Charge, Charges
from irgraph.schedule.timeline import Recorder, Timeline


def algorithm1(priced: Priced, host: Host, *, accounting: Accounting) -> Timeline:
    """Return the timeline of a step by the rules of ``accounting``.

    Operations follow each other on one host thread in launch order, backward ones after forward
    ones, and all device work on one stream. Every top-level operation pays T1; then T2, T4 for
    each launch, T5 between two, and T3; or, without launches, T5 (Algorithm 1, lines 4-21).
    """
    clock = _Clock(priced, accounting)
    charges = Charges(priced, host, accounting)
    for charge in charges:
        clock.run(charge)
    return Timeline(
        clock.record.intervals(),
        tuple(clock.record.resources),
        priced.device,
        host.name,
        accounting.name,
        dict(charges.levels),
        priced.unknown,
    )


class _Clock:
    """The two clocks of Algorithm 1 and the rules that move them."""

    def __init__(self, priced: Priced, rules: Accounting) -> None:
        self.rules = rules
        self.record = Recorder()
        self.cpu = self.record.resource("host", "main")
        self.gpu = self.record.resource(priced.graph.device, "default")
        self.launched = -1

    def run(self, charge: Charge) -> None:
        """Advance the clocks by one charge; events and streams are ignored here."""
        if charge.kind == "host":
            self.record.add(self.cpu, charge.cause, charge.length, charge.op)
        elif charge.kind == "launch":
            self._launch(charge)
        elif charge.kind == "inner" and charge.kernel is not None:
            self._start(charge.op, charge.kernel, self.launched)
        elif charge.kind == "wait" and charge.node is not None and charge.node.name not in SYNCS:
            self._wait(charge)

    def _launch(self, charge: Charge) -> None:
        """Lines 11 and 12: the host spends T4, part of it before the device may start."""
        op, kernel, t4 = charge.op, charge.kernel, charge.length
        if kernel is not None and kernel.launch == CALL:
            self.record.add(self.cpu, "T4", t4, op)
            self.record.add(self.cpu, "kernel", kernel.time + self.rules.per_kernel, op, kernel)
            return
        share = self.rules.launch_share
        self.launched = self.record.add(self.cpu, "T4", t4 * share, op, kernel)
        if kernel is not None:
            self._start(op, kernel, self.launched)
        if share < 1.0:
            self.record.add(self.cpu, "T4", t4 * (1.0 - share), op)

    def _start(self, op: Op, kernel: Kernel, launch: int) -> None:
        """Line 11: after the launch, and after the kernel before with a gap."""
        rules = self.rules
        if rules.gap:
            self.record.add(self.gpu, "gap", rules.gap, op, kernel)
        if rules.latency:
            launch = self.record.add(
                self.gpu, "latency", rules.latency, op, kernel, (launch,), ordered=False
            )
        self.record.add(self.gpu, "kernel", kernel.time + rules.per_kernel, op, kernel, (launch,))

    def _wait(self, charge: Charge) -> None:
        """Add a wait of the host until the device has finished all earlier work."""
        last = self.record.last(self.gpu)
        waits = (last,) if last >= 0 else ()
        self.record.add(self.cpu, "sync", charge.length, charge.op, waits=waits)
