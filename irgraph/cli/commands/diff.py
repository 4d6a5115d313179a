"""``irgraph diff``: changes between two models, and their effect on the predicted time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli import common as cli
from irgraph.cli.commands.predict import ModeOption, PinnedOption, SoftwareOption
from irgraph.cli.html import HtmlOption

if TYPE_CHECKING:
    from irgraph.predict.difference import Difference
    from irgraph.report.structure import Change

PANEL = "predict"

NO_DEVICE = "none"

MeasuredOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="A measured step time, such as 12.3ms; give both options."),
]


def diff(
    before: cli.ModelArgument,
    after: cli.OtherArgument,
    device: Annotated[
        str | None,
        typer.Option(
            "--device",
            metavar="NAME|FILE|none",
            help="A device sheet (default as in predict); none: structure only.",
        ),
    ] = None,
    host: cli.HostOption = "default",
    dim: cli.DimOption = None,
    mode: ModeOption = "corrected",
    software: SoftwareOption = "torch-2",
    pinned: PinnedOption = None,
    ranks: cli.RanksOption = None,
    fabric: cli.FabricOption = None,
    formulas: cli.FormulasOption = False,
    measured_before: MeasuredOption = None,
    measured_after: MeasuredOption = None,
    timeline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write both timelines for Perfetto, side by side."),
    ] = None,
    html: HtmlOption = None,
    each: Annotated[
        bool, typer.Option("--each", help="One row per op; do not group similar changes.")
    ] = False,
    json: cli.JsonOption = False,
) -> None:
    """Compare two models: ops added, removed, moved and retyped, with the time of each."""
    from irgraph.report.structure import structural_diff

    measured = _measured_times(measured_before, measured_after)
    first, second = (
        cli.with_rank_options(cli.with_dim_options(cli.read_typed_model(path), dim), ranks, fabric)
        for path in (before, after)
    )
    if device == NO_DEVICE:
        _refuse_timeline(timeline)
        changes = structural_diff(first, second)
        if html is not None:
            _write_structure((before, after), changes, html)
        _show(changes, {}, each, json)
        return
    from irgraph.predict.difference import diff as subtract

    difference = subtract(
        first,
        second,
        device=device,
        host=host,
        mode=mode,
        software=software,
        pinned=pinned,
        measured=not formulas,
        step_times=measured,
    )
    if timeline is not None:
        from irgraph.schedule.perfetto import write_side_by_side

        sides = {"before": difference.before.timeline, "after": difference.after.timeline}
        write_side_by_side(sides, timeline)
    figures = difference.summary()
    if html is not None:
        _write(difference, figures, html)
    _show(difference.changes, figures, each, json)


def _write(difference: Difference, figures: dict[str, Any], path: str) -> None:
    from irgraph.cli.html import write_page
    from irgraph.pages.difference import difference_page
    from irgraph.report.structure import group_changes

    write_page(difference_page(difference, group_changes(difference.changes), figures), path)


def _write_structure(names: tuple[str, str], changes: list[Change], path: str) -> None:
    from irgraph.cli.html import write_page
    from irgraph.pages.difference import structure_page
    from irgraph.report.structure import group_changes

    write_page(structure_page(names, group_changes(changes)), path)


def _refuse_timeline(timeline: str | None) -> None:
    from irgraph.diagnostics import fail

    if timeline is not None:
        raise fail("--timeline needs a device: without one there are no times", exit_code=2)


def _measured_times(before: str | None, after: str | None) -> tuple[float, float] | None:
    """Return both measured step times, microseconds; refuse one without the other."""
    from irgraph.diagnostics import fail
    from irgraph.diagnostics.quantities import parse_time

    if before is None and after is None:
        return None
    if before is None or after is None:
        missing = "--measured-before" if before is None else "--measured-after"
        raise fail(f"measured times come in pairs: give {missing} as well", exit_code=2)
    return parse_time(before, "--measured-before"), parse_time(after, "--measured-after")


def _show(changes: list[Change], figures: dict[str, Any], ungrouped: bool, as_json: bool) -> None:
    """Print the figures, if a device was specified, and the changes of the structure."""
    from irgraph.predict.tables import difference_tables
    from irgraph.report.structure import ChangeGroup, group_changes
    from irgraph.report.structure_table import structure_table

    groups = (
        [ChangeGroup(c.kind, c.op.name, [c]) for c in changes]
        if ungrouped
        else group_changes(changes)
    )
    if as_json:
        cli.write_json({**figures, "changes": [group.row() for group in groups]})
        return
    out = cli.console()
    if figures:
        for table in difference_tables(figures):
            out.print(table)
    out.print(structure_table(groups, timed=bool(figures)))
