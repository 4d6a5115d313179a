"""Algorithm 1 with measured kernels beside a measured step: a check that needs no cost model.

Ten profiled iterations of DLRM_default, batch 2048, on a V100 (2021-05-04): every kernel with its
time, the sequence of operations, and the time of an iteration, the profiler's cost included. The
host's table is of the same program, as profiled ten days later.
"""

from __future__ import annotations

import csv
import gzip
import statistics
from collections.abc import Mapping
from pathlib import Path

import pytest

from irgraph.ir.cost import Kernel, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.overheads import load_host
from irgraph.overheads.names import current_names
from irgraph.schedule.accounting import BLOCKING, CODE_2022, PAPER, Accounting
from irgraph.schedule.algorithm1 import algorithm1

DATE = "2021-05-04"

HOST_ONLY = {25, 28}
"""Copies in the sequence that move nothing to the device: conversions of index lists."""


def traced(row: Mapping[str, str]) -> list[Kernel]:
    count = int(row["kernel_count"])
    name = row["kernel"]
    copy = "HtoD" in name or "DtoH" in name
    launch = "memcpy" if "Memcpy" in name else "memset" if "Memset" in name else "kernel"
    time = float(row["kernel_time_us"]) / count
    return [Kernel(name, name, time, by="measured", launch=launch, blocking=copy)] * count


def steps(folder: Path) -> list[Priced]:
    """Return the ten iterations with their traced kernels."""
    with (folder / "algorithm1_cpu_time_golden_2021-05-04.csv").open() as file:
        sequence = [row["op"] for row in csv.DictReader(file)]
    with gzip.open(folder / "kernel_trace_v100_dlrm_bs2048_2021.csv.gz", "rt") as file:
        rows = [row for row in csv.DictReader(file) if row["trace_date"] == DATE]
    return [step(sequence, [r for r in rows if r["iteration"] == str(i)]) for i in range(10)]


def step(sequence: list[str], rows: list[Mapping[str, str]]) -> Priced:
    calls: dict[str, tuple[str, list[Kernel]]] = {}
    for row in rows:
        calls.setdefault(row["op_index_in_iteration"], (row["op"], []))[1].extend(traced(row))
    waiting = list(calls.values())
    # with an operand, the optimizer's labels count as operations, as the table has them
    operand = Tensor("x", "f32", (1,), "b")
    ops = [Op(current_names(name)[0], operands=(operand,)) for name in sequence]
    kernels: dict[int, tuple[Kernel, ...]] = {}
    for position, (op, name) in enumerate(zip(ops, sequence, strict=True)):
        launches = waiting and waiting[0][0] == name and position not in HOST_ONLY
        kernels[op] = tuple(waiting.pop(0)[1]) if launches else ()
    assert not waiting
    return Priced(Graph("traced", ops=tuple(ops)), "v100", kernels)


def mean_error(folder: Path, rules: Accounting) -> float:
    host = load_host("v100-2021-05-14")
    found = [algorithm1(s, host, accounting=rules).step_time for s in steps(folder)]
    with (folder / "trace_summaries_v100_dlrm_bs2048_2021.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["trace_date"] == DATE]
    return statistics.fmean(found) / float(rows[0]["profiled_iter_time_us"]) - 1.0


@pytest.mark.data
def test_waiting_for_copies_explains_most_of_what_algorithm_1_misses(data_dir: Path) -> None:
    folder = data_dir / "paper"
    ours, paper, code = (mean_error(folder, rules) for rules in (BLOCKING, PAPER, CODE_2022))
    # what is left is the long tail of T1, which the published table cuts off
    assert -0.06 < ours < 0.0
    assert paper < -0.16
    assert code < -0.16
