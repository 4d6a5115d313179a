"""Decodes blocks of text into lists of events: a fast path, and repair of damaged text."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Any, TypeAlias

import msgspec
import numpy as np

from irgraph.capture.kineto.reading import decoders as records
from irgraph.capture.kineto.reading.container import execution_trace_error
from irgraph.capture.kineto.reading.decimals import MAX_EXACT_FLOAT
from irgraph.capture.kineto.reading.health import Health
from irgraph.diagnostics import SourceSpan, fail

Events: TypeAlias = Sequence[Any]

_KINETO_BORDER = b"\n  },\n  {"
_KEYS = rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|s|bp|args)"\s*:'
_BORDER = re.compile(rb"\}\s*,\s*(?=" + _KEYS + rb")")
_START = re.compile(rb"(?:\A|(?<=[,\[\s]))" + _KEYS)
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_END = re.compile(rb"\}\s*\](?=\s*(?:,|\}|$))")
_ESCAPES = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
_MAX_TRIES = 8
_HEADER_LIMIT = 64 << 20
_MAX_PENDING = 16 << 20
"""Maximum bytes of text without a border of events to buffer: no event is as long."""

_FIELD_ENDS = tuple(int.from_bytes(end, "little") for end in (b'"ph"', b'"ts"', b'dur"', b'cat"'))
"""Last four bytes of the fields of which an event has one: more of them may be duplicates."""

_OVERLAP = 1 << 16
"""Bytes of searched text that are searched again with the text that follows."""

_SEARCHED = (1 << 12, _OVERLAP)
"""Bytes at the end of a text that are searched for borders before all of it is."""

_MAX_DAMAGED_PARTS = 100_000
"""Maximum number of damaged parts in a trace that has fewer events than damaged parts."""


def _start_times(events: Events) -> list[Any]:
    return [event.ts for event in events if hasattr(event, "ts")]


def _are_small_fractions(events: Events) -> bool:
    """Return whether most times of events have decimals, and all are exact as floats.

    The text of a whole time may have decimals or not, which floats do not show.
    """
    starts = _start_times(events)
    fractions = sum(not start.is_integer() for start in starts)
    return 2 * fractions > len(starts) and max(map(abs, starts)) < MAX_EXACT_FLOAT


def _have_decimals(events: Events) -> bool:
    """Return whether a start has decimals: durations as floats then need not show theirs."""
    return any(b"." in bytes(start) for start in _start_times(events))


_DECODERS: tuple[tuple[msgspec.json.Decoder[Any], Callable[[Events], bool]], ...] = (
    (records.integer_decoder, lambda _: True),
    (records.float_decoder, _are_small_fractions),
    (records.short_decoder, _have_decimals),
    (records.fraction_decoder, lambda _: True),
)
"""Decoders from the fastest to the most general, and conditions for the events that they read.

