"""Columns that grow event by event as a trace is read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from irgraph.capture.kineto.reading.trace import ABSENT, COLUMNS, Array


class Column:
    """One property of all events so far, in one stretch of memory, as narrow as its values allow.

    A stretch that grows is moved by the system without a copy, which lists of pieces that are
    joined at the end would need.
    """

    __slots__ = ("absent", "data", "kind", "widest")

    def __init__(self, key: str) -> None:
        self.widest = np.dtype(COLUMNS[key])
        self.kind = np.dtype("i4") if self.widest == np.int64 else self.widest
        self.absent = ABSENT.get(key, -1)
        self.data = bytearray()

    def append(self, row: int, values: Array) -> None:
        """Append values that begin at a row; rows before it that have none yet are absent."""
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
        """Return the values of so many rows, without a copy; the column grows no more."""
        if not self.data:
            return np.broadcast_to(np.array(self.absent, self.widest), rows)
        self._fill(rows)
        return np.frombuffer(self.data, self.kind)


class Columns:
    """All columns, piece by piece; the events of a piece have one category and one unit of time.

    Attributes:
        rows: events so far.
        pieces: of each piece its events, the number of its category, and by how much its times
            are multiplied in ``start`` and ``duration``.
    """

    def __init__(self) -> None:
        self.rows = 0
        self.pieces: list[tuple[int, int, int]] = []
        self._columns: dict[str, Column] = {key: Column(key) for key in COLUMNS if key != "kind"}

    def append(self, piece: dict[str, Array], category: int, scale: int) -> None:
        """Append the events of a piece; properties that it lacks are absent."""
        count = len(piece["name"])
        if not count:
            return
        for key, values in piece.items():
            self._columns[key].append(self.rows, values)
        self.rows += count
        self.pieces.append((count, category, scale))

    def pop(self, key: str) -> Array:
        """Return a column, which is given up here."""
        return self._columns.pop(key).array(self.rows)

    def scaled(self) -> Iterator[tuple[slice, int]]:
        """Yield stretches of rows, each with the factor of its times."""
        begin = end = 0
        factor = self.pieces[0][2]
        for count, _, scale in self.pieces:
            if scale != factor:
                yield slice(begin, end), factor
                begin, factor = end, scale
            end += count
        yield slice(begin, end), factor

    def categories(self) -> Array:
        """Return the number of each event's category."""
        counts, numbers, _ = zip(*self.pieces, strict=True)
        return np.repeat(np.array(numbers, "i4"), counts)
