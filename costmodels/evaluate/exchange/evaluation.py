"""``irgraph evaluate collectives``: curves compared with measurements not used for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct
from rich.console import RenderableType
from rich.table import Table

from costmodels.collectives.measured import Key, measured_curves
from costmodels.evaluate.exchange import errors
from costmodels.evaluate.exchange.errors import CurveErrors, by_collective, mean
from costmodels.evaluate.measurements import measurements
from costmodels.families.collective import INTERVAL

MAX_MAPE = 6.0
"""Target for the mean absolute error in percent of left-out points, on every table."""


class CollectiveEvaluation(Struct, frozen=True):
    """Result of ``irgraph evaluate collectives``.

    Attributes:
        points: each point of a measured table left out in turn.
        without_twins: the same if the twin's point of that size is left out as well.
        sizes: sizes that were held out of the tables.
        ranks: tables scaled to other numbers of ranks of one machine.
        machines: tables of one machine scaled to two.
        fabrics: NCCL's model alone on platforms that were not used for it.
    """

    points: Sequence[CurveErrors]
    without_twins: Sequence[CurveErrors]
    sizes: Sequence[CurveErrors]
    ranks: Sequence[CurveErrors]
    machines: Sequence[CurveErrors]
    fabrics: Sequence[CurveErrors]

    def render(self) -> list[RenderableType]:
        """Return a table for each kind of errors, and a line on the target of left-out points."""
        within_bar = [curve for curve in self.points if curve.mape <= MAX_MAPE]
        line = (
            f"points left out: {len(within_bar)} of {len(self.points)} tables within {MAX_MAPE:g} %"
        )
        return [
            self._tables(),
            line,
            _means("carried to other ranks of a machine", self.ranks),
            _machines(self.machines),
            _means("NCCL's model alone, platform unseen", self.fabrics, platform=True),
        ]

    def _tables(self) -> Table:
        heads = ("platform", "ranks", "collective", "points", "left out", "with its twin's")
        table = Table(*heads, "held out", "in interval", title_justify="left")
        table.title = "measured tables, MAPE in percent"
        held_out_by_key = {curve.key: curve for curve in self.sizes}
        for curve, without_twin in zip(self.points, self.without_twins, strict=True):
            other = held_out_by_key.get(curve.key)
            cells = (f"{other.mape:.1f}", f"{other.inside:.0f}") if other else ("", "")
            figures = str(len(curve.errors) + 2), f"{curve.mape:.1f}", f"{without_twin.mape:.1f}"
            key = curve.key
            table.add_row(key.platform, _layout(key), key.collective, *figures, *cells)
        return table

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values, in percent."""
        parts: Mapping[str, Sequence[CurveErrors]] = {
            "points": self.points,
            "alone": self.without_twins,
            "sizes": self.sizes,
            "ranks": self.ranks,
            "machines": self.machines,
            "fabrics": self.fabrics,
        }
        means = {name: mean(curves) for name, curves in parts.items()}
        rows = {name: [_record(curve) for curve in curves] for name, curves in parts.items()}
        return {"evaluation": "collectives", "MAPE_pct": means, "left_out": rows}


def evaluate_collectives() -> CollectiveEvaluation:
    """Compare the times of collectives with the measurements in ``IRGRAPH_DATA``.

    Raises ``IrgraphError`` if the folder is not set.
    """
    data = measurements()
    tables = list(measured_curves(data))
    return CollectiveEvaluation(
        list(errors.point_errors(tables)),
        list(errors.point_errors(tables, twin=True)),
        list(errors.size_errors(data, INTERVAL)),
        list(errors.rank_errors(tables)),
        list(errors.machine_errors(tables)),
        list(errors.fabric_errors(tables)),
    )


def _record(curve: CurveErrors) -> dict[str, Any]:
    key = curve.key
    return {
        "platform": key.platform,
        "ranks": key.ranks,
        "local": key.local,
        "collective": key.collective,
        "from": curve.source,
        "points": len(curve.errors),
        "MAPE": curve.mape,
        "worst": 100 * max(curve.errors, key=abs),
    }


def _layout(key: Key) -> str:
    machines = key.ranks // key.local
    return f"{machines}x{key.local}" if machines > 1 else str(key.ranks)


def _means(title: str, curves: Sequence[CurveErrors], platform: bool = False) -> Table:
    table = Table("platform" if platform else "from, to", "collective", "MAPE", title=title)
    table.title_justify = "left"
    for (first, name), group in sorted(_parts(curves, platform)):
        table.add_row(first, name, f"{mean(group):.0f}")
    table.add_row("all", "", f"{mean(curves):.0f}")
    return table


def _parts(
    curves: Sequence[CurveErrors], platform: bool
) -> Iterator[tuple[tuple[str, str], list[CurveErrors]]]:
    names = {curve.key.platform if platform else _scaling_label(curve) for curve in curves}
    for first in names:
        selected = [
            curve for curve in curves if first in (curve.key.platform, _scaling_label(curve))
        ]
        for (_, name), group in by_collective(selected).items():
            if not platform or first == group[0].key.platform:
                yield (first, name), group


def _scaling_label(curve: CurveErrors) -> str:
    return f"{curve.source.partition(' ')[0]} to {curve.key.ranks}"


def _machines(curves: Sequence[CurveErrors]) -> Table:
    title = "carried from one machine to two, as published"
    table = Table("platform", "collective", "points", "MAPE", "worst", title=title)
    table.title_justify = "left"
    for curve in curves:
        worst = f"{100 * max(curve.errors, key=abs):+.0f}"
        row = curve.key.platform, curve.key.collective, str(len(curve.errors)), f"{curve.mape:.0f}"
        table.add_row(*row, worst)
    table.add_row("all", "", "", f"{mean(curves):.0f}", "")
    return table
