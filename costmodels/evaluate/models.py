"""BERT and GPT-2 on two GPUs: sums of learned kernel times compared with measured model times.

The measurements are published by NeuSight (``labels/``, MIT): float32, eager, so large that the GPU
is always busy. A model's time is then the sum of its kernels' times, without launch costs.
"""

from __future__ import annotations

import ast
import csv
import gzip
import io
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct

from costmodels.devices.library import load_device
from costmodels.evaluate.comparison import Comparison, Point, Series
from costmodels.evaluate.measurements import measurements
from costmodels.learnable.hardware import hardware
from costmodels.learned.infer import estimate
from costmodels.learned.weights import load_shipped
from irgraph.diagnostics import fail

DEVICES = {"Tesla_V100-PCIE-32GB": "V100-PCIE-32GB", "NVIDIA_A100-PCIE-40GB": "A100-PCIE-40GB"}
"""Device sheets by folder of labels."""

FIRST_LAYER = re.compile("_(layers?|h)_0_")
"""Substring of the names of a first layer's ops in BERT, OPT and GPT-2."""

UNARY = ("relu", "tanh", "gelu")
"""Ops that read one tensor and write one; ``gelu`` is priced as the similar ``tanh``."""

NOTES = (
    "Predicted: the sum of kernels of an embedding, so many equal layers and a head, as the "
    "published op lists have them; no launch cost, since the GPU is never idle.",
    "By family: published times of ops alone.",
    "Training: forward and backward. Backward ops are those of the op lists without their moves "
    "of gradients, which autograd hands on without a kernel; it is no target of ours.",
    "NeuSight's own mean error on these GPUs is 5.9 % (V100) and 6.5 % (A100).",
)


class Work(Struct, frozen=True):
    """One kernel to price: family, op, sizes, and the number of its runs in the whole model."""

    family: str
    op: str
    sizes: tuple[float, ...]
    times: int = 1


class ModelTotals(Struct, frozen=True):
    """Comparison of the published times of a model's ops with the published time of the model.

    Attributes:
        excess: excess of the ops' sum over the model's time, as a share of the latter.
        gemm_exceeds: whether matrix products alone take longer than the model.
    """

    excess: float
    gemm_exceeds: bool


def evaluate_models() -> Comparison:
    """Return published and predicted times of the models, by model and by kernel family."""
    root = measurements() / "labels"
    inference: list[Point] = []
    training: list[Point] = []
    families: list[Point] = []
    totals_by_device: dict[str, list[ModelTotals]] = defaultdict(list)
    for folder, device in DEVICES.items():
        for path in sorted((root / folder).glob("*.json.gz")):
            name = path.name.removesuffix(".json.gz")
            label = json.loads(gzip.decompress(path.read_bytes()))
            ops = _rows(root / "opgraph" / f"{name}.csv.gz")
            work = model_work(ops, label["num_layer"], backward="-train-" in name)
            times = prices(work, device)
            point = Point(f"{device} {name}", label["e2e_latency"], sum(times) / 1e3)
            (training if "-train-" in name else inference).append(point)
            if "-train-" not in name:
                measured = _rows(path.with_name(f"{name}.csv.gz"))
                family_points = _families(f"{device} {name}", work, times, ops, measured, label)
                families += family_points
                totals_by_device[device].append(_model_totals(family_points, label["e2e_latency"]))
    if not inference:
        raise fail(f"no labelled models in {str(root)!r}", exit_code=2)
    settings = {"kernel models": "shipped weights", "devices": ", ".join(DEVICES.values())}
    series = [Series("inference", inference), Series("inference by family", families)]
    if training:
        series.append(Series("training", training))
    contradictions = [_contradiction(device, shares) for device, shares in totals_by_device.items()]
    return Comparison("models", series, settings, (*NOTES, *contradictions))


def _model_totals(families: Sequence[Point], model_time: float) -> ModelTotals:
    """Return the comparison of the published times of a model's ops with the model's time."""
    gemm = sum(point.measured for point in families if point.workload.endswith(" gemm"))
    return ModelTotals(
        sum(point.measured for point in families) / model_time - 1, gemm > model_time
    )


def _contradiction(device: str, models: Sequence[ModelTotals]) -> str:
    """Return a note on the difference between ops' and whole models' times on a device."""
    low, high = (bound(model.excess for model in models) for bound in (min, max))
    more = sum(model.gemm_exceeds for model in models)
    text = f"{device}: the published times of ops alone sum to {low:+.0%} to {high:+.0%}"
    text += " against those of whole models"
    if not more:
        return f"{text}."
    return (
        f"{text}; in {more} of {len(models)} models matrix products alone take longer than the "
        "model they are part of. The two measurements contradict each other, and nothing published "
        "says why: here errors by family do not measure the predictions."
    )


def model_work(
    ops: Sequence[Mapping[str, str]], layers: int, *, backward: bool = False
) -> list[Work]:
    """Return the kernels of a model whose op list has one layer of ``layers``.

    Raises ``IrgraphError`` if no op has the name of a first layer's op.
    """
    layer = layer_range(ops)
    if layers > 1 and not layer:
        hint = "ops of its first layer are named ..._layer_0_..., _layers_0_ (OPT) or _h_0_ (GPT-2)"
        raise fail(f"no op of a first layer among {len(ops)} ops of {layers} layers", hint=hint)
    work = []
    for index, op in enumerate(ops):
        work += _op_work(op, layers if index in layer else 1, backward)
    return work


