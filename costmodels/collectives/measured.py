"""Published measurements of collectives, brought into one form.

``DATA`` below is the folder of reference measurements; what was published as a few figures on a
page ships in ``published.csv``.
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

from costmodels.collectives.curve import Table, table

V100 = "collectives/collectives_latency_4xv100_digitized.csv"
PARAMETERS = "collectives/collective_model_params_v100.csv"
SLOW = "collectives/a100_dgx_all_reduce.csv.gz"
MODERN = "modern/collectives.csv.gz"
PLATFORMS = {
    "A100-SXM4-80GB": "a100", "H100-80GB-HBM3": "h100", "H200": "h200", "B200": "b200",
    "B300": "b300", "RTX-PRO-6000": "rtx-pro-6000",
}  # fmt: skip
"""Platforms by card of the measurements of today's cards, with all their links between them."""
NAMES = {"all_gather": "all_gather_base", "all_to_all": "all_to_allv"}
"""Collectives that those measurements call otherwise."""
MOVING = ("all_gather_base", "all_to_allv")
"""Collectives that only move bytes: those of other types are measurements of the same."""
FEWEST = 5
"""Points that make a table."""
PARTS = 4
"""Points that are kept of each doubling of size where more were measured."""
SOURCES = {
    V100: "owensgroup/ml_perf_model (BSD-3-Clause), digitised, +-3 %",
    SLOW: "microsoft/vidur (MIT), medians, least of the ranks",
    MODERN: "ai-dynamo/aiconfigurator (Apache-2.0), nccl-tests with NCCL {}",
}

Points = dict[float, float]


class Key(Struct, frozen=True, order=True):
    """What a table was measured on: ``local`` of the ranks share a machine."""

    platform: str
    ranks: int
    local: int
    collective: str


class Measured(Struct, frozen=True):
    """A measured table: microseconds by bytes, disturbances taken off."""

    key: Key
    points: Table
    source: str


def measured(data: Path) -> Iterator[Measured]:
    """Yield every table that was measured, of training rows alone."""
    for key, points in sorted(v100(data / V100).items()):
        yield Measured(key, _table(points), SOURCES[V100])
    for key, points in sorted(_slow(data / SLOW).items()):
        yield Measured(key, _thinned(points), SOURCES[SLOW])
    for key, points in sorted(modern(data / MODERN, "train").items()):
        source = SOURCES[MODERN].format("2.27" if key.platform == "a100" else "2.29")
        yield Measured(key, without_noise(_table(points)), source)
    yield from (found for found in published() if len(found.points.sizes) >= FEWEST)


def published() -> list[Measured]:
    """Return the tables that ship as they were published, those of a few points, too."""
    text = Path(__file__).with_name("published.csv").read_text("utf-8")
    found = []
    for (key, source), rows in groupby(csv.DictReader(text.splitlines()), key=_published):
        points = {float(row["bytes"]): float(row["time_us"]) for row in rows}
        found.append(Measured(key, _table(points), source))
    return found


def _published(row: Mapping[str, str]) -> tuple[Key, str]:
    key = Key(row["platform"], int(row["ranks"]), int(row["local"]), row["collective"])
    return key, row["source"]


def modern(path: Path, split: str) -> Mapping[Key, Points]:
    """Return the points of one split of the measurements of today's cards, us by bytes.

    Where a collective only moves bytes, the least over types: disturbances add time.
    """
    curves: dict[Key, Points] = defaultdict(dict)
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            name, ranks = NAMES.get(row["op"], row["op"]), int(row["ranks"])
            wanted = (row["mode"], row["nodes"], row["split"]) == ("nccl-tests", "1", split)
            if row["device"] in PLATFORMS and wanted and (row["dtype"] == "f16" or name in MOVING):
                points = curves[Key(PLATFORMS[row["device"]], ranks, ranks, name)]
                size, time = float(row["bytes"]), float(row["time_us"])
                points[size] = min(time, points.get(size, time))
    return curves


def v100(path: Path) -> Mapping[Key, Points]:
    """Return the digitised points of V100 of one machine."""
    curves: dict[Key, Points] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            ranks = int(row["num_gpus"])
            key = Key("v100", ranks, ranks, row["collective"])
            curves[key][float(row["message_bytes"])] = float(row["latency_us"])
    return curves


def _slow(path: Path) -> Mapping[Key, Points]:
    """A100 of two machines with a slow network; those of one were measured better elsewhere.

    Medians of the ranks, in ms; the minimum over ranks contains no waiting.
    """
    samples: dict[Key, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            ranks, local = int(row["num_workers"]), int(row["devices_per_node"])
            if local < ranks:
                key = Key("a100-slow-network", ranks, local, row["collective"])
                time = 1000.0 * float(row["time_stats.all_reduce.median"])
                samples[key][float(row["size"])].append(time)
    return {key: {s: min(times) for s, times in of.items()} for key, of in samples.items()}


def without_noise(points: Table) -> Table:
    """Return points none of which takes longer than a larger message: disturbances add time."""
    times = tuple(min(points.times[place:]) for place in range(len(points.times)))
    return Table(points.sizes, times)


def _table(points: Points) -> Table:
    return table(*zip(*sorted(points.items()), strict=True))


def _thinned(points: Points) -> Table:
    """Return a point for each part of a doubling: the medians of sizes and of times."""

    def part(size: float) -> int:
        return floor(PARTS * log2(size))

    kept = []
    for _, sizes in groupby(sorted(points), key=part):
        kept.append(_middle([(size, points[size]) for size in sizes]))
    return table(*zip(*kept, strict=True))


def _middle(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    sizes, times = zip(*pairs, strict=True)
    return statistics.median(sizes), statistics.median(times)
