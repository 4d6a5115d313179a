"""Fit the shipped curves to published measurements.

``python -m costmodels.collectives.build DATA_DIR`` reads ``DATA_DIR/collectives`` and
``DATA_DIR/modern`` and writes ``costmodels/collectives/fitted.json``.
"""

from __future__ import annotations

import csv
import gzip
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from costmodels.collectives.curve import Form, Table, fit, leave_one_out, table
from costmodels.collectives.load import traffic

V100 = "collectives_latency_4xv100_digitized.csv"
PARAMETERS = "collective_model_params_v100.csv"
A100 = "a100_dgx_all_reduce.csv.gz"
MODERN = "collectives.csv.gz"
PLATFORMS = {
    "A100-SXM4-80GB": "a100", "H100-80GB-HBM3": "h100", "H200": "h200", "B200": "b200",
}  # fmt: skip
"""Platforms by card of the measurements of today's cards, with all their links between them."""
NAMES = {"all_gather": "all_gather_base", "all_to_all": "all_to_allv"}
"""Collectives that those measurements call otherwise."""
SOURCES = {
    V100: "owensgroup/ml_perf_model (BSD-3-Clause), digitised, +-3 %",
    PARAMETERS: "owensgroup/ml_perf_model (BSD-3-Clause), published latency and bus bandwidth",
    A100: "microsoft/vidur (MIT), medians",
    MODERN: "ai-dynamo/aiconfigurator (Apache-2.0), nccl-tests with NCCL {}, f16, interpolated",
}

Key = tuple[str, int, int, str]
"""Platform, ranks, ranks on one machine, collective."""


def measured(folder: Path) -> Iterator[tuple[Key, Table, str]]:
    """Yield every measured curve of ``folder``: sizes in bytes, times in microseconds."""
    for key, points in sorted(_v100(folder / V100).items()):
        yield key, table(*zip(*sorted(points.items()), strict=True)), SOURCES[V100]
    for key, points in sorted(_a100(folder / A100).items()):
        yield key, table(*zip(*sorted(points.items()), strict=True)), SOURCES[A100]


def fitted(points: Table, source: str) -> Form:
    """Return the form fitted to a table, with its leave-one-out error."""
    errors = leave_one_out(points.sizes, points.times, fit)
    error = statistics.fmean(abs(e) for e in errors)
    form = fit(points.sizes, points.times)
    return replace(form, error=error, source=source, largest=points.sizes[-1])


def rows(folder: Path) -> list[dict[str, object]]:
    """Return a record for each curve, as the shipped file has them."""
    found = []
    for (platform, ranks, local, collective), points, source in measured(folder):
        form = fitted(points, source)
        key = {"platform": platform, "ranks": ranks, "local": local, "collective": collective}
        numbers = {
            name: float(f"{getattr(form, name):.6g}")
            for name in ("alpha", "per_byte", "per_root", "error", "largest")
        }
        found.append({**key, **numbers, "source": source})
    known = {(row["platform"], row["collective"]) for row in found}
    later = _modern(folder.parent / "modern" / MODERN)
    new = [row for row in later if (row["platform"], row["collective"]) not in known]
    return [*found, *_published(folder / PARAMETERS), *new]


def _modern(path: Path) -> Iterator[dict[str, object]]:
    """Yield curves of today's cards with their points, in the order of platform and ranks."""
    for (platform, ranks, local, collective), points in sorted(modern(path, "train").items()):
        measured_at = _without_noise(table(*zip(*sorted(points.items()), strict=True)))
        form = fit(measured_at.sizes, measured_at.times)
        errors = leave_one_out(measured_at.sizes, measured_at.times, table)
        error = statistics.fmean(map(abs, errors))
        numbers = {
            "alpha": form.alpha, "per_byte": form.per_byte, "per_root": form.per_root,
            "error": error, "largest": measured_at.sizes[-1],
        }  # fmt: skip
        key = {"platform": platform, "ranks": ranks, "local": local, "collective": collective}
        rounded = {name: float(f"{number:.6g}") for name, number in numbers.items()}
        source = SOURCES[MODERN].format("2.27" if platform == "a100" else "2.29")
        points_of = {"sizes": measured_at.sizes, "times": measured_at.times}
        yield {**key, **rounded, "source": source, **points_of}


def _without_noise(points: Table) -> Table:
    """Return points none of which takes longer than a larger message: disturbances add time."""
    times = tuple(min(points.times[place:]) for place in range(len(points.times)))
    return replace(points, times=times)


def modern(path: Path, split: str) -> Mapping[Key, dict[float, float]]:
    """Return the points of one split of the measurements of today's cards, us by bytes."""
    curves: dict[Key, dict[float, float]] = defaultdict(dict)
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            wanted = (row["mode"], row["nodes"], row["dtype"], row["split"])
            if row["device"] in PLATFORMS and wanted == ("nccl-tests", "1", "f16", split):
                name, ranks = NAMES.get(row["op"], row["op"]), int(row["ranks"])
                key = (PLATFORMS[row["device"]], ranks, ranks, name)
                curves[key][float(row["bytes"])] = float(row["time_us"])
    return curves


def _published(path: Path) -> Iterator[dict[str, object]]:
    """Yield the curves of eight V100, of which only latency and bandwidth were published.

    Their error is that of latency and bandwidth alone on four V100, whose points are known.
    """
    curves = _v100(path.parent / V100)
    with path.open(newline="") as file:
        published = list(csv.DictReader(file))
    known = {(row["collective"], int(row["num_gpus"])): row for row in reversed(published)}
    for (name, ranks), row in sorted(known.items()):
        if ranks == 8:
            points = curves["v100", 4, 4, name]
            four = _line(known[name, 4])
            error = statistics.fmean(abs(four.time(s) / t - 1.0) for s, t in points.items())
            eight = _line(row)
            key = {"platform": "v100", "ranks": 8, "local": 8, "collective": name}
            numbers = {"alpha": eight.alpha, "per_byte": eight.per_byte, "error": error}
            rounded = {name: float(f"{number:.6g}") for name, number in numbers.items()}
            yield {**key, **rounded, "source": SOURCES[PARAMETERS]}


def _line(row: Mapping[str, str]) -> Form:
    """Return published latency and bus bandwidth as a form."""
    share = traffic(row["collective"], int(row["num_gpus"]))
    return Form(float(row["overhead_us"]), share / float(row["max_bus_bw_GBps"]) / 1e3)


def _v100(path: Path) -> Mapping[Key, dict[float, float]]:
    curves: dict[Key, dict[float, float]] = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            ranks = int(row["num_gpus"])
            key = ("v100", ranks, ranks, row["collective"])
            curves[key][float(row["message_bytes"])] = float(row["latency_us"])
    return curves


def _a100(path: Path) -> Mapping[Key, dict[float, float]]:
    """Medians of the ranks, in ms; the minimum over ranks contains no waiting."""
    samples: dict[Key, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    with gzip.open(path, "rt", newline="") as file:
        for row in csv.DictReader(file):
            key = ("a100", int(row["num_workers"]), int(row["devices_per_node"]), row["collective"])
            time = 1000.0 * float(row["time_stats.all_reduce.median"])
            samples[key][float(row["size"])].append(time)
    return {
        key: {size: min(times) for size, times in points.items()} for key, points in samples.items()
    }


def main(arguments: Sequence[str]) -> None:
    """Write the file; the one argument is the folder of published measurements."""
    data = msgspec.json.encode(rows(Path(arguments[0]) / "collectives"))
    path = Path(__file__).parent / "fitted.json"
    path.write_bytes(msgspec.json.format(data, indent=1) + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
