"""Predicted and measured kernel times of the traced V100 steps of DLRM at batch 2048."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from costmodels.devices.library import PAPER, load_device
from costmodels.evaluate.dlrm_2021 import REFERENCES, reference_ops
from costmodels.formulas.machine import Predictor
from costmodels.pricing.price import price
from irgraph.diagnostics import fail
from irgraph.ir.graph import Graph

TRACE = "paper/kernel_trace_v100_dlrm_bs2048_2021.csv.gz"
"""File of every kernel of ten iterations of four steps (owensgroup/ml_perf_model, BSD-3)."""

GROUPS = {
    "aten::linear": "linear", "AddmmBackward": "linear backward", "aten::bmm": "bmm",
    "BmmBackward0": "bmm backward", "LookupFunction": "embedding",
    "LookupFunctionBackward": "embedding backward", "aten::to": "copy", "aten::cat": "concat",
    "aten::index": "index", "IndexBackward": "index backward", "SliceBackward": "slice backward",
    "aten::relu": "relu", "ReluBackward0": "relu backward", "aten::add": "add",
    "aten::sum": "bias gradient sum", "torch::autograd::AccumulateGrad": "accumulate gradient",
    "Optimizer.step#SGD.step": "sgd", "Optimizer.zero_grad#SGD.zero_grad": "zero gradients",
}  # fmt: skip
"""Group in the report of ``residuals`` by op; any other op is in ``loss``."""


Interval = tuple[float, float]
"""Time and half width of its interval, microseconds."""


class Residual(Struct, frozen=True):
    """Times of one group of ops in one traced step, in microseconds.

    Attributes:
        trace: date and model of the trace.
        group: name of the group of ops.
        ops: number of ops.
        measured, predicted: summed kernel times.
        absolute: sum over ops of the absolute difference.
        inside: number of ops whose measured time is in the predicted interval.
    """

    trace: str
    group: str
    ops: int
    measured: float
    predicted: float
    absolute: float
    inside: int

    @property
    def error(self) -> float:
        """Signed error of the sum, as a share of the measured time."""
        return self.predicted / self.measured - 1.0


def residuals(
    data_dir: str | Path,
    *,
    mode: str = "corrected",
    software: str = "torch-1.10-cuda-11.3",
    device: str = PAPER,
    learned: Mapping[str, Predictor] | None = None,
) -> list[Residual]:
    """Compare every traced op with its price; the last row of each trace is its total.

    Args:
        data_dir: the folder of reference measurements.
        mode: as in ``costmodels.pricing.price.price``.
        software: as in ``costmodels.pricing.price.price``.
        device: name or path of the sheet.
        learned: trained models to query first, as in ``costmodels.pricing.price.price``.

    Raises:
        IrgraphError: the trace does not exist, or has ops that the reference step lacks.
    """
    rows = []
    for (date, model), traced in measured_ops(Path(data_dir) / TRACE).items():
        expected = predictions(model, mode, software, device, learned)
        rows += _compare(f"{date} {model}", traced, expected)
    return rows


def predictions(
    model: str,
    mode: str,
    software: str,
    device: str,
    learned: Mapping[str, Predictor] | None = None,
) -> dict[str, list[Interval]]:
    """Return the predicted microseconds and spread of each occurrence of an op, by op name."""
    labelled = list(reference_ops(model, 2048))
    graph = Graph(model, ops=tuple(op for _, ops in labelled for op in ops))
    sheet = load_device(device)
    priced = price(graph, sheet, mode=mode, software=software, pinned=True, learned=learned)
    intervals_by_label: dict[str, list[Interval]] = defaultdict(list)
    for label, ops in labelled:
        kernels = [k for op in ops for k in priced.of(op)]
        intervals_by_label[label].append(
            (sum(k.time for k in kernels), sum(k.spread for k in kernels))
        )
    return intervals_by_label


def measured_ops(path: Path) -> dict[tuple[str, str], list[tuple[str, float]]]:
    """Return the ops of a file in order with their mean kernel time in us, by date and model."""
    if not path.exists():
        raise fail(f"no traced kernels at {str(path)!r}", exit_code=2)
    sums: dict[tuple[str, str], dict[int, tuple[str, list[float]]]] = defaultdict(dict)
    counts: dict[tuple[str, str], int] = {}
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            key = (row["trace_date"], row["model"])
            op_index = int(row["op_index_in_iteration"])
            entry = sums[key].setdefault(op_index, (row["op"], []))
            entry[1].append(float(row["kernel_time_us"]))
            counts[key] = max(counts.get(key, 0), int(row["iteration"]) + 1)
    return {
        key: [(name, sum(times) / counts[key]) for _, (name, times) in sorted(ops.items())]
        for key, ops in sums.items()
        if key[1] in REFERENCES
    }


def _compare(
    trace: str, measured: Iterable[tuple[str, float]], expected: dict[str, list[Interval]]
) -> list[Residual]:
    occurrences: dict[str, int] = defaultdict(int)
    groups: dict[str, list[tuple[float, Interval]]] = defaultdict(list)
    for label, time in measured:
        occurrence = occurrences[label]
        occurrences[label] += 1
        if label not in expected:
            raise fail(f"{trace} has an op {label!r} that the reference step has not")
        # one trace also copies its prediction to the host: price it as the previous copy
        times = expected[label]
        groups[GROUPS.get(label, "loss")].append((time, times[min(occurrence, len(times) - 1)]))
    rows = [_row(trace, group, pairs) for group, pairs in groups.items()]
    rows.sort(key=lambda row: -row.absolute)
    all_pairs = [pair for pairs in groups.values() for pair in pairs]
    return [*rows, _row(trace, "total", all_pairs)]


def _row(trace: str, group: str, pairs: Sequence[tuple[float, Interval]]) -> Residual:
    errors = [(measured, time - measured, spread) for measured, (time, spread) in pairs]
    total = sum(measured for measured, _, _ in errors)
    return Residual(
        trace,
        group,
        len(pairs),
        total,
        total + sum(error for _, error, _ in errors),
        sum(abs(error) for _, error, _ in errors),
        sum(abs(error) <= spread for _, error, spread in errors),
    )
