"""Host overheads of one workload alone, instead of the overheads shared by all workloads."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from costmodels.hosts.build import BY_OP_2022, FIGURE_7, FIGURE_8, SNAPSHOTS, hipc
from costmodels.hosts.from_traces import LIBRARY
from irgraph.overheads import HostTable, load_host
from irgraph.overheads.format import OpEntry, Stat
from irgraph.overheads.names import current_names
from irgraph.overheads.table import host_table

Row = Mapping[str, str]

SHARED_TABLE = "v100"
"""Name of the host table over all workloads."""

EQUIVALENT_NODES = {"autograd.CudnnBatchNormBackward0": "autograd.NativeBatchNormBackward0"}
"""Autograd node in a capture, by the node that ran on the measured device."""


def own_overheads(folder: Path, model: str, batch: str) -> HostTable:
    """Return the host table of one workload of the paper's Figures 7 and 8.

    It is built like the shared table; overheads published only over several workloads are shared.
    """
    snapshots = _read(folder, SNAPSHOTS)
    names = BY_OP_2022, FIGURE_7, FIGURE_8
    by_op, figure_7, figure_8 = (
        _rows_of_workload(_read(folder, name), model, batch) for name in names
    )
    shared_table = load_host(SHARED_TABLE).file
    ops = {name: entry for name, entry in shared_table.ops.items() if name.startswith(LIBRARY)}
    libraries = msgspec.structs.replace(shared_table, ops=ops)
    return host_table(hipc(snapshots, by_op, figure_7, figure_8, libraries))


def own_overheads_2022(folder: Path, model: str, batch: str) -> HostTable:
    """Return the host table of one workload of the tables of February 2022.

    These have T1 of the workload and T2 of its operations; everything else is shared. They were
    obtained differently from Figures 7 and 8, the source of the shared table, so each kind is
    scaled by the median ratio of figures to tables over their common workloads (T1) or operations
    (T2).
    """
    rows, shared_table = _read(folder, BY_OP_2022), load_host(SHARED_TABLE).file
    own_rows = _rows_of_workload(rows, model, batch)
    (t1,) = (row for row in own_rows if row["overhead_type"] == "T1")
    ratio = _t2_ratio(shared_table.ops, rows)
    ops = dict(shared_table.ops)
    for row in own_rows:
        if row["overhead_type"] == "T2":
            ops.update({name: _with_t2(ops, name, _stat(row, ratio)) for name in _names(row)})
    figure = _stat(t1, _t1_ratio(_read(folder, FIGURE_7), rows))
    name = f"{SHARED_TABLE}, {model} {batch}"
    return host_table(msgspec.structs.replace(shared_table, name=name, t1=figure, ops=ops))


def _t1_ratio(figure: Sequence[Row], rows: Sequence[Row]) -> float:
    older = {_workload(row): row for row in rows if row["overhead_type"] == "T1"}
    pairs = [(row, older[_workload(row)]) for row in figure if _workload(row) in older]
    return statistics.median(float(a["t1_mean_us"]) / float(b["mean_us"]) for a, b in pairs)


def _t2_ratio(ops: Mapping[str, OpEntry], rows: Sequence[Row]) -> float:
    """Return the factor by which the shared table scaled T2 of these tables, from its entries."""
    sources = (entry.t2.source for entry in ops.values() if entry.t2 is not None)
    ratios = {s.rpartition("times ")[2] for s in sources if s.startswith("2022-02, times ")}
    (ratio,) = ratios
    return float(ratio)


def _with_t2(ops: Mapping[str, OpEntry], name: str, t2: Stat) -> OpEntry:
    return msgspec.structs.replace(ops.get(name, OpEntry()), t2=t2)


def _names(row: Row) -> Iterable[str]:
    return (EQUIVALENT_NODES.get(name, name) for name in current_names(row["op"]))


def _stat(row: Row, ratio: float) -> Stat:
    mean, std = (ratio * float(row[key]) for key in ("mean_us", "std_us"))
    return Stat(mean, std, int(row["sample_count"]), f"2022-02, times {ratio:.3f}")


def _workload(row: Row) -> tuple[str, str]:
    return row["model"], row["batch_size"]


def _rows_of_workload(rows: Sequence[Row], model: str, batch: str) -> list[Row]:
    return [row for row in rows if _workload(row) == (model, batch)]


def _read(folder: Path, name: str) -> list[Row]:
    with (folder / "paper" / name).open(newline="") as file:
        return list(csv.DictReader(file))
