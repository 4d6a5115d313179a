"""What the commands that read traces share."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import console, say

if TYPE_CHECKING:
    from irgraph.capture.kineto.tree import Tree

TracesArgument = Annotated[
    list[str], typer.Argument(metavar="TRACE...", help="Kineto traces, one for each rank; or -.")
]
StrictOption = Annotated[
    bool, typer.Option("--strict", help="Refuse traces that need repairs (exit code 4).")
]
HealthOption = Annotated[
    bool, typer.Option("--health", help="Show the health report even where it is clean.")
]
OutliersOption = Annotated[
    str, typer.Option("--outliers", metavar="RULE", help="all, whiskers, trimmed or median.")
]


def read_trees(paths: Sequence[str], *, strict: bool, health: bool) -> list[Tree]:
    """Return the event trees of traces; say on standard error what was found in them."""
    from irgraph.capture.kineto import read_kineto
    from irgraph.capture.kineto.tree import build_tree

    trees = []
    for path in paths:
        tree = build_tree(read_kineto(path, strict=strict, progress=_progress()))
        report = tree.trace.health
        if health or report.repaired:
            for line in report.lines():
                say(line)
        trees.append(tree)
    return sorted(trees, key=lambda tree: tree.trace.rank)


def _progress() -> Any:  # noqa: ANN401
    """Return a function that shows how many events were read, where someone looks on."""
    if not sys.stderr.isatty():
        return None

    def show(events: int) -> None:
        if events > 200_000:
            sys.stderr.write(f"\r{events:,} events read\r")

    return show


def repaired(trees: Sequence[Tree]) -> int:
    """Return the exit code for what was read: 3 where any trace was repaired, else 0."""
    return max((tree.trace.health.exit_code for tree in trees), default=0)


def print_rows(title: str, rows: Sequence[dict[str, Any]]) -> None:
    """Print rows as a table, numbers to the right."""
    from rich.table import Table

    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for key, value in rows[0].items():
        number = isinstance(value, (int, float)) or str(value)[:1] in "+-0123456789"
        table.add_column(key, justify="right" if number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(str, row.values()))
    console().print(table)
