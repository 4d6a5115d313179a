"""The folder of a sweep: a header that identifies it, and a Parquet file per finished chunk."""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import read_text, write_atomic
from irgraph.sweep.grid import Chunk, Grid
from irgraph.sweep.price import ChunkFigures

if TYPE_CHECKING:
    import pyarrow

HEADER_FILE = "_sweep.json"
"""Name of the file that identifies the sweep; readers of Parquet skip names with ``_``."""

FORMAT = 1


class Results:
    """Folder of a sweep's results.

    Attributes:
        folder: its path.
        grid: the variants.
    """

    def __init__(self, folder: str | Path, grid: Grid, fingerprint: str) -> None:
        """Create the folder, or continue in an existing one of the same sweep.

        Raises ``IrgraphError`` if the folder contains another sweep or other files, or cannot be
        written.
        """
        self.folder = Path(folder)
        self.grid = grid
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
        """Return the chunks without a file."""
        return [chunk for chunk in self.grid.chunks() if not self.path(chunk.number).exists()]

    def path(self, number: int) -> Path:
        """Return the file of a chunk."""
        return self.folder / f"part-{number:07d}.parquet"

    def write(self, chunk: Chunk, figures: ChunkFigures) -> None:
        """Write a chunk's file atomically."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        buffer = pa.BufferOutputStream()
        pq.write_table(self.table(chunk, figures), buffer, compression="zstd")
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
        """Yield the figures of all finished chunks, in order."""
        import pyarrow.parquet as pq

        for chunk in self.grid.chunks():
            if self.path(chunk.number).exists():
                yield pq.read_table(self.path(chunk.number))

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


def _read_header(span: SourceSpan) -> dict[str, Any]:
    try:
        header = json.loads(read_text(span.source))
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict):
        raise fail("not what a sweep wrote", span, hint="give a new folder with -o")
    return header
