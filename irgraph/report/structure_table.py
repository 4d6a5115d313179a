"""A structural difference as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from irgraph.report.console import time_text
from irgraph.report.structure import KINDS, ChangeGroup

MAX_GROUPS = 60


def structure_table(groups: Sequence[ChangeGroup], *, timed: bool) -> Table:
    """Return groups of changes as a table; ``timed`` adds predicted device times."""
    counts = {kind: sum(len(g.changes) for g in groups if g.kind == kind) for kind in KINDS}
    summary = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    table = Table(title=f"ops: {summary or 'no difference'}", title_justify="left")
    for name in ("", "op", "what", "where"):
        table.add_column(name, overflow="fold")
    table.add_column("count", justify="right")
    for name in ("before", "after", "change") if timed else ():
        table.add_column(name, justify="right")
    for group in groups[:MAX_GROUPS]:
        description = f"{group.kind} {group.detail}".strip()
        cells = [
            KINDS[group.kind],
            group.name,
            description,
            group.location,
            str(len(group.changes)),
        ]
        table.add_row(*cells, *(_times(*group.times) if timed else ()))
    if len(groups) > MAX_GROUPS:
        table.caption = f"and {len(groups) - MAX_GROUPS} more kinds of change; --json has all"
    elif timed and groups:
        before, after = (sum(group.times[i] for group in groups) for i in (0, 1))
        total = _signed(after - before)
        table.caption = f"times are device work; total change {total}"
    return table


def _times(before: float, after: float) -> list[str]:
    return [
        time_text(before) if before else "",
        time_text(after) if after else "",
        _signed(after - before),
    ]


def _signed(change: float) -> str:
    return f"{'+' if change > 0 else ''}{time_text(change)}" if change else ""
