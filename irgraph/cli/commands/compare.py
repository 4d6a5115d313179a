"""``irgraph compare``: differences between two traces of one program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import CsvOption, JsonOption, print_error, write_csv, write_json
from irgraph.cli.html import HtmlOption
from irgraph.cli.traces import TraceOptions, print_rows, repair_exit_code

if TYPE_CHECKING:
    from irgraph.analyze.compare import TimeChange

PANEL = "traces"


def compare(
    before: Annotated[
        str, typer.Argument(metavar="BEFORE", help="A Kineto trace, or a folder of recordings.")
    ],
    after: Annotated[
        str, typer.Argument(metavar="AFTER", help="Another trace of the same program.")
    ],
    by: Annotated[
        str,
        typer.Option(metavar="KEY", help="op, kernel, family, module, phase, annotation or host."),
    ] = "op",
    longest: Annotated[int, typer.Option(min=1, help="Rows to show.")] = 20,
    *,
    reading: TraceOptions,
    html: HtmlOption = None,
    csv: CsvOption = None,
    json: JsonOption = False,
) -> None:
    """Compare the mean usual steps of two traces: what takes longer, is new, or is gone."""
    from irgraph.analyze import analyze
    from irgraph.analyze.compare import compare as run

    trees = [reading.trees([path]) for path in (before, after)]
    old, new = map(analyze, trees)
    figures, parts = run(old, new, by)
    all_trees = [tree for group in trees for tree in group]
    if html is not None:
        from irgraph.cli.html import write_page
        from irgraph.pages.analysis import comparison_page

        write_page(comparison_page((before, after), figures, parts, by, trees), html)
    tables = {"step": [c.row() for c in figures], by: [c.row() for c in parts]}
    if csv is not None:
        write_csv(tables, csv)
    if json:
        write_json(tables)
    elif csv is None:
        reasons = [reason for tree in all_trees for reason in tree.trace.health.reasons()]
        print_rows("mean usual step", [_cells(c) for c in figures], reasons)
        _show(parts, by, longest)
    raise typer.Exit(repair_exit_code(all_trees))


def _show(parts: list[TimeChange], grouping: str, longest: int) -> None:
    subject = "time of the host" if grouping == "host" else "device work"
    rows = [
        {**_cells(c), "calls": f"{c.calls_before:g} → {c.calls_after:g}", "": c.status}
        for c in parts[:longest]
    ]
    print_rows(f"{subject} a step by {grouping}, largest change first", rows)
    total_us = sum(c.delta for c in parts)
    listed_us = sum(c.delta for c in parts[:longest])
    before, after = sum(c.before for c in parts), sum(c.after for c in parts)
    print_error(
        f"{subject} in all: {before:.1f} → {after:.1f} us a step, {total_us:+.1f} us, of which "
        f"{listed_us:+.1f} us are shown"
    )


def _cells(change: TimeChange) -> dict[str, Any]:
    share = f"{change.after / change.before - 1:+.1%}" if change.before else "-"
    return {
        "name": change.name[:90],
        "before us": f"{change.before:.1f}",
        "after us": f"{change.after:.1f}",
        "change us": f"{change.delta:+.1f}",
        "change": share,
    }
