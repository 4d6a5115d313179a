"""Host overheads of one workload alone, instead of those shared by all workloads."""

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

SHARED = "v100"
"""The table over all workloads."""

SAME = {"autograd.CudnnBatchNormBackward0": "autograd.NativeBatchNormBackward0"}
"""Nodes of the autograd graph that a capture names after what ran on its own device."""


def own_overheads(folder: Path, model: str, batch: str) -> HostTable:
    """Return the host table of one workload of the paper's Figures 7 and 8.

    Made like the shared one; what was published only over several workloads stays shared.
    """
    snapshots = _read(folder, SNAPSHOTS)
    names = BY_OP_2022, FIGURE_7, FIGURE_8
    by_op, figure_7, figure_8 = (_of(_read(folder, name), model, batch) for name in names)
    shared = load_host(SHARED).file
    ops = {name: entry for name, entry in shared.ops.items() if name.startswith(LIBRARY)}
    libraries = msgspec.structs.replace(shared, ops=ops)
    return host_table(hipc(snapshots, by_op, figure_7, figure_8, libraries))


def own_overheads_2022(folder: Path, model: str, batch: str) -> HostTable:
    """Return the host table of one workload of the tables of February 2022.

    Those have T1 of the workload and T2 of its operations; all else is shared. They were made by
    other means than Figures 7 and 8, which the shared table rests on, so each kind is scaled by
    the median ratio of figures to tables over what both have (T1: workloads; T2: operations).
    """
    rows, shared = _read(folder, BY_OP_2022), load_host(SHARED).file
    own = _of(rows, model, batch)
    (t1,) = (row for row in own if row["overhead_type"] == "T1")
    ratio = _t2_ratio(shared.ops, rows)
    ops = dict(shared.ops)
    for row in own:
        if row["overhead_type"] == "T2":
            ops.update({name: _with_t2(ops, name, _stat(row, ratio)) for name in _names(row)})
    figure = _stat(t1, _t1_ratio(_read(folder, FIGURE_7), rows))
    name = f"{SHARED}, {model} {batch}"
    return host_table(msgspec.structs.replace(shared, name=name, t1=figure, ops=ops))


def _t1_ratio(figure: Sequence[Row], rows: Sequence[Row]) -> float:
    older = {_workload(row): row for row in rows if row["overhead_type"] == "T1"}
    both = [(row, older[_workload(row)]) for row in figure if _workload(row) in older]
    return statistics.median(float(a["t1_mean_us"]) / float(b["mean_us"]) for a, b in both)


def _t2_ratio(shared: Mapping[str, OpEntry], rows: Sequence[Row]) -> float:
    """Return the factor by which the shared table scaled T2 of these tables, from its entries."""
    scaled = (entry.t2.source for entry in shared.values() if entry.t2 is not None)
    found = {s.rpartition("times ")[2] for s in scaled if s.startswith("2022-02, times ")}
    (ratio,) = found
    return float(ratio)


def _with_t2(ops: Mapping[str, OpEntry], name: str, t2: Stat) -> OpEntry:
    return msgspec.structs.replace(ops.get(name, OpEntry()), t2=t2)


def _names(row: Row) -> Iterable[str]:
    return (SAME.get(name, name) for name in current_names(row["op"]))


def _stat(row: Row, ratio: float) -> Stat:
    mean, std = (ratio * float(row[key]) for key in ("mean_us", "std_us"))
    return Stat(mean, std, int(row["sample_count"]), f"2022-02, times {ratio:.3f}")


def _workload(row: Row) -> tuple[str, str]:
    return row["model"], row["batch_size"]


def _of(rows: Sequence[Row], model: str, batch: str) -> list[Row]:
    return [row for row in rows if _workload(row) == (model, batch)]


def _read(folder: Path, name: str) -> list[Row]:
    with (folder / "paper" / name).open(newline="") as file:
        return list(csv.DictReader(file))
