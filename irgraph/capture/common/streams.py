"""Streams and events of a captured program, from the marks that its calls recorded."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from msgspec import Struct

from irgraph.capture.common.calls import CapturedCall, handles_in
from irgraph.capture.common.identity import Handle, Identities

MARK = "irgraph.cuda#"
"""Prefix of the empty ranges by which a capture marks its uses of streams."""

GRAPH = "irgraph.graph#"
"""Name of the range around the calls that the replay of a CUDA graph runs."""

COMM = "comm_"
"""Prefix of the streams on which collectives of a process group run concurrently."""


class IssuedCollective(Struct, frozen=True):
    """A collective of a captured program.

    Attributes:
        number: identifier of the event at its end.
        group: the process group's name.
        on_group_stream: whether it runs on a stream of its group, or on the issuing stream.
        blocks: whether the host waits for it.
        direction: of a message to or from a single rank: ``_to_2``, ``_from_0``. Each direction has
            a separate stream, as neither waits for the other.
    """

    number: str
    group: str
    on_group_stream: bool
    blocks: bool = False
    direction: str = ""


EARLIER_EVENTS = "waits for events that an earlier step recorded: left out"


@dataclass(slots=True)
class Streams:
    """The streams of a step that is being lowered.

    Attributes:
        identities: opens a tensor for each event.
        counts: number of assumptions, by a sentence.
        current: the stream on which calls run; ``""`` is the default one.
        names: names of the streams in use, by the program's number.
    """

    identities: Identities
    counts: Counter[str]
    current: str = ""
    names: dict[str, str] = field(default_factory=lambda: {"0": ""})
    _events: dict[str, Handle] = field(default_factory=dict)

    def calls(self, mark: str, template: CapturedCall) -> list[CapturedCall]:
        """Return the calls of a mark, with the thread, phase and origin of ``template``."""
        verb, *numbers = mark.split()
        if verb == "on":
            self.current = self._stream_name(numbers[0])
            return []
        call = replace(template, name=f"sync.{verb}", stream=self.current)
        if verb == "stream" and numbers:
            call.stream = self._stream_name(numbers[0])
        if len(numbers) == 2:
            call.stream = self._stream_name(numbers[1])
        if verb == "record":
            call.results = [self._new_event(numbers[0])]
        elif verb in ("wait", "event"):
            if numbers[0] not in self._events:
                self.counts[EARLIER_EVENTS] += 1
                return []
            call.operands = [self._events[numbers[0]]]
        return [call]

    def event_and_wait(
        self, source: str, stream: str, template: CapturedCall
    ) -> list[CapturedCall]:
        """Return the record of an event on one stream and another stream's wait for it."""
        event = self._new_event("")
        record = replace(template, name="sync.record", results=[event], stream=source)
        return [record, replace(template, name="sync.wait", operands=[event], stream=stream)]

    def on_group_stream(
        self, call: CapturedCall, issued: IssuedCollective | None
    ) -> list[CapturedCall]:
        """Return a collective on its group's stream, with an event before and one after it."""
        empty = CapturedCall("", thread=call.thread, module=call.module, phase=call.phase)
        empty.origin = call.origin
        if issued is None or not issued.on_group_stream:
            blocks = issued is not None and issued.blocks
            return [call, replace(empty, name="sync.stream", stream=call.stream)][: 1 + blocks]
        issuing_stream, call.stream = call.stream, COMM + issued.group + issued.direction
        self.names.setdefault(call.stream, call.stream)
        end_event = self._new_event(issued.number)
        end_record = replace(empty, name="sync.record", results=[end_event], stream=call.stream)
        return [*self.event_and_wait(issuing_stream, call.stream, empty), call, end_record]

    def waits(self, numbers: Sequence[str], call: CapturedCall) -> list[CapturedCall]:
        """Return the waits of a call's stream for collectives, by their numbers."""
        empty = CapturedCall("", thread=call.thread, module=call.module, phase=call.phase)
        empty.origin = call.origin
        return [wait for number in numbers for wait in self.calls(f"wait {number}", empty)]

    @contextlib.contextmanager
    def run_on(self, stream: str) -> Iterator[None]:
        """Run the calls of the context on a stream."""
        previous, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = previous

    def _stream_name(self, number: str) -> str:
        return self.names.setdefault(number, f"stream{len(self.names)}")

    def _new_event(self, number: str) -> Handle:
        self.identities.buffers += 1
        event = Handle("u8", (), None, self.identities.buffers, 0, "cpu")
        self._events[number] = event
        return event


def order_backward(calls: Sequence[CapturedCall], streams: Streams) -> list[CapturedCall]:
    """Return calls with events where backward needs another stream's work, as autograd adds them.

    The engine runs each node on the stream of its forward call, makes it wait for the streams whose
    gradients it uses, and at the end makes the stream that called it wait for all others.
    """
    if len(streams.names) == 1:
        return list(calls)
    return list(_Engine(streams).with_events(calls, ""))


@dataclass(slots=True)
class _Engine:
    """Inserts events into the calls of a step; records the stream that last wrote each buffer."""

    streams: Streams
    stream_by_buffer: dict[int, str] = field(default_factory=dict)

    def with_events(self, calls: Sequence[CapturedCall], stream: str) -> Iterator[CapturedCall]:
        streams: dict[str, None] = {}
        last: CapturedCall | None = None
        for call in calls:
            if call.name.startswith("autograd."):
                yield from self._waits(call)
                yield call
                streams[call.stream], last = None, call
                continue
            yield from self._final_waits(streams, last, stream)
            streams, last = {}, None
            stream = call.stream
            if call.body:
                call.body = list(self.with_events(call.body, stream))
            yield call
        yield from self._final_waits(streams, last, stream)

    def _waits(self, node: CapturedCall) -> Iterator[CapturedCall]:
        buffers = {handle.buffer for call in node.walk() for handle in handles_in(call.operands)}
        other_streams = {
            self.stream_by_buffer[buffer] for buffer in buffers if buffer in self.stream_by_buffer
        } - {node.stream}
        for stream in sorted(other_streams):
            yield from self.streams.event_and_wait(stream, node.stream, _empty_call(node))
        results = (h for call in node.walk() for h in handles_in([*call.results, *call.written]))
        self.stream_by_buffer.update((handle.buffer, node.stream) for handle in results)

    def _final_waits(
        self, streams: dict[str, None], last: CapturedCall | None, stream: str
    ) -> Iterator[CapturedCall]:
        for source in streams:
            if last is not None and source != stream:
                yield from self.streams.event_and_wait(source, stream, _empty_call(last))


def _empty_call(call: CapturedCall) -> CapturedCall:
    return CapturedCall("", thread=call.thread, phase=call.phase, origin=call.origin)
