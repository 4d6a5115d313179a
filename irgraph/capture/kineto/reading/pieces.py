"""From blocks of text to lists of events: the fast way, and what to do with damage."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

import msgspec

from irgraph.capture.kineto.reading import decoders as records
from irgraph.capture.kineto.reading.container import execution_trace_error
from irgraph.capture.kineto.reading.health import Health
from irgraph.diagnostics import Place, fail

Events: TypeAlias = Sequence[Any]

_KINETO = b"\n  },\n  {"
_KEYS = rb'\{\s*"(?:ph|cat|name|pid|tid|ts|dur|id|s|bp|args)"\s*:'
_BETWEEN = re.compile(rb"\}\s*,\s*(?=" + _KEYS + rb")")
_STARTS = re.compile(rb"(?:^\[?|[,\[\n])\s*(?=" + _KEYS + rb")")
_LIST = re.compile(rb'"traceEvents"\s*:\s*\[')
_END = re.compile(rb"\}\s*\](?=\s*(?:,|\}|$))")
_ESCAPES = re.compile(r'\\(?!["\\/bfnrt]|u[0-9a-fA-F]{4})')
_TRIES = 8
_HEADER_LIMIT = 64 << 20


@dataclass(slots=True)
class Pieces:
    """Reads the events of one trace, some thousands at a time.

    Attributes:
        health: where findings go.
        header: the text before the list of events.
        trailer: the text after it.
        offset: bytes taken so far.
        events: events decoded so far.
    """

    health: Health
    header: bytes = b""
    trailer: bytes = b""
    offset: int = 0
    events: int = 0
    _fractions: bool = False

    def read(self, blocks: Iterator[bytes]) -> Iterator[Events]:
        """Yield the events of a text, in order; damage is counted in ``health``.

        Raises:
            IrgraphError: the text holds no list of events (exit code 4).
        """
        data = self._begin(blocks)
        for block in blocks:
            data += block
            yield from self._whole(data)
            data = self._rest
        yield from self._last(data)

    _rest: bytes = b""

    def _begin(self, blocks: Iterator[bytes]) -> bytes:
        """Return the text after the opening bracket of the list of events."""
        data = next(blocks)
        if data.lstrip()[:1] == b"[":
            self.header = b"{}"
            return data.lstrip()[1:]
        while (found := _LIST.search(data)) is None:
            more = next(blocks, b"")
            if not more or len(data) > _HEADER_LIMIT:
                raise self._no_events(data)
            data += more
        self.header = data[: found.start()].rstrip().rstrip(b",") + b"}"
        return data[found.end() :]

    def _no_events(self, data: bytes) -> Exception:
        place = Place(self.health.source)
        if b'"nodes"' in data:
            return execution_trace_error(self.health.source)
        if b'"traceEvents' in data or not data.rstrip().endswith((b"}", b"]")):
            message = "the trace is cut off before its first event"
            return fail(message, place, hint="record it again and stop the profiler in order")
        return fail("this JSON holds no traceEvents: it is no Kineto trace", place)

    def _whole(self, data: bytes) -> Iterator[Events]:
        """Yield the events up to the last border in the text; keep the rest."""
        cuts = _cuts(data)
        for cut in cuts:
            events = self._decode(memoryview(data)[:cut])
            if events is not None:
                yield self._taken(events, cut)
                self._rest = _after_comma(data, cut)
                return
        self._rest = data
        if cuts:
            yield self._mended(data[: cuts[0]])
            self._rest = _after_comma(data, cuts[0])
        elif len(data) > _HEADER_LIMIT:
            self.health.add("K04", detail="a stretch without a single event, skipped")
            self._rest = b""

    def _last(self, data: bytes) -> Iterator[Events]:
        """Yield the events of the last text, which also ends the list."""
        if data.lstrip()[:1] == b"]":
            self.trailer = data.lstrip()[1:]
            return
        ends = [m.start() + 1 for m in _END.finditer(data)]
        for end in [*ends[-1:], *ends[:_TRIES], *ends[-_TRIES:]]:
            events = self._decode(data[:end])
            if events is not None:
                self.trailer = data[end:].lstrip()[1:]
                yield self._taken(events, len(data))
                return
        if not ends or not data.rstrip().endswith(b"}" if self.header != b"{}" else b"]"):
            at = f"at byte {self.offset + len(data):,}, in event {self.events + 1:,} or later"
            self.health.add("K01", detail=at)
        if data.strip():
            yield self._mended(data, cut_off="K01" in self.health.counts)

    def _taken(self, events: Events, length: int) -> Events:
        self.offset += length
        self.events += len(events)
        return events

    def _decode(self, text: bytes | memoryview) -> Events | None:
        """Return the events of a comma-separated text, ``None`` where it is no JSON."""
        try:
            return self._typed(b"".join((b"[", text, b"]")))
        except UnicodeDecodeError:
            return None
        except msgspec.DecodeError:
            return None

    def _typed(self, text: bytes) -> Events:
        if not self._fractions:
            try:
                found: Events = records.whole.decode(text)
                return found
            except msgspec.ValidationError:
                pass
        try:
            events: Events = records.fractions.decode(text)
        except msgspec.ValidationError:
            return self._one_by_one(records.raws.decode(text))
        self._fractions = True
        return events

    def _one_by_one(self, raws: Sequence[msgspec.Raw]) -> Events:
        """Decode each event alone: some have values of the wrong type."""
        events: list[records.AnyEvent] = []
        for raw in raws:
            try:
                events.append(records.one.decode(raw))
            except msgspec.DecodeError:
                self._loosely(json.loads, bytes(raw), events, "K09")
        return events

    def _loosely(
        self,
        load: Callable[[bytes], object],
        text: bytes,
        events: list[records.AnyEvent],
        code: str,
    ) -> None:
        try:
            value = load(text)
        except (ValueError, RecursionError):
            self.health.add("K04")
            return
        if not isinstance(value, dict):
            self.health.add(code)
            return
        event = records.loose(value)
        if event is not None:
            events.append(event)
        # records without a time of their own are common among metadata
        if event is None or code == "K04" or event.ph == "X":
            self.health.add(code)

    def _mended(self, text: bytes, *, cut_off: bool = False) -> Events:
        """Decode a damaged text event by event, mending bytes where that is all it takes."""
        events: list[records.AnyEvent] = []
        starts = [m.end() for m in _STARTS.finditer(text)]
        if not starts or text[: starts[0]].strip(b" \r\n\t,["):
            self.health.add("K04", detail="text that belongs to no event")
        for begin, end in pairwise([*starts, len(text)]):
            part = text[begin:end].rstrip(b", \r\n\t")
            try:
                events.append(records.one.decode(part))
                continue
            except (msgspec.DecodeError, UnicodeDecodeError):
                if end == len(text) and cut_off and not part.endswith(b"}"):
                    continue
            self._loosely(_mend, part, events, "K04")
        return self._taken(events, len(text))


def _cuts(data: bytes) -> list[int]:
    """Return positions after events where a text may be cut, likeliest first."""
    at = data.rfind(_KINETO)
    if at >= 0:
        return [at + 4]
    for window in (1 << 16, len(data)):
        start = max(0, len(data) - window)
        found = [m.start() + 1 for m in _BETWEEN.finditer(data, start)]
        if found:
            return found[: -_TRIES - 1 : -1]
    return []


def _after_comma(data: bytes, cut: int) -> bytes:
    return data[data.index(b",", cut) + 1 :]


def _mend(text: bytes) -> object:
    """Decode the first JSON value of a text in spite of control characters and bad escapes."""
    plain = text.decode("utf-8", "replace")
    decoder = json.JSONDecoder(strict=False)
    try:
        return decoder.raw_decode(plain)[0]
    except json.JSONDecodeError:
        return decoder.raw_decode(_ESCAPES.sub(r"\\\\", plain))[0]
