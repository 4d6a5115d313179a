"""Calls alike: those that differ in the times of their kernels alone add the same tasks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from msgspec import Struct

from irgraph.ir.cost import CALL, Host, Kernel, Overheads
from irgraph.ir.op import Op
from irgraph.schedule.accounting import Accounting
from irgraph.schedule.building.step import Step, needed
from irgraph.schedule.building.task_templates import TaskTemplate
from irgraph.schedule.charges import Charge, Charges, LaunchedWork

KEPT = "irgraph.schedule.alike"
"""Where an op keeps what its call launches, for the host and the rules last asked about."""


class Launches(Struct, frozen=True):
    """What a call launches, if that is all it does and it works on one stream.

    Attributes:
        host, rules, device: what this was found for.
        parts: the ``id`` of each op whose price decided that, with its kernels, if it has any.
        lacks: whether no cost model knows one of those ops.
        kernels, times: all of them, and the lengths of their tasks.
        costs: the call's overheads.
        stream: device and name of the stream; nothing where nothing is launched.
        key: what the tasks follow from but the times and what went before; nothing where the call
            is none of those that repeat.
    """

    host: Host
    rules: Accounting
    device: str
    parts: tuple[tuple[int, tuple[Kernel, ...] | None], ...]
    lacks: bool
    kernels: tuple[Kernel, ...]
    times: tuple[float, ...]
    costs: Overheads
    stream: tuple[str, str] | None
    key: tuple[object, ...]


class Kind(Struct, frozen=True):
    """What the calls of a kind add: tasks, with the op and the kernel that the first one had."""

    form: TaskTemplate
    op: int
    kernel: int
    costs: Overheads


class CallReuse:
    """Adds the tasks of calls: those of the first of a kind one by one, of the others at once.

    A kind is all that tasks follow from but the times of kernels: overheads, thread, stream, for
    each kernel how it is launched, what it shares and whether the host waits for it, and whether
    the stream's queue is full. No kind has a call that hands over from one thread to another, that
    works on a stream first or on several, that fills a queue, or that does more than launch.
    """

    def __init__(self, step: Step, charges: Charges) -> None:
        self.step, self.charges = step, charges
        self.kernels, self.host, self.rules = charges.priced.kernels, charges.host, step.rules
        self.device = charges.priced.graph.device
        self._kinds: dict[object, Kind] = {}

    def __call__(self, op: Op) -> Iterable[Charge]:
        """Add the tasks of a call and return nothing, or return its charges if it has no kind."""
        found = self._launches(op)
        thread, stream, full = self.step.follows(op), -1, False
        if found is None or thread < 0 or not found.key:
            return self.charges.of_call(op)
        if found.stream is not None:
            stream = self.step.resources.get(found.stream, -1)
            room = self.step.rules.queue_depth - len(self.step.queues.get(stream, ()))
            full = room <= 0
            if self.step.build.last(stream) < 0 or 0 < room < len(found.times):
                return self.charges.of_call(op)
        kind = self._kinds.get((found.key, full))
        if kind is None:
            self._kinds[found.key, full] = self._first(op, found, stream if full else -1)
        else:
            self.charges.levels[found.costs.level] += 1
            self.step.at(op)
            self.step.thread = thread
            self._again(kind, found, stream, full)
        return ()

    def _launches(self, op: Op) -> Launches | None:
        """Return what a call launches: what the op keeps, unless it was found for something else.

        ``None`` where that is not all it does.
        """
        known: Launches | None = op.__dict__.get(KEPT)
        if known is not None and self._holds(known):
            return known
        found = self.charges.launches(op)
        if found is None:
            return None
        kernels, nodes, parts = found
        costs = self.host.overheads(op, len(kernels))
        streams = {self.step.place(node) for node in dict.fromkeys(nodes)}
        key = self._key(op, found, costs, streams)
        extra, lacks = self.rules.per_kernel, self.charges.lacks(parts)
        made = Launches(
            self.host,
            self.rules,
            self.device,
            tuple(parts),
            lacks,
            tuple(kernels),
            tuple([kernel.time + extra for kernel in kernels]),
            costs,
            next(iter(streams), None),
            key,
        )
        op.__dict__[KEPT] = made
        return made

    def _holds(self, known: Launches) -> bool:
        """Return whether what an op keeps was found for this host, device and these prices."""
        if known.host is not self.host or known.rules is not self.rules:
            return False
        if known.device != self.device or known.lacks != self.charges.lacks(known.parts):
            return False
        kernels = self.kernels
        return all(kernels.get(key) is part for key, part in known.parts)

    def _key(
        self, op: Op, found: LaunchedWork, costs: Overheads, streams: set[tuple[str, str]]
    ) -> tuple[object, ...]:
        kernels, blocks = found.kernels, self.rules.sync == "blocking"
        odd = len(streams) > 1 or len(kernels) >= self.rules.queue_depth
        if odd or any(kernel.launch == CALL for kernel in kernels):
            return ()
        pairs = zip(kernels, found.nodes, strict=True)
        kinds = [(k.launch, needed(k, node), k.blocking and blocks) for k, node in pairs]
        return (id(costs), op.thread, *streams, *kinds)

    def _first(self, op: Op, found: Launches, full: int) -> Kind:
        """Add the tasks of the first call of a kind; ``full`` is a stream with a full queue."""
        step, build = self.step, self.step.build
        since, last, kernels = len(build), build.lasts, len(step.kernels)
        leaving = islice(step.queues[full], len(found.times)) if full >= 0 else ()
        others = {task: key for key, task in enumerate(leaving)}
        for charge in self.charges.of_call(op):
            step.run(charge)
        return Kind(build.form(since, last, others), step.op, kernels, found.costs)

    def _again(self, kind: Kind, found: Launches, stream: int, full: bool) -> None:
        """Add the tasks of a further call."""
        step, form = self.step, kind.form
        base = len(step.kernels) - kind.kernel
        queue = step.queues[stream] if found.times else None
        leaving = [queue.popleft() for _ in found.times] if full and queue is not None else ()
        since = step.build.repeat(form, step.op - kind.op, base, found.times, leaving)
        if queue is not None:
            step.kernels += found.kernels
            queue.extend([since + place for place in form.work])
