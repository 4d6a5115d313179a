"""Interpolation of tables: the ratio to NCCL's own model is interpolated, not the time.

The time has a kink where NCCL changes its protocol, and NCCL's model predicts about where. An
all-gather and a reduce-scatter pass the same bytes around the same ring and change protocols at the
same sizes, so the measured shape of each is used for the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log

import numpy as np
from msgspec import Struct

from costmodels.collectives.curve import CurveTable
from costmodels.collectives.measured import Key
from costmodels.collectives.nccl import Fabric, Ring, nccl_time

TWINS = {"all_gather_base": "reduce_scatter", "reduce_scatter": "all_gather_base"}
"""Collective that passes the same bytes the same way, by collective."""

Reference = Callable[[float], float]


class ReferenceCurve(Struct, frozen=True):
    """Measured points over a reference: between two, the logarithm of their ratio is linear.

    Attributes:
        points: measured points.
        reference: function from bytes to microseconds with the same shape as the points.
    """

    points: CurveTable
    reference: Reference

    def time(self, nbytes: float) -> float:
        """Return the microseconds of a message; beyond the ends the ratio is constant."""
        pairs = zip(self.points.sizes, self.points.times, strict=True)
        ratios = [log(time / self.reference(size)) for size, time in pairs]
        share = float(np.interp(log(nbytes), np.log(self.points.sizes), ratios))
        return exp(share) * self.reference(nbytes)


def reference(
    key: Key, fabric: Fabric, tables: Mapping[Key, CurveTable], without: float = 0.0
) -> Reference:
    """Return the reference of a table: NCCL's model, shaped by the table of its twin.

    ``without`` is a size in bytes that is removed from the twin's table.
    """
    model = model_of(key, fabric)
    twin = Key(key.platform, key.ranks, key.local, TWINS.get(key.collective, ""))
    if twin not in tables:
        return model
    points = _remove_size(tables[twin], without)
    twin_curve = ReferenceCurve(points, model_of(twin, fabric))

    def shaped_reference(nbytes: float) -> float:
        inside = min(max(nbytes, points.sizes[0]), points.sizes[-1])
        return twin_curve.time(inside) * model(nbytes) / model(inside)

    return shaped_reference


def model_of(key: Key, fabric: Fabric) -> Reference:
    """Return NCCL's model of a collective as a function of the bytes of its message."""
    ring = Ring(key.ranks, key.local, fabric)
    return lambda nbytes: nccl_time(key.collective, ring, nbytes)


def add_powers_of_two(points: CurveTable, reference_time: Reference) -> CurveTable:
    """Return a table with interpolated points at the powers of two between its points."""
    curve = ReferenceCurve(points, reference_time)
    sizes = {*points.sizes}
    power = 1.0
    while power < points.sizes[-1]:
        sizes |= {power} if power > points.sizes[0] else set()
        power *= 2
    time_by_size = dict(zip(points.sizes, points.times, strict=True))
    sorted_sizes = sorted(sizes)
    return CurveTable(
        tuple(sorted_sizes), tuple(time_by_size.get(s) or curve.time(s) for s in sorted_sizes)
    )


def leave_one_out_errors(
    key: Key, fabric: Fabric, tables: Mapping[Key, CurveTable], *, twin: bool
) -> list[float]:
    """Return the signed relative error at each inner point of a table, predicted by the others.

    With ``twin``, the twin's point of that size is removed as well.
    """
    points = tables[key]
    full_reference = reference(key, fabric, tables)
    errors = []
    for size, time in list(zip(points.sizes, points.times, strict=True))[1:-1]:
        reference_time = reference(key, fabric, tables, size) if twin else full_reference
        errors.append(
            ReferenceCurve(_remove_size(points, size), reference_time).time(size) / time - 1.0
        )
    return errors


def _remove_size(points: CurveTable, size: float) -> CurveTable:
    pairs = zip(points.sizes, points.times, strict=True)
    remaining = [pair for pair in pairs if pair[0] != size]
    return CurveTable(tuple(s for s, _ in remaining), tuple(t for _, t in remaining))
