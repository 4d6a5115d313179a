"""Measured kernels: the tables of a folder of measurements as columns, and their split."""

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


class Measurements(Struct, frozen=True):
    """Kernels measured one at a time, one row each.

    Attributes:
        name: of the family that they belong to.
        ops: names of ops.
        sizes: columns by name, and ``op``, the index in ``ops``.
        devices: names of devices.
        device: index in ``devices``.
        times: microseconds as measured, the host's launch included.
        dev: whether the row is held out of training.
        kernels: name of the kernel that ran, for what the name says about it.
        place: position in the run over a device, in order of the file, from 0 to 1.
        sha256: of the file they were read from.
        source: that file, below the folder of measurements; several are joined by `` + ``.
        apart: whether a whole group of shapes is held out that the row belongs to (its weights,
            its heads, ...); otherwise neighbours of it were trained on.
    """

    name: str
    ops: tuple[str, ...]
    sizes: dict[str, Floats]
    devices: tuple[str, ...]
    device: NDArray[np.intp]
    times: Floats
    dev: NDArray[np.bool_]
    kernels: NDArray[np.str_]
    place: Floats
    sha256: str = ""
    source: str = ""
    apart: NDArray[np.bool_] | None = None

    def where(self, keep: NDArray[np.bool_]) -> Measurements:
        """Return the rows for which ``keep`` holds."""
        sizes = {name: column[keep] for name, column in self.sizes.items()}
        rows = (
            self.device[keep],
            self.times[keep],
            self.dev[keep],
            self.kernels[keep],
            self.place[keep],
        )
        apart = None if self.apart is None else self.apart[keep]
        file = self.sha256, self.source
        return Measurements(self.name, self.ops, sizes, self.devices, *rows, *file, apart)

    def of(self, device: str) -> NDArray[np.bool_]:
        """Return which rows were measured on a device."""
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
    ``kernel``, the name of the kernel, where that was recorded.

    Raises ``IrgraphError`` where the file or a column is missing, or a value is bad.
    """
    path = folder / "kernels" / f"{name}.csv.gz"
    table, sha256 = read_table(path)
    rows = list(table)
    place = SourceSpan(str(path))
    wanted = {"op", "device", "latency_ms", "split", *sizes}
    missing = sorted(wanted - set(rows[0] if rows else ()))
    if missing:
        raise fail(f"measurements have no column {missing[0]!r}", place)
    devices = tuple(sorted({row["device"] for row in rows}))
    columns = {column: _numbers(rows, column, place) for column in sizes}
    unknown = sorted({row["op"] for row in rows} - set(ops))
    if unknown:
        raise fail(f"{name} has no op {unknown[0]!r}", place)
    columns["op"] = np.asarray([ops.index(row["op"]) for row in rows], np.float32)
    device = np.asarray([devices.index(row["device"]) for row in rows], np.intp)
    return Measurements(
        name,
        ops,
        columns,
        devices,
        device,
        _numbers(rows, "latency_ms", place) * np.float32(1e3),
        np.asarray([row["split"] == "dev" for row in rows]),
        np.asarray([row.get("kernel") or "" for row in rows]),
        _places(device),
        sha256,
        f"kernels/{name}.csv.gz",
    )


def read_table(path: Path) -> tuple[csv.DictReader[str], str]:
    """Return the rows of a packed table to be read once, and the file's SHA-256.

    Raises ``IrgraphError`` where the file cannot be read.
    """
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw).decode("utf-8")
    except (OSError, UnicodeDecodeError, EOFError) as error:
        raise fail(f"cannot read measurements {str(path)!r}: {error}", exit_code=2) from None
    return csv.DictReader(io.StringIO(text)), hashlib.sha256(raw).hexdigest()


def _places(device: NDArray[np.intp]) -> Floats:
    """Return the position of each row in the run over its device, from 0 to 1."""
    found = np.zeros(len(device), np.float32)
    for number in np.unique(device):
        rows = device == number
        found[rows] = np.linspace(0, 1, rows.sum())
    return found


def _numbers(rows: list[dict[str, str]], name: str, place: SourceSpan) -> Floats:
    try:
        return np.asarray([float(row[name]) for row in rows], np.float32)
    except ValueError as error:
        raise fail(f"column {name!r}: {error}", place) from None
