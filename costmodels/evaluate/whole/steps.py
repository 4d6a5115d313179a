"""Whole steps with published times: timm on RTX cards, NVIDIA's classifiers on V100 and A100.

Predicted and measured times are grouped by the kind of the steps. The models of timm are selected
by the lowest hashes of their names, regardless of the result; nothing is fitted to these steps.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from costmodels.evaluate.comparison import Comparison, Point, Row, Series
from costmodels.evaluate.dlrm_v100 import HOST
from costmodels.evaluate.errors import IntervalHit, coverage
from costmodels.evaluate.measurements import measurements
from costmodels.evaluate.whole.program_cache import cached_program
from costmodels.evaluate.whole.programs import classifier, result_or_reason
from costmodels.formulas.software import PROFILES
from costmodels.learnable.measurements import read_table
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.predict.prediction import predict

TRAINED_MODELS, INFERRED_MODELS = 20, 12
"""Default numbers of timm's models in training and in inference."""

TRAINING_SOFTWARE, INFERENCE_SOFTWARE = "torch-1.12-cuda-11.3", PROFILES[0].name
"""Software according to timm's tables: torch 1.12 (``pt112-cu113``) and 2.9.1."""

BOARDS = {"RTX-3090": "rtx-3090", "RTX-4090": "rtx-4090", "V100-16GB": "v100-sxm2-16gb",
          "V100-32GB": "v100-sxm2-32gb", "A100-80GB": "a100-sxm4-80gb"}  # fmt: skip
SYSTEMS = {"V100-16GB": "DGX1V-16G", "V100-32GB": "DGX1V-32G", "A100-80GB": "DGXA100"}
NVIDIA = {
    "resnet50": "resnet50", "resnext101-32x4d": "resnext101_32x4d",
    "se-resnext101-32x4d": "seresnext101_32x4d", "efficientnet-b0": "efficientnet_b0",
    "efficientnet-b4": "efficientnet_b4",
}  # fmt: skip
"""timm's names of NVIDIA's image classifiers; classifiers that timm lacks are omitted."""

TF32, MIXED = "TF32", "AMP"

NOTES = (
    "timm: models are those whose names hash lowest, chosen by nobody. The release installed is "
    "newer than those timed; in training, attention scales its scores as that release did. Others "
    "of its models may have changed.",
    "timm in inference: attention fused, and as its tables do not say, but show, norms in the type "
    "of autocast (--fast-norm: in f32, norms and casts alone of vit_small_r26_s32_384 would move "
    "more than the card can in the whole step) and branches joined (--reparam: models that have "
    "some take 0.42 to 0.73 of what they did in torch 2.4, others 0.97).",
    "NVIDIA's throughput includes loading data. Gradients are zeroed in place, and SGD with "
    "momentum runs once a step, where EfficientNet has RMSprop and most runs add up gradients.",
    "Host overheads are those of the default table, of an older host. Nothing was fitted to these "
    "steps; one share of the profile of torch 1.12 was fitted to eight other networks of timm, and "
    "what few channels, depthwise and grouped windows take to seventeen more (docs/costs.md).",
)


class Case(Struct, frozen=True):
    """A measured step: group, name, card, milliseconds, samples and program."""

    group: str
    name: str
    card: str
    measured: float
    batch: int
    program: Callable[[], Graph]
    software: str = PROFILES[0].name


def evaluate_steps(models: int | None = None, keep: Path | None = None) -> Comparison:
    """Return measured and predicted steps by group, and the coverage of their intervals.

    Args:
        models: number of timm's models in training and in inference (default:
            ``TRAINED_MODELS`` and ``INFERRED_MODELS``).
        keep: folder that caches captured programs.

    Raises ``IrgraphError`` if ``IRGRAPH_DATA`` is unset, or torch is missing.
    """
    folder = measurements() / "steps"
    counts = (TRAINED_MODELS, INFERRED_MODELS) if models is None else (models, models)
    cases = [*_timm(folder, *counts), *nvidia(folder)]
    points: defaultdict[str, list[Point]] = defaultdict(list)
    hits_by_group: defaultdict[str, list[IntervalHit]] = defaultdict(list)
    missing: dict[str, None] = {}
    for case in cases:
        graph = result_or_reason(
            partial(cached_program, keep, f"{case.group} {case.name}", case.program)
        )
        if isinstance(graph, str):
            missing[f"{case.name}: {graph}"] = None
            continue
        group = f"{case.group}: {kind(graph)}" if case.group.startswith("timm") else case.group
        prediction = predict(graph, case.card, host=HOST, software=case.software)
        points[group].append(Point(case.name, case.measured, prediction.step_time / 1e3))
        low, high = (end / 1e3 for end in prediction.interval)
        hit = IntervalHit(low <= case.measured <= high, (high - low) / 2 / case.measured)
        hits_by_group[group].append(hit)
    missing |= dict.fromkeys(contradictions(folder))
    notes = (*NOTES, *(f"left out: {text}" for text in missing))
    series = [Series(name, group_points) for name, group_points in sorted(points.items())]
    return Comparison("steps", series, {}, notes, coverage(hits_by_group))