Once one fails, the next reads the rest of a file.
"""


@dataclass(slots=True)
class EventReader:
    """Reads the events of one trace, some thousands at a time.

    Attributes:
        health: report to which findings are added.
        header: the text before the list of events.
        trailer: the text after it.
        offset: number of bytes decoded so far.
        events: number of events decoded so far.
    """

    health: Health
    header: bytes = b""
    trailer: bytes = b""
    offset: int = 0
    events: int = 0
    _decoder: int = 0
    _pending: bytes = b""
    _searched: int = 0
    _damaged_parts: int = 0

    def read(self, blocks: Iterator[bytes]) -> Iterator[Events]:
        """Yield the events of a text, in order; damage is counted in ``health``.

        Raises:
            IrgraphError: the text has no list of events (exit code 4).
        """
        data = self._read_header(blocks)
        for block in blocks:
            data += block
            yield from self._decode_block(data)
            data = self._pending
        yield from self._decode_last_block(data)

    def _read_header(self, blocks: Iterator[bytes]) -> bytes:
        """Return the text after the opening bracket of the list of events."""
        data = next(blocks)
        if data.lstrip()[:1] == b"[":
            self.header = b"{}"
            return data.lstrip()[1:]
        searched = 0
        while (match := _LIST.search(data, max(0, searched - _OVERLAP))) is None:
            block, searched = next(blocks, b""), len(data)
            if not block or searched > _HEADER_LIMIT:
                raise self._no_events_error(data)
            data += block
        self.header = data[: match.start()].rstrip().rstrip(b",") + b"}"
        return data[match.end() :]

    def _no_events_error(self, data: bytes) -> Exception:
        place = SourceSpan(self.health.source)
        if b'"nodes"' in data:
            return execution_trace_error(self.health.source)
        if b'"traceEvents' in data or not data.rstrip().endswith((b"}", b"]")):
            message = "the trace is cut off before its first event"
            return fail(message, place, hint="record it again and stop the profiler properly")
        return fail("this JSON holds no traceEvents: it is no Kineto trace", place)

    def _decode_block(self, data: bytes) -> Iterator[Events]:
        """Yield the events up to the last border in the text; buffer the rest."""
        cuts = _cuts(data, max(0, self._searched - _OVERLAP))
        if not cuts and len(data) <= _MAX_PENDING:
            self._pending, self._searched = data, len(data)
            return
        self._searched = 0
        for cut in cuts:
            events = self._decode(memoryview(data)[:cut])
            if events is not None:
                yield self._count_events(events, cut)
                self._pending = _after_comma(data, cut)
                return
        yield self._decode_damaged(data[: cuts[0]] if cuts else data)
        self._pending = _after_comma(data, cuts[0]) if cuts else b""

    def _decode_last_block(self, data: bytes) -> Iterator[Events]:
        """Yield the events of the last text, which also ends the list."""
        if data.lstrip()[:1] == b"]":
            self.trailer = data.lstrip()[1:]
            return
        positions = (m.start() + 1 for m in _END.finditer(data))
        first = list(islice(positions, _MAX_TRIES))
        ends = deque(first, _MAX_TRIES)
        ends.extend(positions)
        for end in [*islice(reversed(ends), 1), *first, *ends]:
            events = self._decode(data[:end])
            if events is not None:
                self.trailer = data[end:].lstrip()[1:]
                yield self._count_events(events, len(data))
                return
        if not ends or not data.rstrip().endswith(b"}" if self.header != b"{}" else b"]"):
            location = f"at byte {self.offset + len(data):,}, in event {self.events + 1:,} or later"
            self.health.add("K01", detail=location)
        if data.strip():
            yield self._decode_damaged(data, cut_off="K01" in self.health.counts)

    def _count_events(self, events: Events, length: int) -> Events:
        self.offset += length
        self.events += len(events)
        return events

    def _decode(self, text: bytes | memoryview) -> Events | None:
        """Return the events of a comma-separated text, ``None`` if it is not JSON."""
        data = b"".join((b"[", text, b"]"))
        try:
            events = self._decode_typed(data)
        except _UNREADABLE:
            return None
        if max(_field_counts(data)) > len(events):
            self.health.add("K39", _count_duplicates(data))
        return events

    def _decode_typed(self, text: bytes) -> Events:
        for number in range(self._decoder, len(_DECODERS)):
            decoder, suits = _DECODERS[number]
            try:
                events: Events = decoder.decode(text)
            except msgspec.ValidationError:
                continue
            if suits(events):
                self._decoder = number
                return events
        return self._decode_each(records.raw_decoder.decode(text))

    def _decode_each(self, raws: Sequence[msgspec.Raw]) -> Events:
        """Decode each event separately, as some have values of the wrong type."""
        events: list[records.AnyEvent] = []
        for raw in raws:
            try:
                event = records.event_decoder.decode(raw)
            except _UNREADABLE:
                self._add_lenient_event(json.loads, bytes(raw), events, "K09")
                continue
            if event.name or event.ts != records.NO_TIME:
                events.append(event)
            else:
                self._count_damage("K09")
        return events

    def _add_lenient_event(
        self,
        load: Callable[[bytes], object],
        text: bytes,
        events: list[records.AnyEvent],
        code: str,
    ) -> None:
        try:
            value = load(text)
        except (ValueError, RecursionError):
            self._count_damage("K04")
            return
        event = records.lenient_event(value) if isinstance(value, dict) else None
        if event is None or not isinstance(value, dict):
            self._count_damage(code)
            return
        events.append(event)
        # metadata records often have no time
        is_doubtful = event.ph == "X" and not records.is_complete(value)
        if code == "K04" or is_doubtful:
            self.health.add(code)

    def _count_damage(self, code: str) -> None:
        """Count a part of the text without an event.

        Raises ``IrgraphError`` if there are too many of them.
        """
        self.health.add(code)
        self._damaged_parts += 1
        if self._damaged_parts > max(_MAX_DAMAGED_PARTS, self.events):
            message = f"damaged throughout: {self._damaged_parts:,} parts of it hold no event"
            raise fail(message, SourceSpan(self.health.source), hint="record it again")

    def _decode_damaged(self, text: bytes, *, cut_off: bool = False) -> Events:
        """Decode a damaged text event by event; repair invalid bytes and escapes."""
        events: list[records.AnyEvent] = []
        starts = list(_starts(text))
        if not starts or text[: starts[0]].strip(b" \r\n\t,["):
            self.health.add("K04", detail="text that belongs to no event")
        for begin, end in pairwise([*starts, len(text)]):
            part = text[begin:end].rstrip(b", \r\n\t")
            try:
                events.append(records.event_decoder.decode(part))
                continue
            except _UNREADABLE:
                if end == len(text) and cut_off and not part.endswith(b"}"):
                    continue
            self._add_lenient_event(_decode_tolerantly, part, events, "K04")
        return self._count_events(events, len(text))


def _field_counts(text: bytes) -> list[int]:
    """Return how often the keys of a JSON text end like each of the ``_FIELD_ENDS``."""
    characters = np.frombuffer(text, "u1")
    ends = np.flatnonzero((characters[:-1] == ord('"')) & (characters[1:] == ord(":")))
    words = np.ndarray(max(len(text) - 3, 0), "<u4", text, 0, (1,))
    last_words = words[ends[ends >= 3] - 3]
    return [int(np.count_nonzero(last_words == end)) for end in _FIELD_ENDS]


def _count_duplicates(data: bytes) -> int:
    """Return the number of objects in a JSON text that have a key twice."""
    count = 0

    def add(items: list[tuple[str, object]]) -> None:
        nonlocal count
        count += len({key for key, _ in items}) < len(items)

    try:
        json.loads(data, object_pairs_hook=add)
    except (ValueError, RecursionError):
        return count
    return count


def _cuts(data: bytes, start: int) -> list[int]:
    """Return positions after events, behind ``start``, at which a text may be split.

    The likeliest position comes first.
    """
    position = data.rfind(_KINETO_BORDER, start)
    if position >= 0:
        return [position + 4]
    for begin in (*(max(start, len(data) - size) for size in _SEARCHED), start):
        positions = deque((m.start() + 1 for m in _BORDER.finditer(data, begin)), _MAX_TRIES)
        if positions:
            return list(reversed(positions))
    return []


def _starts(text: bytes) -> Iterator[int]:
    """Yield the positions of events: opening braces after a border and before a known key."""
    end = 0
    for match in _START.finditer(text):
        between = text[end : match.start()]
        before = between.rstrip()
        first = not end and not before
        if first or before.endswith((b",", b"[")) or b"\n" in between[len(before) :]:
            yield match.start()
        end = match.end()


def _after_comma(data: bytes, cut: int) -> bytes:
    return data[data.index(b",", cut) + 1 :]


def _decode_tolerantly(text: bytes) -> object:
    """Decode the first JSON value of a text; accept control characters and bad escapes."""
    plain = text.decode("utf-8", "replace")
    decoder = json.JSONDecoder(strict=False)
    try:
        return decoder.raw_decode(plain)[0]
    except json.JSONDecodeError:
        return decoder.raw_decode(_ESCAPES.sub(r"\\\\", plain))[0]
