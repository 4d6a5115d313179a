"""Streams and events of a captured program, from the marks that its calls left."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct

from irgraph.capture.common.calls import Call, handles_in
from irgraph.capture.common.identity import Handle, Identities

MARK = "irgraph.cuda#"
"""Prefix of the ranges without content by which a capture shows what it does with streams."""

GRAPH = "irgraph.graph#"
"""The range around what the replay of a CUDA graph runs."""

COMM = "comm_"
"""Prefix of the streams on which collectives of a process group run beside other work."""


class IssuedCollective(Struct, frozen=True):
    """A collective of a captured program.

    Attributes:
        number: names the event at its end.
        group: the process group's name.
        beside: whether it runs on a stream of its group's, or on the one that asks.
        blocks: whether the host waits for it.
        way: of what goes to or comes from one rank alone: ``_to_2``, ``_from_0``. Each way has a
            stream of its own, as neither waits for the other.
    """

    number: str
    group: str
    beside: bool
    blocks: bool = False
    way: str = ""


EARLIER = "waits for events that an earlier step recorded: left out"


@dataclass(slots=True)
class Streams:
    """The streams of a step that is being lowered.

    Attributes:
        identities: opens a tensor for each event.
        counts: how often something was assumed, by a sentence.
        current: the stream on which calls run; ``""`` is the default one.
        names: of the streams that work was put on, by the program's number.
    """

    identities: Identities
    counts: Counter[str]
    current: str = ""
    names: dict[str, str] = field(default_factory=lambda: {"0": ""})
    _events: dict[str, Handle] = field(default_factory=dict)

    def calls(self, words: str, template: Call) -> list[Call]:
        """Return what a mark stands for, like ``template`` in thread, phase and origin."""
        verb, *numbers = words.split()
        if verb == "on":
            self.current = self._name(numbers[0])
            return []
        call = replace(template, name=f"sync.{verb}", stream=self.current)
        if verb == "stream" and numbers:
            call.stream = self._name(numbers[0])
        if len(numbers) == 2:
            call.stream = self._name(numbers[1])
        if verb == "record":
            call.results = [self._recorded(numbers[0])]
        elif verb in ("wait", "event"):
            if numbers[0] not in self._events:
                self.counts[EARLIER] += 1
                return []
            call.operands = [self._events[numbers[0]]]
        return [call]

    def joined(self, source: str, stream: str, template: Call) -> list[Call]:
        """Return an event of one stream and another's wait for it."""
        event = self._recorded("")
        record = replace(template, name="sync.record", results=[event], stream=source)
        return [record, replace(template, name="sync.wait", operands=[event], stream=stream)]

    def beside(self, call: Call, issued: IssuedCollective | None) -> list[Call]:
        """Return a collective on its group's stream, with an event before and one behind it."""
        bare = Call("", thread=call.thread, module=call.module, phase=call.phase)
        bare.origin = call.origin
        if issued is None or not issued.beside:
            blocks = issued is not None and issued.blocks
            return [call, replace(bare, name="sync.stream", stream=call.stream)][: 1 + blocks]
        asking, call.stream = call.stream, COMM + issued.group + issued.way
        self.names.setdefault(call.stream, call.stream)
        end = self._recorded(issued.number)
        done = replace(bare, name="sync.record", results=[end], stream=call.stream)
        return [*self.joined(asking, call.stream, bare), call, done]

    def waits(self, numbers: Sequence[str], call: Call) -> list[Call]:
        """Return the waits of a call's stream for collectives, by their numbers."""
        bare = Call("", thread=call.thread, module=call.module, phase=call.phase)
        bare.origin = call.origin
        return [wait for number in numbers for wait in self.calls(f"wait {number}", bare)]

    @contextlib.contextmanager
    def on(self, stream: str) -> Iterator[None]:
        """Let calls run on a stream while it lasts."""
        kept, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = kept

    def _name(self, number: str) -> str:
        return self.names.setdefault(number, f"stream{len(self.names)}")

    def _recorded(self, number: str) -> Handle:
        self.identities.buffers += 1
        event = Handle("u8", (), None, self.identities.buffers, 0, "cpu")
        self._events[number] = event
        return event


def order_backward(calls: Sequence[Call], streams: Streams) -> list[Call]:
    """Put events where backward needs another stream's work, as the autograd engine does.

    It runs each node on the stream of its forward call, lets a node wait for the streams whose
    gradients it takes, and at the end lets the stream that called it wait for all others.
    """
    if len(streams.names) == 1:
        return list(calls)
    return list(_Engine(streams).ordered(calls, ""))


@dataclass(slots=True)
class _Engine:
    """Walks the calls of a step in order, and knows which autograd node made which memory."""

    streams: Streams
    made: dict[int, str] = field(default_factory=dict)

    def ordered(self, calls: Sequence[Call], stream: str) -> Iterator[Call]:
        used: dict[str, None] = {}
        last: Call | None = None
        for call in calls:
            if call.name.startswith("autograd."):
                yield from self._waits(call)
                yield call
                used[call.stream], last = None, call
                continue
            yield from self._ends(used, last, stream)
            used, last = {}, None
            stream = call.stream
            if call.body:
                call.body = list(self.ordered(call.body, stream))
            yield call
        yield from self._ends(used, last, stream)

    def _waits(self, node: Call) -> Iterator[Call]:
        taken = {handle.buffer for call in node.walk() for handle in handles_in(call.operands)}
        others = {self.made[buffer] for buffer in taken if buffer in self.made} - {node.stream}
        for other in sorted(others):
            yield from self.streams.joined(other, node.stream, _like(node))
        results = (h for call in node.walk() for h in handles_in([*call.results, *call.written]))
        self.made.update((handle.buffer, node.stream) for handle in results)

    def _ends(self, used: dict[str, None], last: Call | None, stream: str) -> Iterator[Call]:
        for other in used:
            if last is not None and other != stream:
                yield from self.streams.joined(other, stream, _like(last))


def _like(call: Call) -> Call:
    return Call("", thread=call.thread, phase=call.phase, origin=call.origin)
