"""Published measurements of collectives, converted to one form.

Paths are relative to the folder of reference measurements; tables that were published as a few
figures on a page ship in ``published.csv``.
"""

from __future__ import annotations

import csv
import gzip
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from math import floor, log2
from pathlib import Path

from msgspec import Struct

from costmodels.collectives.curve import CurveTable, table

V100 = "collectives/collectives_latency_4xv100_digitized.csv"
PARAMETERS = "collectives/collective_model_params_v100.csv"
SLOW = "collectives/a100_dgx_all_reduce.csv.gz"
MODERN = "modern/collectives.csv.gz"
PLATFORMS = {
    "A100-SXM4-80GB": "a100", "H100-80GB-HBM3": "h100", "H200": "h200", "B200": "b200",
    "B300": "b300", "RTX-PRO-6000": "rtx-pro-6000",
}  # fmt: skip
"""Platform by card in the measurements of current cards, which are fully linked."""
NAMES = {"all_gather": "all_gather_base", "all_to_all": "all_to_allv"}
"""Name of a collective by its name in those measurements, if different."""
MOVING = ("all_gather_base", "all_to_allv")
"""Collectives that only move bytes: their times do not depend on the element type."""
MIN_POINTS = 5
"""Minimum number of points of a table."""
POINTS_PER_DOUBLING = 4
"""Maximum number of points per doubling of size; more points are reduced to medians."""
SOURCES = {
    V100: "owensgroup/ml_perf_model (BSD-3-Clause), digitised, +-3 %",
    SLOW: "microsoft/vidur (MIT), medians, least of the ranks",
    MODERN: "ai-dynamo/aiconfigurator (Apache-2.0), nccl-tests with NCCL {}",
}

Points = dict[float, float]


class Key(Struct, frozen=True, order=True):
    """Platform, ranks and collective of a table; ``local`` of the ranks share a machine."""

    platform: str
    ranks: int
    local: int
    collective: str


class MeasuredCurve(Struct, frozen=True):
    """A measured table: microseconds by bytes, without disturbances."""

    key: Key
    points: CurveTable
    source: str


def measured_curves(data: Path) -> Iterator[MeasuredCurve]:
    """Yield every measured table, built from training rows only."""
    for key, points in sorted(v100_points(data / V100).items()):
        yield MeasuredCurve(key, _table(points), SOURCES[V100])
    for key, points in sorted(_slow_network_points(data / SLOW).items()):
        yield MeasuredCurve(key, _thin_out(points), SOURCES[SLOW])
    for key, points in sorted(modern_points(data / MODERN, "train").items()):
        source = SOURCES[MODERN].format("2.27" if key.platform == "a100" else "2.29")
        yield MeasuredCurve(key, remove_noise(_table(points)), source)
    yield from (curve for curve in published_curves() if len(curve.points.sizes) >= MIN_POINTS)


def published_curves() -> list[MeasuredCurve]:
    """Return the shipped published tables, including tables of a few points."""
    text = Path(__file__).with_name("published.csv").read_text("utf-8")
    curves = []
    for (key, source), rows in groupby(csv.DictReader(text.splitlines()), key=_key_and_source):
        points = {float(row["bytes"]): float(row["time_us"]) for row in rows}
        curves.append(MeasuredCurve(key, _table(points), source))
    return curves


def _key_and_source(row: Mapping[str, str]) -> tuple[Key, str]:
    key = Key(row["platform"], int(row["ranks"]), int(row["local"]), row["collective"])
    return key, row["source"]


def modern_points(path: Path, split: str) -> Mapping[Key, Points]:
    """Return the points of one split of the measurements of current cards, us by bytes.

    For a collective that only moves bytes, the minimum over types: disturbances add time.
    """
    curves: dict[Key, Points] = defaultdict(dict)
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            name, ranks = NAMES.get(row["op"], row["op"]), int(row["ranks"])
            is_selected = (row["mode"], row["nodes"], row["split"]) == ("nccl-tests", "1", split)
            if (
                row["device"] in PLATFORMS
                and is_selected
                and (row["dtype"] == "f16" or name in MOVING)
            ):
                points = curves[Key(PLATFORMS[row["device"]], ranks, ranks, name)]
                size, time = float(row["bytes"]), float(row["time_us"])
                points[size] = min(time, points.get(size, time))
    return curves


def v100_points(path: Path) -> Mapping[Key, Points]:
    """Return the digitised points of the V100s of one machine."""
    curves: dict[Key, Points] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            ranks = int(row["num_gpus"])
            key = Key("v100", ranks, ranks, row["collective"])
            curves[key][float(row["message_bytes"])] = float(row["latency_us"])
    return curves


def _slow_network_points(path: Path) -> Mapping[Key, Points]:
    """Return the points of A100s in several machines with a slow network, us by bytes.

    Single machines are excluded: better measurements of them exist. The file has medians of each
    rank in ms; the minimum over ranks includes no waiting.
    """
    samples: dict[Key, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            ranks, local = int(row["num_workers"]), int(row["devices_per_node"])
            if local < ranks:
                key = Key("a100-slow-network", ranks, local, row["collective"])
                time = 1000.0 * float(row["time_stats.all_reduce.median"])
                samples[key][float(row["size"])].append(time)
    return {
        key: {s: min(times) for s, times in times_by_size.items()}
        for key, times_by_size in samples.items()
    }


def remove_noise(points: CurveTable) -> CurveTable:
    """Return points with times that never exceed a larger message's: disturbances add time."""
    times = tuple(min(points.times[index:]) for index in range(len(points.times)))
    return CurveTable(points.sizes, times)


def _table(points: Points) -> CurveTable:
    return table(*zip(*sorted(points.items()), strict=True))


def _thin_out(points: Points) -> CurveTable:
    """Return one point per part of a doubling of size: the medians of sizes and of times."""

    def part(size: float) -> int:
        return floor(POINTS_PER_DOUBLING * log2(size))

    medians = []
    for _, sizes in groupby(sorted(points), key=part):
        medians.append(_median_point([(size, points[size]) for size in sizes]))
    return table(*zip(*medians, strict=True))


def _median_point(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    sizes, times = zip(*pairs, strict=True)
    return statistics.median(sizes), statistics.median(times)
