"""Write the shipped curves from published measurements.

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
from costmodels.collectives.measured import PARAMETERS, V100, Key, measured, v100
from costmodels.collectives.shape import filled, left_out, reference

PUBLISHED = "owensgroup/ml_perf_model (BSD-3-Clause), published latency and bus bandwidth"


def records(data: Path) -> list[Record]:
    """Return a record for each curve, as the shipped file has them."""
    tables = {found.key: found for found in measured(data)}
    points = {key: found.points for key, found in tables.items()}
    found = []
    for key, table in sorted(tables.items()):
        fabric = fabric_of(key.platform)
        bent = reference(key, fabric, points)
        error = statistics.fmean(map(abs, left_out(key, fabric, points, twin=True)))
        every = filled(table.points, bent)
        times = tuple(map(_rounded, every.times))
        found.append(
            Record(
                key.platform,
                key.ranks,
                key.local,
                key.collective,
                table.source,
                _rounded(error),
                largest=every.sizes[-1],
                sizes=every.sizes,
                times=times,
            )
        )
    return [*found, *_published(data)]


def _published(data: Path) -> Iterator[Record]:
    """Yield the curves of eight V100, of which only latency and bandwidth were published.

    Their error is that of latency and bandwidth alone on four V100, whose points are known.
    """
    curves = v100(data / V100)
    with (data / PARAMETERS).open(newline="") as file:
        published = list(csv.DictReader(file))
    known = {(row["collective"], int(row["num_gpus"])): row for row in reversed(published)}
    for (name, ranks), row in sorted(known.items()):
        if ranks == 8:
            points = curves[Key("v100", 4, 4, name)]
            four, eight = _line(known[name, 4]), _line(row)
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
    """Write the file; the one argument is the folder of published measurements."""
    data = msgspec.json.encode(records(Path(arguments[0])))
    path = Path(__file__).parent / "fitted.json"
    path.write_bytes(data.replace(b"},{", b"},\n{") + b"\n")


if __name__ == "__main__":
    main(sys.argv[1:])
