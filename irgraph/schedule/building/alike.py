"""Calls alike: those that differ in the times of their kernels alone add the same tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

from msgspec import Struct

from irgraph.ir.cost import CALL, Kernel, Overheads
from irgraph.ir.op import Op
from irgraph.schedule.building.repeats import Form
from irgraph.schedule.building.step import Step, needed
from irgraph.schedule.charges import Charge, Charges


class Kind(Struct, frozen=True):
    """What the calls of a kind add: tasks, with the op and the kernel that the first one had.

    ``costs`` are those of the host's table: kinds are told by the identity of these.
    """

    form: Form
    op: int
    kernel: int
    costs: Overheads


class Alike:
    """Adds the tasks of calls: those of the first of a kind one by one, of the others at once.

    A kind is all that tasks follow from but the times of kernels: overheads, thread, and for each
    kernel how it is launched, its stream, what it shares, whether the host waits for it, and
    whether the stream's queue is full. No kind has a call that hands over from one thread to
    another, that works on a stream first, that fills a queue, or that does more than launch.
    """

    def __init__(self, step: Step, charges: Charges) -> None:
        self.step, self.charges = step, charges
        self._kinds: dict[object, Kind] = {}

    def __call__(self, op: Op) -> Iterable[Charge]:
        """Add the tasks of a call and return nothing, or return its charges if it has no kind."""
        launches = self.charges.launches(op)
        thread = self.step.follows(op)
        if launches is None or thread < 0:
            return self.charges.of_call(op)
        costs = self.charges.host.overheads(op, len(launches))
        streams = [self.step.stream(node) for _, node in launches]
        key = self._key(launches, streams)
        if key is None:
            return self.charges.of_call(op)
        whole = (id(costs), thread, *key)
        kind = self._kinds.get(whole)
        if kind is None:
            self._kinds[whole] = self._first(op, launches, streams, costs)
        else:
            self.charges.levels[costs.level] += 1
            self.step.at(op)
            self.step.thread = thread
            self._again(kind, [kernel for kernel, _ in launches], streams)
        return ()

    def _key(
        self, launches: Sequence[tuple[Kernel, Op]], streams: Sequence[int]
    ) -> list[object] | None:
        """Return what a kind is told by beside overheads and thread; nothing without a kind."""
        step, rules, count = self.step, self.step.rules, len(launches)
        key: list[object] = []
        for (kernel, node), stream in zip(launches, streams, strict=True):
            room = rules.queue_depth - len(step.queues.get(stream, ()))
            if kernel.launch == CALL or stream < 0 or 0 < room < count:
                return None
            waits = kernel.blocking and rules.sync == "blocking"
            key += (kernel.launch, stream, needed(kernel, node), waits, room > 0)
        return key if count < rules.queue_depth else None

    def _first(
        self, op: Op, launches: Sequence[tuple[Kernel, Op]], streams: Sequence[int],
        costs: Overheads,
    ) -> Kind:  # fmt: skip
        """Add the tasks of the first call of a kind."""
        step, build = self.step, self.step.build
        since, last, kernels = len(build), build.lasts, len(step.kernels)
        full = self._full(streams)
        for charge in self.charges.of_call(op):
            step.run(charge)
        form = build.form(since, last, {task: key for key, task in enumerate(full)})
        return Kind(form, step.op, kernels, costs)

    def _full(self, streams: Sequence[int]) -> list[int]:
        """Return the launch that has to leave a full queue before each kernel is launched."""
        depth = self.step.rules.queue_depth
        left = {s: iter(q) for s in streams if len(q := self.step.queues.get(s, deque())) >= depth}
        return [next(left[stream]) for stream in streams if stream in left]

    def _again(self, kind: Kind, kernels: Sequence[Kernel], streams: Sequence[int]) -> None:
        """Add the tasks of a further call."""
        step, form = self.step, kind.form
        full = self._full(streams)
        base, more = len(step.kernels) - kind.kernel, step.rules.per_kernel
        times = [kernel.time + more for kernel in kernels]
        since = step.build.repeat(form, step.op - kind.op, base, times, full)
        step.kernels += kernels
        for stream, place in zip(streams, form.work, strict=True):
            queue = step.queues[stream]
            if len(queue) >= step.rules.queue_depth:
                queue.popleft()
            queue.append(since + place)
