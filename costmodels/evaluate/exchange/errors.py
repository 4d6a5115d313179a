"""Errors of the times of collectives at points, ranks, machines and fabrics not used for them."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from costmodels.collectives.curve import Curve, CurveTable
from costmodels.collectives.load import Record, fabric_of, find_curve, scale_to_ranks
from costmodels.collectives.measured import (
    MODERN,
    Key,
    MeasuredCurve,
    modern_points,
    published_curves,
)
from costmodels.collectives.nccl import Fabric, Ring, nccl_time
from costmodels.collectives.shape import leave_one_out_errors

COPIES = {"h200": "h100", "b300": "b200", "a100-slow-network": "a100"}
"""Platform with nearly the same links, by platform."""


class CurveErrors(Struct, frozen=True):
    """Signed relative errors of one curve compared with measurements.

    Attributes:
        key: platform, ranks and collective of the measurements.
        errors: errors at the measured sizes.
        half: half width of the 90 % interval, relative to the time; 0 without an interval.
        source: source of the curve, if it is not the platform's own table.
    """

    key: Key
    errors: Sequence[float]
    half: float = 0.0
    source: str = ""

    @property
    def mape(self) -> float:
        """Mean of absolute errors in percent."""
        return 100.0 * statistics.fmean(map(abs, self.errors))

    @property
    def inside(self) -> float:
        """Percent of the points inside the interval."""
        hits = [abs(e) <= self.half * (1 + e) for e in self.errors]
        return 100.0 * statistics.fmean(hits)


def point_errors(tables: Sequence[MeasuredCurve], *, twin: bool = False) -> Iterator[CurveErrors]:
    """Yield errors at each point of each table, predicted by the curve through the others.

    With ``twin``, the size is also removed from the collective that passes the same bytes.
    """
    points = {table.key: table.points for table in tables}
    for key in points:
        yield CurveErrors(
            key, leave_one_out_errors(key, fabric_of(key.platform), points, twin=twin)
        )


def size_errors(data: Path, width: float) -> Iterator[CurveErrors]:
    """Yield errors of shipped curves at held-out sizes; ``width`` is the intervals' factor."""
    for key, points in sorted(modern_points(data / MODERN, "dev").items()):
        curve = find_curve(key.collective, key.ranks, key.platform)
        table = CurveTable(tuple(sorted(points)), tuple(points[s] for s in sorted(points)))
        yield CurveErrors(key, _errors(curve, table), width * curve.error)


def rank_errors(tables: Sequence[MeasuredCurve]) -> Iterator[CurveErrors]:
    """Yield errors of tables scaled to other numbers of ranks of one machine."""
    single_machine = [table for table in tables if table.key.local == table.key.ranks]
    for target in single_machine:
        for source in single_machine:
            same = target.key.platform == source.key.platform
            if same and source.key.collective == target.key.collective and source is not target:
                yield _scaling_errors(source, target)


def machine_errors(tables: Sequence[MeasuredCurve]) -> Iterator[CurveErrors]:
    """Yield errors of tables of one machine scaled to two, if those were published."""
    for target in published_curves():
        inside = Key(target.key.platform, target.key.local, target.key.local, target.key.collective)
        for source in tables:
            if source.key == inside:
                yield _scaling_errors(source, target)


def fabric_errors(tables: Sequence[MeasuredCurve]) -> Iterator[CurveErrors]:
    """Yield errors of NCCL's model alone, its launch fitted without the platform and its copies."""
    single_machine = [table for table in tables if table.key.local == table.key.ranks]
    launches = {table.key: _launch(table) for table in single_machine}
    for table in single_machine:
        kind = _kind(table.key)
        other_launches = [launch for key, launch in launches.items() if _kind(key) != kind]
        ring = Ring(table.key.ranks, table.key.ranks, fabric_of(table.key.platform))
        curve = _Model(table.key.collective, ring, statistics.median(other_launches))
        if table.key.platform != "v100":  # measured with a release that takes 80 us to start
            yield CurveErrors(table.key, _errors(curve, table.points))


def launch(tables: Sequence[MeasuredCurve]) -> float:
    """Return the median microseconds of the smallest messages beyond NCCL's model."""
    single_machine = [f for f in tables if f.key.local == f.key.ranks and f.key.platform != "v100"]
    return statistics.median(map(_launch, single_machine))


def mean(curves: Sequence[CurveErrors]) -> float:
    """Return the mean over curves of their mean absolute errors, in percent."""
    return statistics.fmean(curve.mape for curve in curves)


def by_collective(curves: Sequence[CurveErrors]) -> Mapping[tuple[str, str], list[CurveErrors]]:
    """Return curves by their source and their collective."""
    result: dict[tuple[str, str], list[CurveErrors]] = defaultdict(list)
    for curve in curves:
        result[curve.source, curve.key.collective].append(curve)
    return result


class _Model(Struct, frozen=True):
    collective: str
    ring: Ring
    launch: float

    def time(self, nbytes: float) -> float:
        return nccl_time(self.collective, self.ring, nbytes, self.launch)


def _kind(key: Key) -> str:
    return COPIES.get(key.platform, key.platform)


def _launch(table: MeasuredCurve) -> float:
    key, size = table.key, table.points.sizes[0]
    model = nccl_time(
        key.collective, Ring(key.ranks, key.local, fabric_of(key.platform)), size, 0.0
    )
    return table.points.times[0] - model


def _scaling_errors(source: MeasuredCurve, target: MeasuredCurve) -> CurveErrors:
    fabric: Fabric = fabric_of(target.key.platform)
    key = source.key
    record = Record(
        key.platform,
        key.ranks,
        key.local,
        key.collective,
        source.source,
        0.0,
        sizes=source.points.sizes,
        times=source.points.times,
    )
    curve = scale_to_ranks(
        record, target.key.collective, Ring(target.key.ranks, target.key.local, fabric)
    )
    return CurveErrors(target.key, _errors(curve, target.points), source=f"{key.ranks} ranks")


def _errors(curve: Curve, points: CurveTable) -> list[float]:
    pairs = zip(points.sizes, points.times, strict=True)
    return [curve.time(size) / time - 1.0 for size, time in pairs]
