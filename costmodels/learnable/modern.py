"""Tables of kernels on today's cards, below ``modern/`` of the folder of measurements.

Collected from NVIDIA's aiconfigurator (Apache-2.0), Microsoft's Vidur (MIT), XLA and Baidu's
DeepBench (Apache-2.0). Each table was measured in a way of its own, and they differ by more than
their noise: ops of a family stand for a way of measuring, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from msgspec import Struct

from costmodels.learnable.campaign import Reader
from costmodels.learnable.measurements import Measurements, read_table
from irgraph.diagnostics import SourceSpan, fail

BOARDS = {
    "A100-80GB": "A100-SXM4-80GB",
    "H100-80GB": "H100-80GB-HBM3",
    "H100 (sm_90)": "H100-80GB-HBM3",
    "V100-SXM2 (DGX-1)": "V100-SXM2-16GB",
    "RTX-PRO-6000": "RTX-PRO-6000-Blackwell-Server-Edition",
}
"""Sheets of cards that the tables call otherwise."""

VARIANTS = {
    "A100-SXM4-40GB": "A100-SXM4-80GB",
    "GH200-480GB": "H100-80GB-HBM3",
    "V100-SXM2-32GB": "V100-SXM2-16GB",
}
"""Cards with the chip and the power of a measured one."""

UNITS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""Targets with matrix units that models may be asked about without having seen the card."""

GROUPS = (
    ("A100-SXM4-80GB",),
    ("H100-80GB-HBM3", "H200"),
    ("B200", "GB200", "B300", "GB300"),
)
"""Near copies of each other: left out together to see what another card would get."""

Row: TypeAlias = Mapping[str, str]


class Table(Struct, frozen=True):
    """One table: its name, and what a row's op and sizes are; rows without an op are left out."""

    name: str
    op: Callable[[Row], str]
    sizes: Callable[[Row], Sequence[str | float]]


def reader(*tables: Table) -> Reader:
    """Return what joins tables as the measurements of one family."""

    def read(folder: Path, name: str, ops: tuple[str, ...], sizes: tuple[str, ...]) -> Measurements:
        found, digests = [], []
        for table in tables:
            path = folder / "modern" / f"{table.name}.csv.gz"
            rows, digest = read_table(path)
            digests.append(digest)
            found += _rows(rows, path, table, ops)
        return _joined(found, name, ops, sizes, digests, [table.name for table in tables])

    return read


_Found: TypeAlias = tuple[int, str, Sequence[float], float, bool, bool]


def _rows(rows: Iterable[Row], path: Path, table: Table, ops: tuple[str, ...]) -> list[_Found]:
    try:
        chosen = ((table.op(row), row) for row in rows)
        return [_found(table, ops, op, row) for op, row in chosen if op in ops]
    except (KeyError, ValueError) as error:
        raise fail(f"measurements lack or spoil a column: {error}", SourceSpan(str(path))) from None


def _found(table: Table, ops: tuple[str, ...], op: str, row: Row) -> _Found:
    card = BOARDS.get(row["device"], row["device"])
    sizes = [float(size) for size in table.sizes(row)]
    held = row["split"] != "train", row.get("held") == "group"
    return ops.index(op), card, sizes, float(row["time_us"]), *held


def _joined(
    found: Sequence[_Found],
    name: str,
    ops: tuple[str, ...],
    sizes: tuple[str, ...],
    digests: Sequence[str],
    tables: Sequence[str],
) -> Measurements:
    op, card, values, times, dev, apart = zip(*found, strict=True)
    columns = dict(zip(sizes, np.asarray(values, np.float32).T, strict=True))
    devices = tuple(sorted(set(card)))
    places = {device: place for place, device in enumerate(devices)}
    count = len(found)
    return Measurements(
        name,
        ops,
        {**columns, "op": np.asarray(op, np.float32)},
        devices,
        np.asarray([places[device] for device in card], np.intp),
        np.asarray(times, np.float32),
        np.asarray(dev),
        np.full(count, ""),
        np.zeros(count, np.float32),
        hashlib.sha256("".join(digests).encode()).hexdigest() if len(digests) > 1 else digests[0],
        " + ".join(f"modern/{table}.csv.gz" for table in tables),
        np.asarray(apart),
    )
