"""The folder of a sweep: a header that identifies it, and a Parquet file per finished chunk."""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from irgraph.diagnostics import SourceSpan, fail
from irgraph.diagnostics.json_keys import unique_keys
from irgraph.files import read_text, write_atomic
from irgraph.sweep.grid import Chunk, Grid
from irgraph.sweep.price import ChunkFigures

if TYPE_CHECKING:
    import pyarrow

HEADER_FILE = "_sweep.json"
"""Name of the file that identifies the sweep; readers of Parquet skip names with ``_``."""

FORMAT = 1

POINTS, FIGURES = b"irgraph.points", b"irgraph.figures"
"""Keys of the hashes in a part's metadata."""


class Results:
    """Folder of a sweep's results.

    Attributes:
        folder: its path.
        grid: the variants.
        fingerprint: of the sweep, ``Grid.fingerprint``.
        damaged: parts that ``pending_chunks`` found damaged, changed, or of other points.
    """

    def __init__(self, folder: str | Path, grid: Grid, fingerprint: str) -> None:
        """Create the folder, or continue in an existing one of the same sweep.

        Raises ``IrgraphError`` if the folder contains another sweep or other files, or cannot be
        written.
        """
        self.folder = Path(folder)
        self.grid, self.fingerprint = grid, fingerprint
        header = {"format": FORMAT, "fingerprint": fingerprint, "variants": grid.variants}
        span = SourceSpan(str(self.folder / HEADER_FILE))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            has_files = any(self.folder.iterdir())
        except OSError as error:
            raise fail(error.strerror or str(error), SourceSpan(str(folder))) from None
        if not has_files:
            write_atomic(self.folder / HEADER_FILE, json.dumps(header, indent=1) + "\n")
        elif not (self.folder / HEADER_FILE).is_file():
            hint = "give a new folder with -o"
            raise fail(
                "the folder holds other files", SourceSpan(str(folder)), hint=hint, exit_code=2
            )
        elif _read_header(span).get("fingerprint") != fingerprint:
            hint = "give a new folder with -o, or the same options, model and irgraph as before"
            raise fail("the folder holds another sweep", span, hint=hint, exit_code=2)

    def pending_chunks(self) -> list[Chunk]:
        """Return the chunks without a file, or with an invalid file."""
        pending = []
        self.damaged: list[Path] = []
        for chunk in self.grid.chunks():
            path = self.path(chunk.number)
            if path.exists() and not self._read(chunk)[1]:
                continue
            if path.exists():
                self.damaged.append(path)
            pending.append(chunk)
        return pending

    def path(self, number: int) -> Path:
        """Return the file of a chunk."""
        return self.folder / f"part-{number:07d}.parquet"

    def write(self, chunk: Chunk, figures: ChunkFigures) -> None:
        """Write a chunk's file atomically."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = pa.BufferOutputStream()
        table = self.table(chunk, figures)
        digests = {POINTS: self._points(chunk), FIGURES: _table_digest(table)}
        pq.write_table(table.replace_schema_metadata(digests), buffer, compression="zstd")
        write_atomic(self.path(chunk.number), buffer.getvalue().to_pybytes())

    def table(self, chunk: Chunk, figures: ChunkFigures) -> pyarrow.Table:
        """Return a chunk's figures, one row for each combination of sizes and device."""
        import pyarrow as pa

        sizes, device_count = self.grid.sizes(chunk), len(self.grid.devices)
        rows = len(sizes) * device_count
        columns: dict[str, Any] = {
            name: np.repeat([dims[name] for dims in sizes], device_count) for name in self.grid.dims
        }
        device_indices = np.tile(np.arange(device_count, dtype=np.int32), len(sizes))
        columns["device"] = pa.DictionaryArray.from_arrays(device_indices, list(self.grid.devices))
        columns["host"] = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [chunk.host])
        columns["step_us"] = pa.array(figures.step.T.ravel(), from_pandas=True)
        columns["active_us"] = pa.array(figures.active.T.ravel(), from_pandas=True)
        reasons = [
            figures.refused.get(size_index)
            for size_index in range(len(sizes))
            for _ in range(device_count)
        ]
        columns["refused"] = pa.array(reasons, pa.string())
        return pa.table(columns)

    def tables(self) -> Iterator[pyarrow.Table]:
        """Yield the figures of all finished chunks, in order.

        Raises ``IrgraphError`` for a part that is damaged, changed, or of other points.
        """
        for chunk in self.grid.chunks():
            path = self.path(chunk.number)
            if not path.exists():
                continue
            table, reason = self._read(chunk)
            if reason:
                hint = "run the sweep again: it computes this part again"
                raise fail(reason, SourceSpan(str(path)), hint=hint)
            yield table

    def _read(self, chunk: Chunk) -> tuple[pyarrow.Table | None, str]:
        """Return the table of a chunk's file, or the reason for refusing it."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = self.path(chunk.number)
        try:
            # by its content: a path would add columns from the names of its folders
            table = pq.read_table(pa.BufferReader(path.read_bytes()))
            digest = _table_digest(table)
        except (OSError, ValueError, TypeError, KeyError, pa.ArrowException) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            return None, f"a damaged part of the sweep: {reason}"
        digests = table.schema.metadata or {}
        if digests.get(POINTS) != self._points(chunk):
            return None, "a part of other points, or of another sweep"
        if digests.get(FIGURES) != digest:
            return None, "a part that was changed: its hash does not match"
        return table, ""

    def _points(self, chunk: Chunk) -> bytes:
        """Return the hash of a chunk's points: of the sweep, and of its place in the grid."""
        place = [self.fingerprint, chunk.number, chunk.host, chunk.first, chunk.end]
        return hashlib.sha256(json.dumps(place).encode()).hexdigest().encode()

    def fastest(self, limit: int) -> tuple[list[dict[str, Any]], int]:
        """Return the variants with the shortest steps, and the number of refused variants."""
        best: list[tuple[float, int, dict[str, Any]]] = []
        refused = count = 0
        for table in self.tables():
            refused += table.column("step_us").null_count
            for row in table.sort_by("step_us").slice(0, limit).to_pylist():
                count += 1
                if row["step_us"] is not None:
                    best.append((row["step_us"], count, row))
            best = heapq.nsmallest(limit, best)
        return [{k: v for k, v in row.items() if k != "refused"} for _, _, row in best], refused


def _table_digest(table: pyarrow.Table) -> bytes:
    """Return the hash of a table's columns by their values, however the file encodes them."""
    digest = hashlib.sha256()
    for name in table.column_names:
        digest.update(json.dumps(name).encode())
        values = table.column(name).to_pylist()
        digest.update(json.dumps(values, allow_nan=True).encode())
    return digest.hexdigest().encode()


def _read_header(span: SourceSpan) -> dict[str, Any]:
    try:
        header = json.loads(read_text(span.source), object_pairs_hook=unique_keys)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise fail("not what a sweep wrote", span, hint="give a new folder with -o")
    return header