def layer_range(ops: Sequence[Mapping[str, str]]) -> range:
    """Return the indices of one layer's ops, including the addition to the residual stream."""
    first_layer = [i for i, op in enumerate(ops) if FIRST_LAYER.search(op["Name"])]
    if not first_layer:
        return range(0)
    end = first_layer[-1] + 1
    return range(first_layer[0], end + (end < len(ops) and ops[end]["OpName"] == "VECadd"))


def _op_work(op: Mapping[str, str], repeats: int, backward: bool) -> list[Work]:
    calls = list(ast.literal_eval(op["FwOps"]))
    shapes = [s for s in ast.literal_eval(op["InputShapes"]) if isinstance(s, tuple)]
    result = [_work(kind, sizes, shapes, repeats) for kind, sizes in calls]
    if backward:
        calls = [call for call in ast.literal_eval(op["BwOps"]) if call[0] != "MEM"]
        result += [_work(kind, sizes, shapes, repeats) for kind, sizes in calls]
    return [work for work in result if work is not None]


def _work(kind: str, sizes: Sequence[object], shapes: list[tuple[int, ...]], n: int) -> Work | None:
    """Return one call of the op list as a kernel, ``None`` if it runs no kernel."""
    if kind == "Linear":
        rows, depth, columns = (float(str(size)) for size in sizes)
        return Work("gemm", "linear", (1.0, rows, columns, depth), n)
    if kind == "BMM":
        batch, rows, depth, columns = (float(str(size)) for size in sizes)
        op = "bmm" if batch > 1 else "linear"  # as in pricing: a single product runs such kernels
        return Work("gemm", op, (batch, rows, columns, depth), n)
    if kind == "MEM":
        elements = sum(math.prod(shape) for shape in sizes if isinstance(shape, tuple))
        return Work("elementwise", "relu", (elements / 2, 1.0), n) if elements > 4096 else None
    name = kind.removeprefix("VEC")
    rows, columns = (float(str(size)) for size in sizes)
    if name in ("softmax", "ln"):
        return Work("softmax" if name == "softmax" else "layer_norm", name, (rows, columns), n)
    return Work("elementwise", _pointwise(name, rows * columns, shapes), (rows, columns), n)


def _pointwise(name: str, elements: float, shapes: list[tuple[int, ...]]) -> str:
    """Return the measured op that moves as many tensors; a small operand counts as a scalar."""
    if name in UNARY:
        return "tanh" if name == "gelu" else name
    if name.endswith("u"):
        return name if name in ("addu", "mulu", "powu") else "mulu"
    scalar = any(math.prod(shape) * 8 <= elements for shape in shapes)
    return "mulu" if scalar else name if name in ("add", "mul", "div", "pow") else "add"


def prices(work: Sequence[Work], device: str) -> list[float]:
    """Return microseconds of each kernel on a device, repeats included."""
    times = [0.0] * len(work)
    indices_by_family: dict[str, list[int]] = defaultdict(list)
    for index, item in enumerate(work):
        indices_by_family[item.family].append(index)
    for family, indices in indices_by_family.items():
        weights = load_shipped(family)
        columns = np.asarray([work[i].sizes for i in indices], np.float32).T
        sizes = dict(zip(weights.family.sizes, columns, strict=True))
        ops = [weights.family.ops.index(work[i].op) for i in indices]
        sizes["op"] = np.asarray(ops, np.float32)
        estimates = estimate(weights, sizes, hardware(load_device(device)))
        for index, time in zip(indices, estimates.time, strict=True):
            times[index] = float(time) * work[index].times
    return times


def _families(
    name: str,
    work: Sequence[Work],
    times: Sequence[float],
    ops: Sequence[Mapping[str, str]],
    measured: Iterable[Mapping[str, str]],
    label: Mapping[str, int],
) -> list[Point]:
    """Return one point per family: sums over the ops that it prices."""
    predicted: Counter[str] = Counter()
    for item, time in zip(work, times, strict=True):
        predicted[item.family] += time / 1e3  # type: ignore[assignment]
    latency = {row["Name"]: float(row["fw_latency"]) for row in measured}
    measured_by_family: Counter[str] = Counter()
    inside = layer_range(ops)
    for index, op in enumerate(ops):
        parts = _op_work(op, 1, backward=False)
        if parts and op["Name"] in latency:
            repeats = label["num_layer"] if index in inside else 1
            measured_by_family[parts[0].family] += latency[op["Name"]] * repeats  # type: ignore[assignment]
    return [
        Point(f"{name} {f}", measured_by_family[f], predicted[f])
        for f in predicted
        if measured_by_family[f]
    ]


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        text = gzip.decompress(path.read_bytes()).decode("utf-8")
    except (OSError, EOFError) as error:
        raise fail(f"cannot read {str(path)!r}: {error}", exit_code=2) from None
    csv.field_size_limit(10**9)
    return list(csv.DictReader(io.StringIO(text)))
