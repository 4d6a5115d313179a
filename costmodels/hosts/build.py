"""Builds the shipped host tables from published measurements.

``python -m costmodels.hosts.build DATA_DIR`` reads ``DATA_DIR/paper/overheads_*.csv`` (read off the
notebooks and figures of owensgroup/ml_perf_model, BSD-3) and writes ``costmodels/hosts/*.json``.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from costmodels.hosts.from_traces import library_calls
from costmodels.hosts.writing import write
from irgraph.overheads.format import FORMAT, HostFile, OpEntry, Stat, pooled
from irgraph.overheads.names import LAUNCHES, current_names

CPU_EVENT = 2.0
"""Microseconds that the profiler spends on each host event (section III-C of the paper)."""

GPU_EVENT = 4.0
"""Microseconds that the profiler spends on each launch for its device event (section III-C)."""

SNAPSHOTS = "overheads_t1_t5_dlrm_default_bs2048_2021-05.csv"
BY_OP_2022 = "overheads_t1_t2_by_op_model_batch_2022-02.csv"
FIGURE_7 = "overheads_t1_v100_hipc2022_fig7_digitized.csv"
FIGURE_8 = "overheads_t2_t3_t5_v100_hipc2022_fig8_digitized.csv"

ORIGIN = "owensgroup/ml_perf_model"
LICENCE = "BSD-3-Clause"
COMMAND = "python -m costmodels.hosts.build DATA_DIR"

MODELS = ("DLRM_default", "DLRM_MLPerf", "DLRM_DDP")
BATCHES = ("512", "1024", "2048", "4096")
"""The workloads of Figures 7 and 8."""

HOST_BOUND = ("512", "1024")
"""Batches at which the host bounds the workloads of Figures 7 and 8: the device is busy for at most
0.70 of the step (Figure 1 of the paper; at 2048 and 4096 for 0.61 to 0.9). At larger batches the
time between two launches includes waiting: T5 of ``AddmmBackward0`` is 25 to 27 us at these, and 38
in DLRM_default and DLRM_MLPerf at the larger ones (28 to 29 in DLRM_DDP, the least busy one)."""

ARCHITECTURE = "volta"
"""Architecture of the V100 that all these hosts drove."""

DATES = ("2021-05-04", "2021-05-14")

Rows = Sequence[Mapping[str, str]]
Times = dict[tuple[str, str], Stat]
"""Statistics by kind (``t2``, ``t3``, ``t5``, ``whole``) and current name of the operation."""


def snapshot(rows: Rows, date: str) -> HostFile:
    """Return one of the two tables of May 2021 as profiled, without any correction.

    Microseconds of DLRM_default at batch 2048 on a V100's host. The T3 of ``aten.to`` of the
    earlier date includes waiting for the device; the T3 of the later date does not.
    """
    rows = [row for row in rows if row["snapshot"] == date]
    t1 = next(_stat(row, "mean_us", "") for row in rows if row["kind"] == "T1")
    return HostFile(
        FORMAT,
        f"v100-{date}",
        t1,
        {kind: pooled(stats) for kind, stats in _launch_stats(rows).items()},
        _entries(_snapshot_times(rows), _launch_lists(rows)),
        None,
        f"DLRM_default at batch 2048 as profiled on {date}, the profiler's cost included",
        f"{ORIGIN}, overheads of {date}",
        LICENCE,
        COMMAND,
        ARCHITECTURE,
        profiled=True,
    )


def hipc(
    snapshots: Rows, by_op: Rows, figure_7: Rows, figure_8: Rows, libraries: HostFile
) -> HostFile:
    """Return a table of V100 hosts from all rows given of the paper's Figures 7 and 8.

    The figures are of the same date and machine as the paper's step times, exclude the profiler's
    cost, and list the ten most expensive operations for each type. Other operations come from older
    tables: T2 from February 2022, the rest from May 2021. These tables are slower, so their times
    are scaled by the median ratio of the figure's time to the older one's over the operations that
    both list. Ops of ``libraries`` were timed on another host, less the profiler's cost. Each
    statistic names its source.
    """
    later = [row for row in snapshots if row["snapshot"] == DATES[-1]]
    older = _snapshot_times(later)
    figure = _figure_times(figure_8, {name for kind, name in older if kind == "whole"})
    times = _fill_from_older(figure, _t2_times(by_op), "2022-02")
    times = _fill_from_older(times, older, DATES[-1], basis=figure)
    source = f"Fig. 7, {len(figure_7)} workloads"
    t1 = pooled([_stat(row, "t1_mean_us", "Fig. 7") for row in figure_7], source)
    return HostFile(
        FORMAT,
        "v100",
        msgspec.structs.replace(t1, count=len(figure_7)),
        driver_times(snapshots),
        _entries(times, _launch_lists(later)) | libraries.ops,
        libraries.within,
        "Host of a Tesla V100, means over DLRM_default, DLRM_MLPerf and DLRM_DDP at 512 and 1024",
        f"{ORIGIN}: HiPC 2022 Fig. 7 and 8 (digitised), completed from overheads of 2022-02 and "
        f"{DATES[-1]}; FBGEMM's ops, and launches within a call: {libraries.source} (MIT)",
        LICENCE,
        COMMAND,
        ARCHITECTURE,
    )


def _adapted_to_launch(libraries: HostFile, t4: Mapping[str, Stat]) -> HostFile:
    """Return the times of libraries' ops on a host whose launches take ``t4``; sums are unchanged.

    The profiler's cost of a launch is known less well than its cost of an op, so the T4 of two
    hosts differ by it; the difference is subtracted from T2 and T5.
    """
    launch_difference = t4["kernel"].mean - libraries.t4["kernel"].mean
    note = "TorchRec on V100-SXM2-32GB, less what profiling takes"

    def reduce(stat: Stat | None, reduction: float = 0.0) -> Stat | None:
        return stat and Stat(max(stat.mean - reduction, 0.0), stat.std, stat.count, note)

    ops = {
        name: OpEntry(
            reduce(e.t2, launch_difference),
            reduce(e.t3),
            reduce(e.t5, launch_difference),
            reduce(e.whole),
            e.launches,
        )
        for name, e in libraries.ops.items()
    }
    return msgspec.structs.replace(
        libraries, ops=ops, within=reduce(libraries.within, launch_difference)
    )


def driver_times(snapshots: Rows) -> dict[str, Stat]:
    """Return T4 by kind of launch: as profiled in May 2021, less the profiler's cost of a launch.

    The paper's text states 10 us for any runtime call, about the time of the profiled calls (10.4
    and 10.9 us for ``cudaLaunchKernel``; 16.7 and 17.1 us for ``cudaMemcpyAsync``). Its program
    subtracts ``CPU_EVENT`` and ``GPU_EVENT`` from that 10, as the paper does from all overheads. A
    step that is not profiled does not pay these, so they are subtracted from the measured values
    here. (Two other V100 hosts take 5.5 and 9.6 us for a profiled ``cudaLaunchKernel``.)
    """
    profiler_cost = CPU_EVENT + GPU_EVENT
    source = f"profiled 2021-05, less {profiler_cost:g} us that profiling takes"
    times = {}
    for kind, stats in _launch_stats(snapshots).items():
        raw = pooled(stats, source)
        times[kind] = msgspec.structs.replace(raw, mean=raw.mean - profiler_cost)
    return times


def _snapshot_times(rows: Rows) -> Times:
    """Return the times of one snapshot. The meaning of T5 depends on the number of launches.

    Without launches it is the whole operation; with two or more, the time between two. With one
    launch the profiling code wrote zeros, which are ignored.
    """
    launches = _launch_lists(rows)
    times: Times = {}
    for row, name in _rows_with_op(rows, "op_or_runtime_function"):
        kind = row["kind"].lower()
        if kind == "t5" and name not in launches:
            kind = "whole"
        if kind in ("t2", "t3", "whole") or (kind == "t5" and len(launches[name]) > 1):
            times[kind, name] = _stat(row, "mean_us", row["snapshot"])
    return times


def _figure_times(rows: Rows, whole_ops: set[str]) -> Times:
    """Return the times of Figure 8 over all workloads; T5 of ``whole_ops`` is the whole op."""
    groups: dict[tuple[str, str], list[Stat]] = {}
    for row, name in _rows_with_op(rows, "op"):
        kind = row["overhead_type"].lower()
        key = ("whole" if kind == "t5" and name in whole_ops else kind, name)
        if row["model"] in MODELS:
            groups.setdefault(key, []).append(_stat(row, "mean_us", ""))
    return {key: _workload_mean(stats, "Fig. 8") for key, stats in groups.items()}


def _t2_times(rows: Rows) -> Times:
    """Return T2 of the tables of February 2022, over the workloads of the figures."""
    groups: dict[tuple[str, str], list[Stat]] = {}
    for row, name in _rows_with_op(rows, "op"):
        if row["model"] in MODELS and row["overhead_type"] == "T2":
            groups.setdefault(("t2", name), []).append(_stat(row, "mean_us", ""))
    return {key: pooled(stats, "2022-02") for key, stats in groups.items()}


def _fill_from_older(times: Times, older: Times, source: str, basis: Times | None = None) -> Times:
    """Return times with those only in ``older`` scaled to ``basis`` (default: ``times``)."""
    basis = basis or times
    result = dict(times)
    for kind in ("t2", "t3", "t5", "whole"):
        common = [key for key in basis if key[0] == kind and key in older]
        if not common:
            continue
        ratio = statistics.median(basis[key].mean / older[key].mean for key in common)
        note = f"{source}, times {ratio:.3f}"
        for key, stat in older.items():
            if key[0] == kind and key not in result:
                result[key] = Stat(stat.mean * ratio, stat.std * ratio, stat.count, note)
    return result


def _workload_mean(stats: Sequence[Stat], source: str) -> Stat:
    combined = pooled(stats)
    return Stat(combined.mean, combined.std, 0, f"{source}, {len(stats)} workloads")


def _entries(times: Times, launches: Mapping[str, tuple[str, ...]]) -> dict[str, OpEntry]:
    fields: dict[str, dict[str, Stat]] = {}
    for (kind, name), stat in times.items():
        fields.setdefault(name, {})[kind] = stat
    return {
        name: OpEntry(
            t2=stats.get("t2"),
            t3=stats.get("t3"),
            t5=stats.get("t5"),
            whole=stats.get("whole"),
            launches=launches.get(name, ()),
        )
        for name, stats in sorted(fields.items())
    }


def _launch_lists(rows: Rows) -> dict[str, tuple[str, ...]]:
    """Return the kinds of launch by operation; waiting for the device is not a launch."""
    lists = {}
    for row, name in _rows_with_op(rows, "op_or_runtime_function"):
        if row["kind"] == "LAUNCHES":
            functions = row["launch_sequence"].split("|")
            lists[name] = tuple(LAUNCHES[f] for f in functions if f in LAUNCHES)
    return lists


def _launch_stats(rows: Rows) -> dict[str, list[Stat]]:
    stats: dict[str, list[Stat]] = {}
    for row in rows:
        function = row["op_or_runtime_function"]
        if row["kind"] == "T4" and function in LAUNCHES:
            stats.setdefault(LAUNCHES[function], []).append(_stat(row, "mean_us", row["snapshot"]))
    return stats


def _rows_with_op(rows: Rows, column: str) -> Iterator[tuple[Mapping[str, str], str]]:
    for row in rows:
        for name in current_names(row[column]):
            yield row, name


def _stat(row: Mapping[str, str], mean: str, source: str) -> Stat:
    std = row.get(mean.replace("mean", "std")) or "0"
    return Stat(float(row[mean]), float(std), int(row.get("sample_count") or 0), source)


def tables(folder: Path) -> Iterable[HostFile]:
    """Yield every table that ships, from the published measurements in ``folder``."""
    snapshots, by_op, figure_7, figure_8 = (
        _read(folder / "paper" / name) for name in (SNAPSHOTS, BY_OP_2022, FIGURE_7, FIGURE_8)
    )
    libraries = _adapted_to_launch(library_calls(folder), driver_times(snapshots))
    by_op, figure_7, figure_8 = map(host_bound, (by_op, figure_7, figure_8))
    yield hipc(snapshots, by_op, figure_7, figure_8, libraries)
    for date in DATES:
        yield snapshot(snapshots, date)


def host_bound(rows: Rows) -> Rows:
    """Return the rows of host-bound workloads, and all rows of ops that none of these has."""
    rows = [row for row in rows if row["model"] in MODELS]
    host_bound_rows = [row for row in rows if row["batch_size"] in HOST_BOUND]
    covered = {_type_and_op(row) for row in host_bound_rows}
    other_rows = (
        row for row in rows if row["batch_size"] in BATCHES and _type_and_op(row) not in covered
    )
    return [*host_bound_rows, *other_rows]


def _type_and_op(row: Mapping[str, str]) -> tuple[str | None, str | None]:
    return row.get("overhead_type"), row.get("op")


def _read(path: Path) -> Rows:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    write(tables(Path(sys.argv[1])))
