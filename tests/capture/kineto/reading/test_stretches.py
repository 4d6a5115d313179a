"""Text without events costs what it is long, however it is made; events beside it are kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from irgraph.capture.kineto.reading import events as pieces
from irgraph.capture.kineto.reading.events import EventReader
from irgraph.capture.kineto.reading.health import Health
from irgraph.diagnostics import IrgraphError

EVENT = b'{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 2}'
BLOCK = 1 << 16


class Counted:
    """A pattern that counts the bytes that it is asked to search."""

    def __init__(self, pattern: re.Pattern[bytes]) -> None:
        self.pattern, self.searched = pattern, 0

    def finditer(self, text: bytes, start: int = 0) -> Iterator[re.Match[bytes]]:
        self.searched += len(text) - start
        return self.pattern.finditer(text, start)

    def search(self, text: bytes, start: int = 0) -> re.Match[bytes] | None:
        self.searched += len(text) - start
        return self.pattern.search(text, start)


def read(text: bytes) -> tuple[Health, list[Any]]:
    health = Health("trace.json")
    parts = (text[at : at + BLOCK] for at in range(0, len(text), BLOCK))
    return health, [event for events in EventReader(health).read(parts) for event in events]


FILLERS = [b" ", b"\n", b",\n", b"}", b"},", b"} ]", b"[", b"{", b"a", b'"', b"\\", b"{},", b"0,"]


@pytest.mark.parametrize("filler", FILLERS)
def test_each_byte_is_searched_a_few_times(filler: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_OVERLAP", BLOCK)
    monkeypatch.setattr(pieces, "_MAX_PENDING", 4 << 20)
    counted = {name: Counted(getattr(pieces, name)) for name in ("_BORDER", "_START", "_END")}
    for name, pattern in counted.items():
        monkeypatch.setattr(pieces, name, pattern)
    junk = filler * ((6 << 20) // len(filler))
    health, events = read(b'{"traceEvents": [' + EVENT + b"," + junk)
    assert [event.name for event in events] == ["aten::mm"]
    assert health.repaired
    assert sum(pattern.searched for pattern in counted.values()) < 6 * len(junk)


def test_a_header_is_searched_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_OVERLAP", BLOCK)
    counted = Counted(pieces._LIST)
    monkeypatch.setattr(pieces, "_LIST", counted)
    header = b'{"x": 1,' + b" " * (4 << 20)
    assert len(read(header + b'"traceEvents": [' + EVENT + b"]}")[1]) == 1
    assert counted.searched < 4 * len(header)


def test_a_stretch_of_blanks_costs_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_MAX_PENDING", 1 << 20)
    text = b'{"traceEvents": [' + EVENT + b" " * (3 << 20) + b"," + EVENT + b"]}"
    assert len(read(text)[1]) == 2


@pytest.mark.parametrize(
    "part", [b',{"ph":', b'{"ph": "X", "ts": nan},', b'{"name": 1},', b"{},\n  "]
)
def test_a_text_of_parts_without_events_is_refused(
    part: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "_MAX_DAMAGED_PARTS", 1000)
    junk = part * 5000
    with pytest.raises(IrgraphError, match=r"damaged throughout: 1,001 parts"):
        read(b'{"traceEvents": [' + EVENT + b"," + junk + EVENT + b"]}")


def test_a_damaged_trace_of_more_events_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces, "_MAX_DAMAGED_PARTS", 100)
    text = (EVENT + b",\n") * 9000 + b'{"ph": "X", "ts": nan},\n' * 500
    health, events = read(b'{"traceEvents": [' + text + EVENT + b"]}")
    assert len(events) == 9001
    assert health.counts["K04"] >= 500


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b'{"ph": 1}, {"ph": 2}', 2),
        (b'[ {"ph": 1}', 1),
        (b'lost\n {"ph": 1}', 1),
        (b'"args": {"name": 1}', 0),
        (b'{"ph": {"name": 1}}', 1),
        (b',\n\n{"ph": 1}\n\n{"ph": 2}', 2),
        (b'lost {"ph": 1}', 0),
    ],
)
def test_events_begin_behind_borders(text: bytes, count: int) -> None:
    assert len(list(pieces._starts(text))) == count
