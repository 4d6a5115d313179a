"""Reads Chakra files without protobuf, and runs them as their readers do; knows nothing of irgraph.

The wire format is that of protobuf's documentation (protobuf.dev/programming-guides/encoding);
field numbers are those of ``et_def.proto`` of github.com/mlcommons/chakra.
``python -m tests.exchange.chakra_reader FILE...`` prints the times of files that irgraph wrote.
"""

from __future__ import annotations

import heapq
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

STRING, LIST, BOOL, INT64, DOUBLE, UINT64 = 29, 30, 27, 9, 3, 13
COMP, METADATA, COLLECTIVE = 4, 1, 7


@dataclass
class Task:
    """One node of a file."""

    id: int = 0
    name: str = ""
    type: int = 0
    ctrl: list[int] = field(default_factory=list)
    data: list[int] = field(default_factory=list)
    start: int = 0
    duration: int = 0
    inputs: dict[int, str] = field(default_factory=dict)
    outputs: dict[int, str] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


def varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Yield number and raw value of each field of a message."""
    at = 0
    while at < len(data):
        tag, at = varint(data, at)
        if tag & 7 == 0:
            value: Any
            value, at = varint(data, at)
        elif tag & 7 == 1:
            value, at = data[at : at + 8], at + 8
        else:
            assert tag & 7 == 2, tag
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        yield tag >> 3, value


def attribute(data: bytes) -> tuple[str, Any]:
    name, value = "", None
    for number, raw in fields(data):
        if number == 1:
            name = raw.decode()
        elif number == STRING:
            value = raw.decode()
        elif number == LIST:
            value = [item.decode() for _, item in fields(raw)]
        elif number == BOOL:
            value = bool(raw)
        elif number == DOUBLE:
            (value,) = struct.unpack("<d", raw)
        else:
            assert number in (INT64, UINT64), number
            value = raw
    return name, value


def numbers(raw: Any) -> list[int]:
    """Return repeated numbers, packed or one by one."""
    if isinstance(raw, int):
        return [raw]
    found, at = [], 0
    while at < len(raw):
        value, at = varint(raw, at)
        found.append(value)
    return found


def task(data: bytes) -> Task:
    made = Task()
    for number, raw in fields(data):
        if number in (1, 3, 6, 7):
            setattr(made, {1: "id", 3: "type", 6: "start", 7: "duration"}[number], raw)
        elif number == 2:
            made.name = raw.decode()
        elif number in (4, 5):
            (made.ctrl if number == 4 else made.data).extend(numbers(raw))
        elif number in (8, 9):
            side = made.inputs if number == 8 else made.outputs
            side.update((n, text.decode()) for n, text in fields(raw))
        else:
            assert number == 10, number
            name, value = attribute(raw)
            made.attrs[name] = value
    return made


def read(data: bytes) -> tuple[dict[str, Any], list[Task]]:
    """Return the attributes of a file, and its nodes."""
    parts, at = [], 0
    while at < len(data):
        size, at = varint(data, at)
        parts.append(data[at : at + size])
        at += size
    assert at == len(data)
    head = dict(attribute(raw) for number, raw in fields(parts[0]) if number == 2)
    return head, [task(part) for part in parts[1:]]


def finish(tasks: list[Task]) -> int:
    """Return when the last node ends if each begins when all of ``data_deps`` have ended."""
    ends: dict[int, int] = {}
    for each in tasks:
        ends[each.id] = max((ends[other] for other in each.data), default=0) + each.duration
    return max(ends.values())


def slot(each: Task) -> str:
    """Return what a node occupies in ASTRA-sim (``HardwareResource.cc``)."""
    if each.attrs.get("is_cpu_op", False):
        return "cpu"
    return "gpu" if each.type == COMP else "links"


def replay(tasks: list[Task]) -> float:
    """Return the microseconds that ASTRA-sim would take: one node at a time of CPU, GPU and links.

    By ``Workload::issue_dep_free_nodes``, ``HardwareResource`` and the feeder's dependency
    resolver, which throws where a node starts before the nodes in its ``ctrl_deps`` have ended.
    Nodes without a duration take a nanosecond, metadata nodes none; collectives take what is
    written in them, as no network is simulated here.
    """
    by_id = {each.id: each for each in tasks}
    assert len(by_id) == len(tasks)
    missing = {each.id: set(each.data) for each in tasks}
    later: dict[int, list[int]] = {}
    for each in tasks:
        for other in missing[each.id]:
            later.setdefault(other, []).append(each.id)
    free = [each.id for each in tasks if not each.data]
    heapq.heapify(free)
    busy: set[str] = set()
    ended: set[int] = set()
    events: list[tuple[int, int]] = []
    now = 0

    def end(number: int) -> None:
        ended.add(number)
        busy.discard(slot(by_id[number]))
        for child in later.get(number, ()):
            missing[child].discard(number)
            if not missing[child]:
                heapq.heappush(free, child)

    def issue() -> None:
        for number in sorted(free):
            each = by_id[number]
            if slot(each) in busy:
                continue
            free.remove(number)
            assert set(each.ctrl) <= ended, f"{each.name} starts before its caller"
            busy.add(slot(each))
            if each.type == METADATA:
                assert not each.inputs.get(1) or "pg_name" in each.inputs[1]
                end(number)
            else:
                heapq.heappush(events, (now + (1000 * each.duration or 1), number))

    issue()
    while events:
        now, number = heapq.heappop(events)
        end(number)
        issue()
    assert len(ended) == len(tasks), "nodes wait for ever"
    return now / 1000


if __name__ == "__main__":
    for name in sys.argv[1:]:
        head, nodes = read(Path(name).read_bytes())
        times = (
            f"{finish(nodes) / 1000:.3f} ms along data_deps, {replay(nodes) / 1000:.3f} ms replayed"
        )
        sys.stdout.write(
            f"{name}: {head.get('step_time_us', 0) / 1000:.3f} ms predicted, {times}\n"
        )
