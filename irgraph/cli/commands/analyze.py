"""``irgraph analyze``: breakdown of the time of recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import (
    CsvOption,
    JsonOption,
    PlotOption,
    print_error,
    writable_path,
    write_csv,
    write_json,
)
from irgraph.cli.html import HtmlOption
from irgraph.cli.traces import (
    TraceOptions,
    TracesArgument,
    print_rows,
    record_cells,
    repair_exit_code,
)

if TYPE_CHECKING:
    from irgraph.analyze import Analysis
    from irgraph.capture.kineto.events.tree import Tree

PANEL = "traces"

VIEWS = {
    "op": "device work by operator",
    "family": "device work by kernel family",
    "kernel": "dominating kernels",
    "module": "device work by module",
    "phase": "device work by phase",
    "annotation": "device work by annotation",
}

DETAILS = {
    "queues": "launches waiting for streams",
    "launches": "launches by function and kernel, the most that take longer than their work first",
    "configurations": "kernels by grid, block, registers, shared memory and occupancy",
    "sequences": "kernels that follow each other",
    "memory": "peaks of memory",
    "path": "critical path of the last usual step",
}


def analyze(
    traces: TracesArgument,
    longest: Annotated[int, typer.Option(min=1, help="Rows of each breakdown.")] = 12,
    show: Annotated[
        list[str] | None,
        typer.Option("--show", metavar="TABLE", help=f"One more table: {', '.join(DETAILS)}."),
    ] = None,
    plot: PlotOption = None,
    *,
    reading: TraceOptions,
    timeline: Annotated[
        str | None,
        typer.Option(
            "--timeline",
            metavar="FILE",
            help="Write the last usual step of every rank to one file for Perfetto.",
            callback=lambda path: writable_path(path),
        ),
    ] = None,
    html: HtmlOption = None,
    csv: CsvOption = None,
    json: JsonOption = False,
) -> None:
    """Show step times, GPU activity, breakdowns, communication and idle time of traces."""
    from irgraph.analyze import analyze as run

    trees = reading.trees(traces)
    result = run(trees)
    if plot is not None:
        result.plot().save(plot)
    if timeline is not None:
        _write_timeline(trees, timeline)
    more = _details(trees, show or [])
    if html is not None:
        from irgraph.cli.html import write_page
        from irgraph.pages.analysis import analysis_page

        write_page(analysis_page(result, trees, more), html)
    if csv is not None:
        write_csv({**result.tables(), **more}, csv)
    if json:
        reports = [tree.trace.health.rows() for tree in trees]
        write_json({**result.as_json(), **more, "health": reports})
    elif csv is None:
        _show(result, [r for tree in trees for r in tree.trace.health.reasons()], longest)
        for name, title in DETAILS.items():
            print_rows(title, [_short_cells(row) for row in more.get(name, [])[:longest]])
    raise typer.Exit(repair_exit_code(trees))


def _details(trees: list[Tree], names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the tables requested by ``--show``; report traces without memory events."""
    from irgraph.analyze import launches, memory
    from irgraph.diagnostics import fail, suggestion

    for name in names:
        if name not in DETAILS:
            hint = f"known: {', '.join(DETAILS)}"
            raise fail(
                f"--show: no table {name!r}{suggestion(name, DETAILS)}", hint=hint, exit_code=2
            )
    makers = {
        "queues": launches.queues,
        "launches": launches.launch_delays,
        "configurations": launches.configurations,
        "sequences": launches.sequences,
        "memory": memory.memory_peaks,
        "path": launches.critical_work,
    }
    tables = {name: makers[name](trees) for name in dict.fromkeys(names)}
    if "memory" in tables:
        tables["memory_timeline"] = memory.memory_timeline(trees)
        unrecorded = [tree.trace.source for tree in trees if not tree.trace.memory.size]
        for source in unrecorded:
            print_error(f"{source}: no [memory] events were read: record with profile_memory=True")
    return tables


def _short_cells(record: dict[str, Any]) -> dict[str, str]:
    """Return the cells of a record; names of kernels in a sequence are shortened."""
    if "sequence" in record:
        names = (part.partition("<")[0] for part in record["sequence"].split(" → "))
        record = record | {"sequence": " → ".join(name.rpartition("::")[2][:28] for name in names)}
    return record_cells(record)


