"""``irgraph evaluate collectives``: curves beside what they have not seen."""

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

BAR = 6.0
"""Mean absolute error in percent that points left out should stay below on every table."""


class CollectiveEvaluation(Struct, frozen=True):
    """Everything ``irgraph evaluate collectives`` shows.

    Attributes:
        points: each point of a measured table left out in turn.
        alone: the same where the twin's point of that size is left out, too.
        sizes: sizes that were held back from the tables.
        ranks: tables carried to other numbers of ranks of one machine.
        machines: tables of one machine carried to two.
        fabrics: NCCL's model alone on platforms that it has not seen.
    """

    points: Sequence[CurveErrors]
    alone: Sequence[CurveErrors]
    sizes: Sequence[CurveErrors]
    ranks: Sequence[CurveErrors]
    machines: Sequence[CurveErrors]
    fabrics: Sequence[CurveErrors]

    def render(self) -> list[RenderableType]:
        """Return a table for each way of leaving out, and a line on the bar."""
        held = [each for each in self.points if each.mape <= BAR]
        line = f"points left out: {len(held)} of {len(self.points)} tables within {BAR:g} %"
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
        held = {each.key: each for each in self.sizes}
        for each, alone in zip(self.points, self.alone, strict=True):
            other = held.get(each.key)
            cells = (f"{other.mape:.1f}", f"{other.inside:.0f}") if other else ("", "")
            figures = str(len(each.errors) + 2), f"{each.mape:.1f}", f"{alone.mape:.1f}"
            key = each.key
            table.add_row(key.platform, _layout(key), key.collective, *figures, *cells)
        return table

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values, in percent."""
        parts: Mapping[str, Sequence[CurveErrors]] = {
            "points": self.points,
            "alone": self.alone,
            "sizes": self.sizes,
            "ranks": self.ranks,
            "machines": self.machines,
            "fabrics": self.fabrics,
        }
        means = {name: mean(judged) for name, judged in parts.items()}
        rows = {name: [_record(each) for each in judged] for name, judged in parts.items()}
        return {"evaluation": "collectives", "MAPE_pct": means, "left_out": rows}


def evaluate_collectives() -> CollectiveEvaluation:
    """Judge the times of collectives by the measurements in ``IRGRAPH_DATA``.

    Raises ``IrgraphError`` where the folder is not set.
    """
    data = measurements()
    tables = list(measured_curves(data))
    return CollectiveEvaluation(
        list(errors.of_points(tables)),
        list(errors.of_points(tables, twin=True)),
        list(errors.of_sizes(data, INTERVAL)),
        list(errors.of_ranks(tables)),
        list(errors.of_machines(tables)),
        list(errors.of_fabrics(tables)),
    )


def _record(each: CurveErrors) -> dict[str, Any]:
    key = each.key
    return {
        "platform": key.platform,
        "ranks": key.ranks,
        "local": key.local,
        "collective": key.collective,
        "from": each.source,
        "points": len(each.errors),
        "MAPE": each.mape,
        "worst": 100 * max(each.errors, key=abs),
    }


def _layout(key: Key) -> str:
    machines = key.ranks // key.local
    return f"{machines}x{key.local}" if machines > 1 else str(key.ranks)


def _means(title: str, judged: Sequence[CurveErrors], platform: bool = False) -> Table:
    table = Table("platform" if platform else "from, to", "collective", "MAPE", title=title)
    table.title_justify = "left"
    for (first, name), found in sorted(_parts(judged, platform)):
        table.add_row(first, name, f"{mean(found):.0f}")
    table.add_row("all", "", f"{mean(judged):.0f}")
    return table


def _parts(
    judged: Sequence[CurveErrors], platform: bool
) -> Iterator[tuple[tuple[str, str], list[CurveErrors]]]:
    names = {each.key.platform if platform else _step(each) for each in judged}
    for first in names:
        mine = [each for each in judged if first in (each.key.platform, _step(each))]
        for (_, name), found in by_collective(mine).items():
            if not platform or first == found[0].key.platform:
                yield (first, name), found


def _step(each: CurveErrors) -> str:
    return f"{each.source.partition(' ')[0]} to {each.key.ranks}"


def _machines(judged: Sequence[CurveErrors]) -> Table:
    title = "carried from one machine to two, as published"
    table = Table("platform", "collective", "points", "MAPE", "worst", title=title)
    table.title_justify = "left"
    for each in judged:
        worst = f"{100 * max(each.errors, key=abs):+.0f}"
        row = each.key.platform, each.key.collective, str(len(each.errors)), f"{each.mape:.0f}"
        table.add_row(*row, worst)
    table.add_row("all", "", "", f"{mean(judged):.0f}", "")
    return table
