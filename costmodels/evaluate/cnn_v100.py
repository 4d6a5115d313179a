"""ResNet-50 and Inception-v3 on a V100: the paper's six measured steps (Figure 10).

The models are captured from ``examples/resnet50.py`` and ``examples/inception_v3.py`` with
``aux=0.0`` and ship unchanged; ``as_benchmarked`` converts them to the measured program. Nothing
here is fitted to the measured step times.
"""

from __future__ import annotations

import gzip
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

from costmodels.evaluate.comparison import Point, Row, Series, series, shipped_rows
from costmodels.evaluate.measured_program import as_benchmarked
from irgraph.ir.cost import Priced
from irgraph.ir.graph import Graph
from irgraph.ir.resize import with_dims
from irgraph.schedule.timeline import Timeline
from irgraph.text import parse

MODELS = {"resnet50": "ResNet-50", "inception_v3": "Inception-v3"}
"""Names in reports, by shipped model."""

TRACE = "resnet50_V100/kineto_workers0.json.gz"
"""Trace of training ResNet-50 at batch 32 on a V100, with another program and other software."""

TRACED_DEVICE = "v100"
"""Card of that trace; no source states that its clock was locked."""

TRACED_NAMES = {
    "aten.conv2d": "aten::conv2d",
    "autograd.ConvolutionBackward0": "CudnnConvolutionBackward",
    "aten.batch_norm": "aten::batch_norm",
    "autograd.NativeBatchNormBackward0": "CudnnBatchNormBackward",
    "aten.relu_": "aten::relu_",
    "autograd.ReluBackward0": "ReluBackward1",
}
"""Name of an operation in that trace, by its name in the model; other operations differ."""

OTHER_PREDICTORS = {
    "paper": "paper_error_pct",
    "Habitat": "habitat_error_pct",
    "MLPredict": "mlpredict_error_pct",
}
"""Column of the errors (published without sign) of other predictors of these steps, by name."""

VARIANTS_SCORED = (
    "shared overheads: models, tables and rules as they were before these points were looked at",
    "the overheads of each workload alone, T1 and T2 of its own operations",
    "kernels alone, no overheads",
    "all three again as kernel models of convolutions and pooling changed, by other measurements",
)
"""Every variant whose error on these points was ever examined, in order."""

NOTES = (
    "Measured steps of image classifiers are exact, the means of 200. Nothing was chosen by these "
    f"points: variants ever scored on them: {len(VARIANTS_SCORED)}, first scored as they stood.",
    "Operators of the traced ResNet-50 ran without cudnn.deterministic, on other software, at "
    "stock clocks as far as anybody says; they are compared with predictions at those.",
    "The measured program set cudnn.deterministic, which forbids the fastest kernels for weight "
    "gradients, and cudnn.benchmark; kernel models know neither.",
    "From batch 32 to 64 the measured step of Inception-v3 grows 1.30 times, that of ResNet-50 "
    "1.87 times and predicted device times 1.9 times: other kernels ran there, or another batch.",
    "Shared overheads are means over DLRM workloads: what convolutions and normalisations cost the "
    "host is a mean by category there, and their own (T2) only in the overheads of each workload.",
)


@cache
def measured_model(name: str) -> Graph:
    """Return a shipped model as the measured program ran it, at its captured batch."""
    file = resources.files("costmodels.evaluate") / "data" / f"{name}.ir.gz"
    return as_benchmarked(parse(gzip.decompress(file.read_bytes()).decode(), f"{name}.ir"))


def cnn(name: str, batch: int) -> Graph:
    """Return the measured program of a name in ``MODELS`` at a batch size."""
    return with_dims(measured_model(name), {"B": batch})


def measured_points() -> list[Row]:
    """Return the six points, with their names in reports."""
    return [{**row, "name": MODELS[row["model"]]} for row in shipped_rows("cnn_v100.csv")]


def step_times(rows: Sequence[Row], timelines: Iterable[Timeline], title: str) -> Series:
    """Return predicted and measured step times, and the errors of other predictors."""
    times = (timeline.step_time for timeline in timelines)
    return series(title, rows, times, others=OTHER_PREDICTORS, unsigned=True)


def traced_operators(priced: Priced, folder: Path) -> Series:
    """Return device times by operation of ResNet-50 at batch 32, predicted and traced, ms/step."""
    from irgraph.analyze.analysis import analyze
    from irgraph.capture.kineto import read_kineto
    from irgraph.capture.kineto.events.tree import build_tree

    traced = analyze([build_tree(read_kineto(folder / "traces" / TRACE))]).breakdowns["op"]
    predicted: defaultdict[str, float] = defaultdict(float)
    for op in priced.graph.top_level():
        predicted[op.name] += sum(kernel.time for kernel in priced.of(op))
    points = [
        Point(op, traced[old][0] / 1e3, predicted[op] / 1e3) for op, old in TRACED_NAMES.items()
    ]
    return Series("device time by operation, ResNet-50 at B = 32 as traced on a V100", points)