def _write_timeline(trees: list[Tree], path: str) -> None:
    """Write the last typical step of each rank as tracks of one file, all starting at zero."""
    from irgraph.replay.recorded_step import RecordedStep
    from irgraph.replay.replay import select_typical_steps
    from irgraph.schedule.perfetto import write_side_by_side

    steps = {}
    for number, tree in enumerate(trees):
        typical = select_typical_steps(tree)
        name = f"rank {tree.trace.rank}"
        if typical:
            steps[name if name not in steps else f"trace {number}"] = RecordedStep(
                tree, typical[-1]
            )
        else:
            print_error(f"--timeline: {tree.trace.source} has no usual step, and is left out")
    write_side_by_side(steps, path)


def _show(result: Analysis, reasons: list[str], longest: int) -> None:
    coverage = "" if result.covered is None else f" ({result.covered:.1%} of the device time)"
    print_rows(f"steps{coverage}", [_step(step.row()) for step in result.steps], reasons)
    for grouping, title in VIEWS.items():
        rows = result.breakdowns[grouping]
        if set(rows) <= {"(no module)", "(no annotation)"}:
            continue
        total = sum(us for us, _ in rows.values()) or 1.0
        rows_to_print = [
            {
                grouping: key[:90],
                "us a step": f"{us:.1f}",
                "share": f"{us / total:.1%}",
                "events a step": f"{count:.1f}",
            }
            for key, (us, count) in list(rows.items())[:longest]
        ]
        print_rows(title, rows_to_print)
    idle = sum(result.idle.values()) or 1.0
    on_device = any(step.on_device for step in result.steps)
    title = "device idle, by what the host did" if on_device else "time of the host"
    causes = [
        {"the host meanwhile": cause, "us a step": f"{us:.1f}", "share": f"{us / idle:.1%}"}
        for cause, us in result.idle.items()
        if us > 0
    ]
    print_rows(title, causes)
    if not on_device:
        print_rows("time of the host by operator", _host_rows(result, longest))
    _collectives(result, longest)
    if not on_device:
        return
    rows_to_print = [
        {"device events": key, "count": str(count)} for key, count in result.orphans.items()
    ]
    print_rows("attribution", rows_to_print)


def _collectives(result: Analysis, longest: int) -> None:
    """Print collectives by kind, and the waiting times between ranks."""
    rows = [record_cells(row) for row in result.collectives_by_kind[:longest]]
    is_separated = any(row["transfer_us"] is not None for row in result.collectives_by_kind)
    footnotes = (
        []
        if is_separated
        else ["one rank alone does not separate transfer from waiting: bandwidths are lower bounds"]
    )
    incomplete = sum(row["transfer_us"] is None for row in result.collectives)
    if is_separated and incomplete:
        footnotes = [
            f"{incomplete} collectives are not in all traces: transfer and waiting not separated"
        ]
    print_rows("collectives", rows, footnotes)
    print_rows("ranks in collectives, a step", list(map(record_cells, result.stragglers)))


def _host_rows(result: Analysis, longest: int) -> list[dict[str, Any]]:
    total = sum(self_us for self_us, _, _ in result.host.values()) or 1.0
    return [
        {
            "op": name[:90],
            "self us a step": f"{self_us:.1f}",
            "share": f"{self_us / total:.1%}",
            "us a step": f"{total_us:.1f}",
            "calls a step": f"{calls:.1f}",
        }
        for name, (self_us, total_us, calls) in list(result.host.items())[:longest]
    ]


def _step(row: dict[str, Any]) -> dict[str, Any]:
    def ms(key: str) -> str:
        return "-" if row[key] is None else f"{row[key] / 1000:.3f}"

    return {
        "rank": row["rank"],
        "step": row["step"],
        "step ms": ms("step_us"),
        "GPU active ms": ms("gpu_active_us"),
        "GPU idle ms": ms("gpu_idle_us"),
        "utilization": "-" if row["utilization"] is None else f"{row['utilization']:.1%}",
        "compute ms": ms("compute_us"),
        "copies ms": ms("copies_us"),
        "communication ms": ms("communication_us"),
        "exposed ms": ms("exposed_communication_us"),
        "note": f"{row['left_out']}: left out" if row["left_out"] else "",
    }
