"""Measured kernels: the tables of a measurements folder as columns, with their split."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
from pathlib import Path

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learnable.hardware import Floats
from irgraph.diagnostics import SourceSpan, fail
from irgraph.files import read_input


class Measurements(Struct, frozen=True):
    """Individually measured kernels, one row each.

    Attributes:
        name: name of their family.
        ops: names of ops.
        sizes: columns by name, and ``op``, the index in ``ops``.
        devices: names of devices.
        device: index in ``devices``.
        times: measured microseconds, including the host's launch.
        dev: whether the row is held out of training.
        kernels: name of the kernel that ran; it contains the tile shape.
        position: position in the run over a device, in order of the file, from 0 to 1.
        sha256: digest of the source file.
        source: the file, below the folder of measurements; several are joined by `` + ``.
        group_held_out: whether the row's whole group of shapes is held out (its weights, its
            heads, ...); otherwise training includes its neighbours.
    """

    name: str
    ops: tuple[str, ...]
    sizes: dict[str, Floats]
    devices: tuple[str, ...]
    device: NDArray[np.intp]
    times: Floats
    dev: NDArray[np.bool_]
    kernels: NDArray[np.str_]
    position: Floats
    sha256: str = ""
    source: str = ""
    group_held_out: NDArray[np.bool_] | None = None

    def select(self, mask: NDArray[np.bool_]) -> Measurements:
        """Return the rows of a mask."""
        sizes = {name: column[mask] for name, column in self.sizes.items()}
        rows = (
            self.device[mask],
            self.times[mask],
            self.dev[mask],
            self.kernels[mask],
            self.position[mask],
        )
        group_held_out = None if self.group_held_out is None else self.group_held_out[mask]
        file = self.sha256, self.source
        return Measurements(self.name, self.ops, sizes, self.devices, *rows, *file, group_held_out)

    def rows_of(self, device: str) -> NDArray[np.bool_]:
        """Return the mask of the rows that were measured on a device."""
        return np.asarray(self.device == self.devices.index(device))

    @property
    def op(self) -> NDArray[np.intp]:
        """Index of the op in ``ops`` by row."""
        return self.sizes["op"].astype(np.intp)

    def shapes(self) -> NDArray[np.float32]:
        """Return the sizes without the op as one array, (rows, sizes)."""
        return np.stack([column for name, column in self.sizes.items() if name != "op"], 1)


def read_measurements(
    folder: Path, name: str, ops: tuple[str, ...], sizes: tuple[str, ...]
) -> Measurements:
    """Read ``kernels/NAME.csv.gz`` of a folder of measurements.

    Columns: ``op``, ``device``, the sizes, ``latency_ms``, ``split`` (``train`` or ``dev``), and
    ``kernel``, the name of the kernel, if it was recorded.

    Raises ``IrgraphError`` if the file or a column is missing, or a value is invalid.
    """
    path = folder / "kernels" / f"{name}.csv.gz"
    table, sha256 = read_table(path)
    rows = list(table)
    span = SourceSpan(str(path))
    required = {"op", "device", "latency_ms", "split", *sizes}
    missing = sorted(required - set(rows[0] if rows else ()))
    if missing:
        raise fail(f"measurements have no column {missing[0]!r}", span)
    devices = tuple(sorted({row["device"] for row in rows}))
    columns = {column: _numbers(rows, column, span) for column in sizes}
    unknown = sorted({row["op"] for row in rows} - set(ops))
    if unknown:
        raise fail(f"{name} has no op {unknown[0]!r}", span)
    columns["op"] = np.asarray([ops.index(row["op"]) for row in rows], np.float32)
    device = np.asarray([devices.index(row["device"]) for row in rows], np.intp)
    return Measurements(
        name,
        ops,
        columns,
        devices,
        device,
        _numbers(rows, "latency_ms", span) * np.float32(1e3),
        np.asarray([row["split"] == "dev" for row in rows]),
        np.asarray([row.get("kernel") or "" for row in rows]),
        _run_positions(device),
        sha256,
        f"kernels/{name}.csv.gz",
    )


def read_table(path: Path) -> tuple[csv.DictReader[str], str]:
    """Return a one-time reader of a packed table's rows, and the file's SHA-256.

    Raises ``IrgraphError`` if the file cannot be read.
    """
    try:
        raw = read_input(path)
        text = gzip.decompress(raw).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise fail(f"cannot read measurements {str(path)!r}: {error}", exit_code=2) from None
    return csv.DictReader(io.StringIO(text)), hashlib.sha256(raw).hexdigest()


def _run_positions(device: NDArray[np.intp]) -> Floats:
    """Return the position of each row in the run over its device, from 0 to 1."""
    positions = np.zeros(len(device), np.float32)
    for number in np.unique(device):
        rows = device == number
        positions[rows] = np.linspace(0, 1, rows.sum())
    return positions


def _numbers(rows: list[dict[str, str]], name: str, span: SourceSpan) -> Floats:
    try:
        return np.asarray([float(row[name]) for row in rows], np.float32)
    except ValueError as error:
        raise fail(f"column {name!r}: {error}", span) from None
