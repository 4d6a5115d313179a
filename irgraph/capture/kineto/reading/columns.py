"""Columns that grow event by event as a trace is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from msgspec import Raw

from irgraph.capture.kineto.reading.trace import ABSENT, COLUMNS, Array

MAX_MICROSECONDS = (1 << 62) / 1000
"""Maximum time in microseconds that is read; a larger one counts nanoseconds since 1970."""


def to_whole_nanoseconds(events: Iterable[Any]) -> bool:
    """Round the times of events in place if they are decimals of nanoseconds since 1970.

    Return whether they were: of a time that is no number, and of microseconds, nothing changes.
    """
    if any(isinstance(event.ts, int) for event in events):
        return False
    times = [(event, *_numbers(event)) for event in events]
    if not times or not all(start > MAX_MICROSECONDS for _, start, _ in times):
        return False
    for event, start, duration in times:
        event.ts, event.dur = round(start), round(duration)
    return True


def _numbers(event: Any) -> tuple[float, float]:  # noqa: ANN401
    """Return the start and the duration of an event, 0 for texts that are no numbers."""
    try:
        return _number(event.ts), _number(event.dur)
    except ValueError:
        return 0.0, 0.0


def _number(time: float | Raw) -> float:
    return time if isinstance(time, float) else float(bytes(time))


class Column:
    """One property of all events so far, in one contiguous buffer, as narrow as its values allow.

    The system moves a growing buffer without a copy; a list of pieces would have to be copied to
    be concatenated at the end.
    """

    __slots__ = ("absent", "data", "kind", "widest")

    def __init__(self, key: str) -> None:
        self.widest = np.dtype(COLUMNS[key])
        self.kind = np.dtype("i4") if self.widest == np.int64 else self.widest
        self.absent = ABSENT.get(key, -1)
        self.data = bytearray()

    def append(self, row: int, values: Array) -> None:
        """Append values from a row on; earlier rows without a value become absent."""
        if values.dtype != self.kind:
            if values.dtype.itemsize > self.kind.itemsize:
                self.data = bytearray(self.array(row).astype(self.widest).data)
                self.kind = self.widest
            values = values.astype(self.kind)
        self._fill(row)
        self.data += values.data

    def _fill(self, rows: int) -> None:
        missing = rows - len(self.data) // self.kind.itemsize
        if missing:
            self.data += np.full(missing, self.absent, self.kind).data

    def array(self, rows: int) -> Array:
        """Return the values of ``rows`` rows without a copy; the column cannot grow afterwards."""
        if not self.data:
            return np.broadcast_to(np.array(self.absent, self.widest), rows)
        self._fill(rows)
        return np.frombuffer(self.data, self.kind)


class Columns:
    """All columns, built from pieces; the events of a piece have one category and one time unit.

    Attributes:
        rows: number of events so far.
        pieces: for each piece the number of its events, the number of its category, and the factor
            of its times in ``start`` and ``duration``.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.pieces: list[tuple[int, int, int]] = []
        self._columns: dict[str, Column] = {key: Column(key) for key in COLUMNS if key != "kind"}

    def append(self, piece: dict[str, Array], category: int, scale: int) -> None:
        """Append the events of a piece; columns that it lacks become absent."""
        count = len(piece["name"])
        if not count:
            return
        for key, values in piece.items():
            self._columns[key].append(self.rows, values)
        self.rows += count
        self.pieces.append((count, category, scale))

    def pop(self, key: str) -> Array:
        """Remove a column and return its values."""
        return self._columns.pop(key).array(self.rows)

    def scaled(self) -> Iterator[tuple[slice, int]]:
        """Yield slices of rows that share a factor of times, with the factor."""
        begin = end = 0
        factor = self.pieces[0][2]
        for count, _, scale in self.pieces:
            if scale != factor:
                yield slice(begin, end), factor
                begin, factor = end, scale
            end += count
        yield slice(begin, end), factor

    def categories(self) -> Array:
        """Return the category number of each event."""
        counts, numbers, _ = zip(*self.pieces, strict=True)
        return np.repeat(np.array(numbers, "i4"), counts)
