"""Reuse of tasks between calls: calls that differ only in kernel times add the same tasks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec import Struct

from irgraph.facts import facts_of
from irgraph.ir.cost import CALL, Host, Kernel, Overheads
from irgraph.ir.op import Op
from irgraph.schedule.accounting import Accounting
from irgraph.schedule.building.step import Step, hardware_unit
from irgraph.schedule.building.task_templates import TaskTemplate
from irgraph.schedule.charges import Charge, Charges, LaunchedWork

CACHE_KEY = "irgraph.schedule.alike"
"""Attribute of an op that caches the launches of its call, for the last host and rules."""


class Launches(Struct, frozen=True):
    """Launches of a call that does nothing else and works on one stream.

    Attributes:
        host, rules, device: the inputs that the launches were computed for.
        own_kernels: the kernels of the op itself, ``None`` if the ops below it are priced.
        inner_parts: each op below it whose price was looked up, with its kernels if it has a price.
        has_unknown: whether no cost model knows one of those ops.
        kernels, times: all of them, and the lengths of their tasks.
        costs: the call's overheads.
        stream: device and name of the stream; ``None`` without launches.
        key: everything that determines the tasks, except times and earlier tasks; empty if the call
            cannot be repeated.
    """

    host: Host
    rules: Accounting
    device: str
    own_kernels: tuple[Kernel, ...] | None
    inner_parts: tuple[tuple[Op, tuple[Kernel, ...] | None], ...]
    has_unknown: bool
    kernels: tuple[Kernel, ...]
    times: tuple[float, ...]
    costs: Overheads
    stream: tuple[str, str] | None
    key: tuple[object, ...]


class Kind(Struct, frozen=True):
    """Tasks that the calls of a kind add, with the op and the kernel of the first call."""

    template: TaskTemplate
    op: int
    kernel: int
    costs: Overheads


class CallReuse:
    """Adds the tasks of calls: of the first call of a kind separately, of the others by template.

    A kind is everything that determines tasks, except the times of kernels: overheads, thread,
    stream, for each kernel its kind of launch, the hardware it shares and whether the host waits
    for it, and whether the stream's queue is full. A call has no kind if it hands over from one
    thread to another, is the first on its stream, works on several streams, fills a queue, or does
    anything besides launching.
    """

    def __init__(self, step: Step, charges: Charges) -> None:
        self.step, self.charges = step, charges
        self.kernels, self.host, self.rules = charges.priced.kernels, charges.host, step.rules
        self.device = charges.priced.graph.device
        self._kinds: dict[object, Kind] = {}

    def __call__(self, op: Op) -> Iterable[Charge]:
        """Add the tasks of a call and return nothing, or return its charges if it has no kind."""
        launches = self._launches(op)
        thread, stream, full = self.step.continued_thread(op), -1, False
        if launches is None or thread < 0 or not launches.key:
            return self.charges.of_call(op)
        if launches.stream is not None:
            stream = self.step.resources.get(launches.stream, -1)
            room = self.step.rules.queue_depth - len(self.step.queues.get(stream, ()))
            full = room <= 0
            if self.step.build.last(stream) < 0 or 0 < room < len(launches.times):
                return self.charges.of_call(op)
        kind = self._kinds.get((launches.key, full))
        if kind is None:
            self._kinds[launches.key, full] = self._add_first(op, launches, stream if full else -1)
        else:
            self.charges.levels[launches.costs.level] += 1
            self.step.set_op(op)
            self.step.thread = thread
            self._add_repeat(kind, launches, stream, full)
        return ()

    def _launches(self, op: Op) -> Launches | None:
        """Return the launches of a call, cached with its op; ``None`` if it does anything else."""
        cached: Launches | None = facts_of(op).get(CACHE_KEY)
        if cached is not None and self._is_valid(op, cached):
            return cached
        work = self.charges.launches(op)
        if work is None:
            return None
        kernels, nodes, parts = work
        costs = self.host.overheads(op, len(kernels))
        streams = {self.step.device_and_stream(node) for node in dict.fromkeys(nodes)}
        key = self._key(op, work, costs, streams)
        extra, lacks = self.rules.per_kernel, self.charges.includes_unknown_op(parts)
        launches = Launches(
            self.host,
            self.rules,
            self.device,
            parts[0][1],
            tuple(parts[1:]),  # without the op, which caches the launches: no reference cycle
            lacks,
            tuple(kernels),
            tuple([kernel.time + extra for kernel in kernels]),
            costs,
            next(iter(streams), None),
            key,
        )
        facts_of(op)[CACHE_KEY] = launches
        return launches

    def _is_valid(self, op: Op, cached: Launches) -> bool:
        """Return whether cached launches are of this host, these rules, this device and prices."""
        if cached.host is not self.host or cached.rules is not self.rules:
            return False
        parts = ((op, cached.own_kernels), *cached.inner_parts)
        has_unknown = self.charges.includes_unknown_op(parts)
        if cached.device != self.device or cached.has_unknown != has_unknown:
            return False
        kernels = self.kernels
        return all(kernels.get(node) is part for node, part in parts)

    def _key(
        self, op: Op, work: LaunchedWork, costs: Overheads, streams: set[tuple[str, str]]
    ) -> tuple[object, ...]:
        kernels, blocks = work.kernels, self.rules.sync == "blocking"
        is_irregular = len(streams) > 1 or len(kernels) >= self.rules.queue_depth
        if is_irregular or any(kernel.launch == CALL for kernel in kernels):
            return ()
        key: list[object] = [id(costs), op.thread, *streams]
        for kernel, node in zip(kernels, work.nodes, strict=True):
            key += kernel.launch, hardware_unit(kernel, node), kernel.blocking and blocks
        return tuple(key)

    def _add_first(self, op: Op, launches: Launches, full: int) -> Kind:
        """Add the tasks of the first call of a kind; ``full`` is a stream with a full queue."""
        step, build = self.step, self.step.build
        since, last, kernels = len(build), build.last_by_resource, len(step.kernels)
        leaving_tasks = islice(step.queues[full], len(launches.times)) if full >= 0 else ()
        others = {task: key for key, task in enumerate(leaving_tasks)}
        for charge in self.charges.of_call(op):
            step.run(charge)
        return Kind(build.template_since(since, last, others), step.op, kernels, launches.costs)

    def _add_repeat(self, kind: Kind, launches: Launches, stream: int, full: bool) -> None:
        """Add the tasks of a further call."""
        step, template = self.step, kind.template
        base = len(step.kernels) - kind.kernel
        queue = step.queues[stream] if launches.times else None
        leaving_tasks = (
            [queue.popleft() for _ in launches.times] if full and queue is not None else ()
        )
        since = step.build.repeat(template, step.op - kind.op, base, launches.times, leaving_tasks)
        if queue is not None:
            step.kernels += launches.kernels
            queue.extend([since + offset for offset in template.work])
