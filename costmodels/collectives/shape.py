"""Tables between their points: the share of NCCL's own model is interpolated, not the time.

Where NCCL changes its protocol the time bends, and the model of NCCL knows about where. An
all-gather and a reduce-scatter pass the same bytes around the same ring and change protocols
alike, so each bends where the other was measured to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import exp, log

import numpy as np
from msgspec import Struct

from costmodels.collectives.curve import Table
from costmodels.collectives.measured import Key
from costmodels.collectives.nccl import Fabric, Ring, tuned

TWINS = {"all_gather_base": "reduce_scatter", "reduce_scatter": "all_gather_base"}
"""Collectives that pass the same bytes the same way."""

Reference = Callable[[float], float]


class ReferenceCurve(Struct, frozen=True):
    """Measured points over a reference: between two, the logarithm of their ratio is linear.

    Attributes:
        points: what was measured.
        reference: microseconds by bytes of what is bent alike.
    """

    points: Table
    reference: Reference

    def time(self, nbytes: float) -> float:
        """Return the microseconds for a message of so many bytes; beyond the ends as there."""
        pairs = zip(self.points.sizes, self.points.times, strict=True)
        ratios = [log(time / self.reference(size)) for size, time in pairs]
        share = float(np.interp(log(nbytes), np.log(self.points.sizes), ratios))
        return exp(share) * self.reference(nbytes)


def reference(
    key: Key, fabric: Fabric, tables: Mapping[Key, Table], without: float = 0.0
) -> Reference:
    """Return what a table is bent like: NCCL's model, shaped by the table of its twin.

    ``without`` is a size in bytes at which the twin is taken not to be known.
    """
    model = model_of(key, fabric)
    twin = Key(key.platform, key.ranks, key.local, TWINS.get(key.collective, ""))
    if twin not in tables:
        return model
    points = _without(tables[twin], without)
    shaped = ReferenceCurve(points, model_of(twin, fabric))

    def bent(nbytes: float) -> float:
        inside = min(max(nbytes, points.sizes[0]), points.sizes[-1])
        return shaped.time(inside) * model(nbytes) / model(inside)

    return bent


def model_of(key: Key, fabric: Fabric) -> Reference:
    """Return NCCL's model of a collective over the bytes of its message."""
    ring = Ring(key.ranks, key.local, fabric)
    return lambda nbytes: tuned(key.collective, ring, nbytes)


def filled(points: Table, bent: Reference) -> Table:
    """Return a table with the powers of two between its points, where the shape puts them."""
    shaped = ReferenceCurve(points, bent)
    sizes = {*points.sizes}
    power = 1.0
    while power < points.sizes[-1]:
        sizes |= {power} if power > points.sizes[0] else set()
        power *= 2
    known = dict(zip(points.sizes, points.times, strict=True))
    every = sorted(sizes)
    return Table(tuple(every), tuple(known.get(s) or shaped.time(s) for s in every))


def left_out(key: Key, fabric: Fabric, tables: Mapping[Key, Table], *, twin: bool) -> list[float]:
    """Return the signed relative error at each inner point of a table by the others.

    With ``twin`` the twin's point of that size is left out, too.
    """
    points = tables[key]
    whole = reference(key, fabric, tables)
    errors = []
    for size, time in list(zip(points.sizes, points.times, strict=True))[1:-1]:
        bent = reference(key, fabric, tables, size) if twin else whole
        errors.append(ReferenceCurve(_without(points, size), bent).time(size) / time - 1.0)
    return errors


def _without(points: Table, size: float) -> Table:
    pairs = zip(points.sizes, points.times, strict=True)
    kept = [pair for pair in pairs if pair[0] != size]
    return Table(tuple(s for s, _ in kept), tuple(t for _, t in kept))
