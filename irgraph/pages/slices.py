"""Timelines and recorded steps as columns of slices, for the reports.

A slice has a track, a start and a length in nanoseconds (starts count from the slice before it on
the same track), a name, a kind that determines its colour, and facts; texts are stored once. 50,000
slices need about 1.5 MB.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from irgraph.capture.kineto.events.families import family_of
from irgraph.capture.kineto.reading.trace import EventKind
from irgraph.pages.texts import InternTable

NS_PER_US = 1000
"""Nanoseconds in a microsecond."""

FIELDS = ("start", "length", "track", "name", "kind", "facts", "critical")
"""The columns of a slice, one number each."""


CALL = "call"
"""Kind of a recorded call without a known phase."""

_OF_COPIES = {
    "Memcpy": EventKind.MEMCPY,
    "memcpy": EventKind.MEMCPY,
    "Memset": EventKind.MEMSET,
    "memset": EventKind.MEMSET,
}


def work_family(name: str) -> str:
    """Return the family of recorded device work by its name."""
    return family_of(name, _OF_COPIES.get(name[:6].lower(), EventKind.KERNEL))


class Slices:
    """Collects slices of several tracks."""

    def __init__(self) -> None:
        self.texts = InternTable()
        self._tracks = InternTable()
        self._facts = InternTable()
        self._columns: list[np.ndarray] = []

    def track(self, group: str, process: str, thread: str) -> int:
        """Return the number of a track: a thread or stream of a timeline named ``group``."""
        return self._tracks((group, process, thread))

    def facts(self, items: Iterable[tuple[str, Any]]) -> int:
        """Return the number of a slice's facts, without empty ones."""
        return self.join(self.pairs(items))

    def pairs(self, items: Iterable[tuple[str, Any]]) -> tuple[int, ...]:
        """Return the numbers of the labels and texts of facts, without empty ones."""
        texts = self.texts
        return tuple(
            number
            for label, value in items
            if value
            for number in (texts(label), texts(_text(value)))
        )

    def join(self, *parts: tuple[int, ...]) -> int:
        """Return the number of facts that consist of several results of ``pairs``."""
        return self._facts(sum(parts, ()))

    def add(
        self,
        start: np.ndarray,
        end: np.ndarray,
        track: np.ndarray,
        name: np.ndarray,
        kind: np.ndarray,
        facts: np.ndarray,
        critical: np.ndarray | bool = False,
    ) -> None:
        """Add slices: ends in microseconds; numbers of tracks, texts and facts; ``[n]`` each."""
        first, last = (
            np.rint(np.asarray(ends) * NS_PER_US).astype(np.int64) for ends in (start, end)
        )
        marks = np.broadcast_to(np.asarray(critical, np.int64), first.shape)
        columns = (first, np.maximum(last - first, 0), track, name, kind, facts, marks)
        self._columns.append(np.stack([np.asarray(column, np.int64) for column in columns]))

    def record(self) -> dict[str, Any]:
        """Return the slices as a record for ``irgraph.html.sections.slices``."""
        rows = np.concatenate([np.zeros((len(FIELDS), 0), np.int64), *self._columns], axis=1)
        start, length, track = rows[:3]
        rows = rows[:, np.lexsort((-length, start, track))]
        columns = dict(zip(FIELDS, rows, strict=True))
        gaps = np.diff(columns["start"], prepend=0)
        first = np.diff(columns["track"], prepend=-1) != 0
        columns["start"] = np.where(first, columns["start"], gaps)
        lists = {name: column.tolist() for name, column in columns.items()}
        return {
            "texts": self.texts.values,
            "tracks": [list(t) for t in self._tracks.values],
            "known": [list(facts) for facts in self._facts.values],
            "columns": lists,
        }


def _text(value: Any) -> str:  # noqa: ANN401  (facts of an event are of many types)
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {inner}" for key, inner in value.items())
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def add_events(
    slices: Slices, events: Iterable[Mapping[str, Any]], prefix: str, group: str | None = None
) -> None:
    """Add the slices among trace events, such as those of a recorded step.

    ``prefix`` is the prefix of track names in the events; ``group`` replaces it.
    """
    names: dict[tuple[int, int], list[str]] = {}
    keyed_events = []
    for event in events:
        key = (event.get("pid", 0), event.get("tid", 0))
        if event["ph"] == "M":
            name_index = (
                ("process_name", "thread_name").index(event["name"]) if _is_name(event) else None
            )
            if name_index is not None:
                names.setdefault(key, ["", ""])[name_index] = event["args"]["name"]
        elif event["ph"] == "X":
            keyed_events.append((key, event))
    group_name = prefix if group is None else group
    tracks = {key: slices.track(group_name, *_track(prefix, name)) for key, name in names.items()}
    rows = [_row(slices, tracks[key], event) for key, event in keyed_events]
    if rows:
        start, end, *others = (np.array(column) for column in zip(*rows, strict=True))
        slices.add(start, end, *others)


def _is_name(event: Mapping[str, Any]) -> bool:
    return event["name"] in ("process_name", "thread_name")


def _track(prefix: str, names: list[str]) -> tuple[str, str]:
    return names[0].removeprefix(f"{prefix}: "), names[1]


def _row(slices: Slices, track: int, event: Mapping[str, Any]) -> tuple[float, ...]:
    facts = event.get("args", {})
    kind = work_family(event["name"]) if "by" in facts else facts.get("phase") or CALL
    return (
        event["ts"],
        event["ts"] + event["dur"],
        track,
        slices.texts(event["name"]),
        slices.texts(kind),
        slices.facts(facts.items()),
    )
