"""A step during its simulation: charges become tasks of threads and streams."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.cost import CALL, COLLECTIVE, Kernel, Priced
from irgraph.ir.op import Op
from irgraph.ir.tensor import DeviceRef
from irgraph.schedule.accounting import Accounting
from irgraph.schedule.charges import SYNCS, Charge
from irgraph.schedule.tasks import TaskBuilder

TAKING_TURNS = ("main", "backward")
"""Threads of which one is blocked while the other runs: ``backward()`` returns when the autograd
thread is done."""


class Step:
    """Turns charges into tasks."""

    def __init__(self, priced: Priced, rules: Accounting) -> None:
        self.graph = priced.graph
        self.rules = rules
        self.build = TaskBuilder()
        self.resources: dict[tuple[str, str], int] = {}
        self.devices: dict[Op, str] = {}
        self.ops: list[Op] = []
        self.numbers: dict[Op, int] = {}
        self.op = -1
        self.kernels: list[Kernel] = []
        self.events: dict[str, int] = {}
        self.pools: dict[tuple[str, str], int] = {}
        self.queues: dict[int, deque[int]] = {}
        self.graph_waits: tuple[int, ...] = ()
        self.forked_streams: set[int] = set()
        self.thread = self.turn = self._resource("host", "main")
        # Resources are numbered in order of first use. The main thread and the default stream are
        # always the first two, so that timelines of variants can be compared.
        self._resource(self.graph.device, "default")

    def run(self, charge: Charge) -> None:
        """Add the tasks of one charge."""
        self.set_op(charge.op)
        if charge.kind == "host":
            self._host(charge, charge.cause, charge.length)
        elif charge.kind == "launch":
            self._launch(charge)
        elif charge.kind == "inner":
            stream = self._stream(charge)
            self.forked_streams.add(stream)
            graph_gap = self.rules.graph_gap
            gap = self.rules.gap if graph_gap is None else graph_gap
            self._start(charge, stream, self.graph_waits, gap=gap)
        elif charge.kind == "join":
            stream = self._stream(charge)
            self._event(stream, [self.build.last(s) for s in self.forked_streams if s != stream])
        else:
            self._wait(charge)

    def set_op(self, op: Op) -> None:
        """Set the op of the tasks that are added next."""
        self.op = self.numbers.setdefault(op, len(self.ops))
        if self.op == len(self.ops):
            self.ops.append(op)

    def continued_thread(self, op: Op) -> int:
        """Return the thread of an op that directly continues that thread, else -1."""
        thread = self.resources.get(("host", op.thread), -1)
        is_active = (
            self.turn == thread if op.thread in TAKING_TURNS else self.build.last(thread) >= 0
        )
        return thread if is_active and self.build.last(thread) >= 0 else -1

    def device_and_stream(self, node: Op) -> tuple[str, str]:
        """Return the device and the stream that an op works on."""
        return self._device(node), node.stream or "default"

    def _resource(self, kind: str, name: str) -> int:
        index = self.resources.get((kind, name))
        if index is None:
            index = self.resources[kind, name] = len(self.resources)
        return index

    def _host(
        self,
        charge: Charge,
        cause: str,
        length: float,
        waits: Iterable[int] = (),
        kernel: int = -1,
    ) -> int:
        """Add a task of the charge's thread, after the thread that hands over to it."""
        thread = self._resource("host", charge.op.thread)
        previous_thread = self.thread
        # ``backward()`` blocks the thread that calls it: the two threads take turns, as if they
        # were one.
        if charge.op.thread in TAKING_TURNS:
            previous_thread, self.turn = self.turn, thread
        # A thread that has started continues independently; its first task follows the last task of
        # the thread that started it.
        elif self.build.last(thread) >= 0:
            previous_thread = thread
        self.thread = thread
        last = self.build.last(previous_thread)
        handover = (last,) if previous_thread != thread and last >= 0 else ()
        return self.build.add(
            thread,
            cause,
            length,
            op=self.op,
            kernel=kernel,
            waits=(*handover, *waits),
        )

    def _launch(self, charge: Charge) -> None:
        """The host spends T4, part of it before the device may start."""
        stream, kernel = self._stream(charge), charge.kernel
        if kernel is not None and kernel.launch == CALL:
            self._run_on_host(charge, kernel)
            return
        queue = self.queues.setdefault(stream, deque())
        full: tuple[int, ...] = ()
        number = -1
        if kernel is not None:
            # A stream's queue has room for ``queue_depth`` launches (1,024 on CUDA): the next
            # launch blocks until the oldest of them has left the queue.
            full = (queue.popleft(),) if len(queue) >= self.rules.queue_depth else ()
            number = len(self.kernels)
            self.kernels.append(kernel)
        # A launch call returns some time after the device could start: the device waits for the
        # first part alone, the thread for both.
        share = self.rules.launch_share
        launched = self._host(charge, "T4", charge.length * share, full, number)
        if kernel is not None:
            queue.append(self._start(charge, stream, (launched,), number, gap=self.rules.gap))
        else:
            last = self.build.last(stream)
            # A graph's kernels start after its launch and after the earlier work of its stream,
            # regardless of the streams on which they were captured; among themselves they preserve
            # the order of those streams.
            self.graph_waits = (launched, last) if last >= 0 else (launched,)
            self.forked_streams = set()
        if share < 1.0:
            self._host(charge, "T4", charge.length * (1.0 - share))

    def _run_on_host(self, charge: Charge, kernel: Kernel) -> None:
        """Add a kernel that the host runs itself: it has no stream and waits for nothing."""
        self.kernels.append(kernel)
        self._host(charge, "T4", charge.length)
        time = kernel.time + self.rules.per_kernel
        self._host(charge, "kernel", time, kernel=len(self.kernels) - 1)

    def _start(
        self, charge: Charge, stream: int, waits: tuple[int, ...], number: int = -1, *, gap: float
    ) -> int:
        """Add a kernel after its launch, and after the kernel before with a gap."""
        assert charge.kernel is not None
        if number < 0:
            number = len(self.kernels)
            self.kernels.append(charge.kernel)
        rules, op, add = self.rules, self.op, self.build.add
        if gap:
            add(stream, "gap", gap, op=op, kernel=number)
        if rules.latency:
            waits = (
                add(
                    stream,
                    "latency",
                    rules.latency,
                    op=op,
                    kernel=number,
                    waits=waits,
                    ordered=False,
                ),
            )
        time = charge.kernel.time + rules.per_kernel
        pool = self._pool(charge, charge.kernel)
        return add(stream, "kernel", time, op=op, kernel=number, pool=pool, waits=waits)

    def _wait(self, charge: Charge) -> None:
        """Record an event, or add a wait of a stream or of the host, as the charge's node is."""
        assert charge.node is not None
        name, stream = charge.node.name, self._stream(charge)
        if name == "sync.record":
            for event in charge.node.outputs:
                self.events[event.name] = self.build.last(stream)
            return
        if name in ("sync.wait", "sync.event"):
            awaited = [self._event_task(t.name, charge.node) for t in charge.node.inputs]
        elif name == "sync.device":
            kind = self._device(charge.node)
            awaited = [self.build.last(i) for r, i in self.resources.items() if r[0] == kind]
        else:
            awaited = [self.build.last(stream)]
        if name == "sync.wait":
            self._event(stream, awaited)
        else:
            waits = [task for task in awaited if task >= 0]
            self._host(charge, "sync", charge.length, waits)

    def _event(self, stream: int, awaited: Iterable[int]) -> None:
        waits = [task for task in awaited if task >= 0]
        self.build.add(stream, "event", 0.0, op=self.op, waits=waits)

    def _event_task(self, event: str, node: Op) -> int:
        if event not in self.events:
            place = SourceSpan(self.graph.source or self.graph.name, "", node.line)
            raise fail(f"{node.name} waits for %{event}, which no sync.record made", place)
        return self.events[event]

    def _stream(self, charge: Charge) -> int:
        node = charge.node or charge.op
        return self._resource(self._device(node), node.stream or "default")

    def _device(self, node: Op) -> str:
        """Return the device an op works on: named, its tensors', or else the graph's first."""
        device = self.devices.get(node)
        if device is None:
            device = self.devices[node] = self._device_of(node)
        return device

    def _device_of(self, node: Op) -> str:
        device_attribute = node.attributes.get("device")
        if isinstance(device_attribute, DeviceRef) and device_attribute != "cpu":
            return str(device_attribute)
        if node.name in SYNCS:
            return self.graph.device
        for tensor in (*node.outputs, *node.inputs):
            if tensor.device != "cpu":
                return tensor.device
        return self.graph.device

    def _pool(self, charge: Charge, kernel: Kernel) -> int:
        """Return the pool that a kernel shares with others: a hardware unit of its device."""
        node = charge.node or charge.op
        need = hardware_unit(kernel, node)
        return self.pools.setdefault((self._device(node), need), len(self.pools))


def hardware_unit(kernel: Kernel, node: Op) -> str:
    """Return the unit of a device that a kernel of an op uses: compute, a copy engine or links."""
    if kernel.family == COLLECTIVE:
        return "links"
    if kernel.launch == "memcpy" and any(t.device == "cpu" for t in node.outputs):
        return "copies to the host"
    if kernel.launch == "memcpy" and any(t.device == "cpu" for t in node.inputs):
        return "copies to the device"
    return "compute"
