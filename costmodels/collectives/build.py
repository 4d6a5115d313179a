"""Builds the shipped curves from published measurements.

``python -m costmodels.collectives.build DATA_DIR`` reads ``DATA_DIR/collectives`` and
``DATA_DIR/modern`` and writes ``costmodels/collectives/fitted.json``.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from costmodels.collectives.curve import Form
from costmodels.collectives.load import Record, fabric_of, traffic
from costmodels.collectives.measured import PARAMETERS, V100, Key, measured_curves, v100_points
from costmodels.collectives.shape import add_powers_of_two, leave_one_out_errors, reference

PUBLISHED = "owensgroup/ml_perf_model (BSD-3-Clause), published latency and bus bandwidth"


def records(data: Path) -> list[Record]:
    """Return a record for each curve of the shipped file."""
    tables = {curve.key: curve for curve in measured_curves(data)}
    points = {key: curve.points for key, curve in tables.items()}
    result = []
    for key, table in sorted(tables.items()):
        fabric = fabric_of(key.platform)
        reference_time = reference(key, fabric, points)
        error = statistics.fmean(map(abs, leave_one_out_errors(key, fabric, points, twin=True)))
        filled_table = add_powers_of_two(table.points, reference_time)
        times = tuple(map(_rounded, filled_table.times))
        result.append(
            Record(
                key.platform,
                key.ranks,
                key.local,
                key.collective,
                table.source,
                _rounded(error),
                largest=filled_table.sizes[-1],
                sizes=filled_table.sizes,
                times=times,
            )
        )
    return [*result, *_published(data)]


def _published(data: Path) -> Iterator[Record]:
    """Yield the curves of eight V100, for which only latency and bandwidth were published.

    Their error is the error of latency and bandwidth on four V100, whose points are known.
    """
    curves = v100_points(data / V100)
    with (data / PARAMETERS).open(newline="") as file:
        published = list(csv.DictReader(file))
    row_by_curve = {(row["collective"], int(row["num_gpus"])): row for row in reversed(published)}
    for (name, ranks), row in sorted(row_by_curve.items()):
        if ranks == 8:
            points = curves[Key("v100", 4, 4, name)]
            four, eight = _line(row_by_curve[name, 4]), _line(row)
            error = statistics.fmean(abs(four.time(s) / t - 1.0) for s, t in points.items())
            alpha, slope = _rounded(eight.alpha), _rounded(eight.per_byte)
            yield Record("v100", 8, 8, name, PUBLISHED, _rounded(error), alpha, slope)


def _line(row: Mapping[str, str]) -> Form:
    """Return published latency and bus bandwidth as a form."""
    share = traffic(row["collective"], int(row["num_gpus"]))
    return Form(float(row["overhead_us"]), share / float(row["max_bus_bw_GBps"]) / 1e3)


def _rounded(number: float) -> float:
    return float(f"{number:.5g}")


def main(arguments: Sequence[str]) -> None:
    """Write the file; the only argument is the folder of published measurements."""
    data = msgspec.json.encode(records(Path(arguments[0])))
    path = Path(__file__).parent / "fitted.json"
    path.write_bytes(data.replace(b"},{", b"},\n{") + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