def kind(graph: Graph) -> str:
    """Return the kind of a classifier's kernels: its convolutions, or else attention."""
    groupings = [_grouping(op) for op in graph.walk() if op.name == "aten.convolution"]
    if "depthwise" in groupings:
        return "depthwise convolutions"
    if "grouped" in groupings:
        return "grouped convolutions"
    return "plain convolutions" if len(groupings) > 2 else "attention, products"


def _grouping(op: Op) -> str:
    data, weight = op.inputs[:2]
    groups = int(data.shape[1]) // int(weight.shape[1])
    return "plain" if groups == 1 else "depthwise" if weight.shape[1] == 1 else "grouped"


def _timm(
    folder: Path, trained: int = TRAINED_MODELS, inferred: int = INFERRED_MODELS
) -> Iterator[Case]:
    rows = [row for row in read_table(folder / "timm_steps.csv.gz")[0] if row["consistent"] == "1"]
    for settings, count in (
        (("train", "nchw", "autocast-f16", "eager", "RTX-3090", "1.12"), trained),
        (("infer", "nchw", "autocast-f16", "eager", "RTX-4090", "2.9.1"), inferred),
    ):
        columns = ("phase", "layout", "precision", "compiled", "gpu", "torch")
        selected = [row for row in rows if tuple(row[name] for name in columns) == settings]
        for row in select_by_hash(selected, count):
            training = row["phase"] == "train"
            sizes = int(row["batch"]), int(row["image"])
            program = partial(
                classifier,
                row["model"],
                *sizes,
                training=training,
                fast=not training,
                older=training,
            )
            name = f"{row['model']}, B = {row['batch']}, {row['image']} pixels"
            group = f"timm, {row['phase']}, {row['gpu']}"
            measured, software = (
                float(row["step_ms"]),
                TRAINING_SOFTWARE if training else INFERENCE_SOFTWARE,
            )
            yield Case(group, name, BOARDS[row["gpu"]], measured, sizes[0], program, software)


def select_by_hash(rows: Iterable[Row], count: int) -> list[Row]:
    """Return one row for each of the ``count`` models whose names have the lowest hashes."""
    models = {row["model"]: row for row in rows}
    order = sorted(models, key=lambda name: sha256(name.encode()).hexdigest())
    return [models[name] for name in order[:count]]


MAX_SCALING = 1.1
"""Maximum ratio of the rate of eight cards to eight times the rate of one card; above it the rate
of one card is contradicted."""


@cache
def contradictions(folder: Path) -> tuple[str, ...]:
    """Return the classifiers whose rate on one card is contradicted by the rate on eight cards.

    Each text begins with the variant, the card and the precision of the row.
    """
    rates: defaultdict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    for row in csv_rows(folder / "nvidia_examples.csv"):
        if (row["phase"], row["quantity"]) == ("train", "throughput") and row["variant"]:
            rates[row["variant"], row["gpu"], row["precision"]][row["gpus"]] = float(row["value"])
    return tuple(
        f"{', '.join(key)}: eight cards are printed as {rate['8'] / rate['1']:.1f} times as fast"
        for key, rate in rates.items()
        if {"1", "8"} <= set(rate) and rate["8"] > MAX_SCALING * 8 * rate["1"]
    )


@cache
def nvidia(folder: Path) -> tuple[Case, ...]:
    """Return the steps of NVIDIA's image classifiers on one card, from images per second."""
    configs = {
        (row["model"], row["system"], row["precision"]): row
        for row in csv_rows(folder / "nvidia_convnets_config.csv")
    }
    cases = []
    for row in csv_rows(folder / "nvidia_examples.csv"):
        name = row["variant"] or row["model"].removeprefix("ConvNets/").removesuffix("v1.5")
        config = configs.get((name, SYSTEMS.get(row["gpu"], ""), row["precision"]))
        row_kind = row["phase"], row["gpus"], row["quantity"]
        prefix = f"{name}, {row['gpu']}, {row['precision']}: "
        if any(text.startswith(prefix) for text in contradictions(folder)):
            continue
        if config is not None and name in NVIDIA and row_kind == ("train", "1", "throughput"):
            cases.append(_nvidia(row, config, name))
    return tuple(cases)


def _nvidia(row: Row, config: Row, name: str) -> Case:
    batch, mixed = int(config["batch_per_gpu"]), row["precision"] == MIXED
    program = partial(
        classifier,
        NVIDIA[name],
        batch,
        int(config["image"]),
        mixed=mixed,
        channels_last=config["layout"] == "nhwc",
        backward_mixed=False,
    )
    group = f"NVIDIA's classifiers, {row['gpu'][:4]}, {row['precision']}"
    label = f"{name}, {row['gpu']}, B = {batch}"
    time = 1e3 * batch / float(row["value"])
    return Case(group, label, BOARDS[row["gpu"]], time, batch, program)


def csv_rows(path: Path) -> list[Row]:
    """Return the rows of a table."""
    with path.open(encoding="utf-8") as lines:
        return list(csv.DictReader(lines))
