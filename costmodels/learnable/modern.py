"""Tables of kernels on today's cards, below ``modern/`` of the folder of measurements.

Collected from NVIDIA's aiconfigurator (Apache-2.0), Microsoft's Vidur (MIT), XLA and Baidu's
DeepBench (Apache-2.0). Each table was measured by a different method, and they differ by more than
their noise: the ops of a family distinguish the methods, too.
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
"""Device sheets by a card's name in the tables, if that differs."""

VARIANTS = {
    "A100-SXM4-40GB": "A100-SXM4-80GB",
    "GH200-480GB": "H100-80GB-HBM3",
    "V100-SXM2-32GB": "V100-SXM2-16GB",
}
"""Measured cards by the names of other cards with the same chip and power limit."""

UNITS = ("sm_70", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120")
"""Targets with matrix units that models cover even for unseen cards."""

GROUPS = (
    ("A100-SXM4-80GB",),
    ("H100-80GB-HBM3", "H200"),
    ("B200", "GB200", "B300", "GB300"),
)
"""Groups of similar cards, held out together to estimate the error on an unseen card."""

Row: TypeAlias = Mapping[str, str]


class KernelTable(Struct, frozen=True):
    """Name of a table, with functions from a row to its op and sizes; ``""`` omits the row."""

    name: str
    op: Callable[[Row], str]
    sizes: Callable[[Row], Sequence[str | float]]


def reader(*tables: KernelTable) -> Reader:
    """Return a reader that joins tables as the measurements of one family."""

    def read(folder: Path, name: str, ops: tuple[str, ...], sizes: tuple[str, ...]) -> Measurements:
        records, digests = [], []
        for table in tables:
            path = folder / "modern" / f"{table.name}.csv.gz"
            rows, digest = read_table(path)
            digests.append(digest)
            records += _table_records(rows, path, table, ops)
        return _join_records(records, name, ops, sizes, digests, [table.name for table in tables])

    return read


_Record: TypeAlias = tuple[int, str, Sequence[float], float, bool, bool]


def _table_records(
    rows: Iterable[Row], path: Path, table: KernelTable, ops: tuple[str, ...]
) -> list[_Record]:
    try:
        ops_and_rows = ((table.op(row), row) for row in rows)
        return [_record(table, ops, op, row) for op, row in ops_and_rows if op in ops]
    except (KeyError, ValueError) as error:
        raise fail(f"measurements lack or spoil a column: {error}", SourceSpan(str(path))) from None


def _record(table: KernelTable, ops: tuple[str, ...], op: str, row: Row) -> _Record:
    card = BOARDS.get(row["device"], row["device"])
    sizes = [float(size) for size in table.sizes(row)]
    split_flags = row["split"] != "train", row.get("held") == "group"
    return ops.index(op), card, sizes, float(row["time_us"]), *split_flags


def _join_records(
    records: Sequence[_Record],
    name: str,
    ops: tuple[str, ...],
    sizes: tuple[str, ...],
    digests: Sequence[str],
    tables: Sequence[str],
) -> Measurements:
    op, card, values, times, dev, group_held_out = zip(*records, strict=True)
    columns = dict(zip(sizes, np.asarray(values, np.float32).T, strict=True))
    devices = tuple(sorted(set(card)))
    index_by_device = {device: index for index, device in enumerate(devices)}
    count = len(records)
    return Measurements(
        name,
        ops,
        {**columns, "op": np.asarray(op, np.float32)},
        devices,
        np.asarray([index_by_device[device] for device in card], np.intp),
        np.asarray(times, np.float32),
        np.asarray(dev),
        np.full(count, ""),
        np.zeros(count, np.float32),
        hashlib.sha256("".join(digests).encode()).hexdigest() if len(digests) > 1 else digests[0],
        " + ".join(f"modern/{table}.csv.gz" for table in tables),
        np.asarray(group_held_out),
    )
