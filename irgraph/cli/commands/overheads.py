"""``irgraph overheads``: host tables from traces, joined and compared."""

from __future__ import annotations

import math
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import (
    CsvOption,
    JsonOption,
    OutputOption,
    PlotOption,
    print_error,
    write_csv,
    write_json,
    write_result,
)
from irgraph.cli.traces import OutliersOption, TraceOptions, print_rows, repair_exit_code

if TYPE_CHECKING:
    from irgraph.capture.kineto.events.tree import Tree
    from irgraph.overheads.extract import ProfilerCost
    from irgraph.overheads.format import HostFile, Stat
    from irgraph.overheads.recording import ProfilerRecording
    from irgraph.overheads.samples import Samples

PANEL = "traces"


def overheads(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="TRACE|TABLE...", help="Kineto traces or host tables, merged."),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the table.")] = None,
    outliers: OutliersOption = "all",
    profiler: Annotated[
        str | None,
        typer.Option(
            metavar="HOST,DEVICE",
            help="Microseconds the profiler adds to a host event and to a launch; 0,0 for none. "
            "By default an estimate by what the trace recorded.",
        ),
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="NAME|FILE", help="Compare with another table.")
    ] = None,
    longest: Annotated[int, typer.Option(min=1, help="Operations to list.")] = 20,
    plot: PlotOption = None,
    output: OutputOption = None,
    *,
    reading: TraceOptions,
    json: JsonOption = False,
    csv: CsvOption = None,
) -> None:
    """Extract host overheads T1-T5 from traces; merge, save and compare them."""
    import msgspec

    from irgraph.overheads.table import load_host

    file, code = _table(sources, name, outliers, _cost(profiler), reading)
    other = load_host(compare).file if compare is not None else None
    if plot is not None:
        from irgraph.analyze.plots import draw_overheads

        draw_overheads(file, plot)
    if output is not None:
        text = msgspec.json.format(msgspec.json.encode(file), indent=1).decode() + "\n"
        write_result(text, output)
    if csv is not None:
        write_csv({"overheads": _records(file, other)}, csv)
    if json:
        write_json(msgspec.to_builtins(file))
    elif output != "-" and csv is None:
        _show(file, other, longest)
    raise typer.Exit(code)


def _cost(text: str | None) -> ProfilerCost | None:
    from irgraph.diagnostics import fail
    from irgraph.overheads.extract import ProfilerCost

    if text is None:
        return None
    try:
        host, device = (float(part) for part in text.split(","))
    except ValueError:
        host = device = math.nan
    if not (0 <= host < math.inf and 0 <= device < math.inf):
        message = f"--profiler: give two numbers of at least 0 such as 2,4, not {text!r}"
        raise fail(message, exit_code=2)
    return ProfilerCost(host, device)


def _print_clipped(samples: list[Samples], costs: list[ProfilerCost]) -> None:
    """Print the numbers of samples that are shorter than the profiler's cost."""
    from irgraph.overheads.extract import clipped_counts

    counts_by_kind = clipped_counts(samples, costs)
    if not counts_by_kind:
        return
    counts = ", ".join(
        f"{short} of {count} of {kind}" for kind, (short, count) in counts_by_kind.items()
    )
    print_error(
        f"note: samples shorter than the profiler's cost, counted as 0: {counts}; if there "
        "are many, measure this machine's cost with `irgraph calibrate-profiler`"
    )


def _table(
    sources: list[str],
    name: str | None,
    outliers: str,
    cost: ProfilerCost | None,
    reading: TraceOptions,
) -> tuple[HostFile, int]:
    """Return the merged table of all sources, and the exit code for repaired traces."""
    from msgspec.structs import replace

    from irgraph.backend import architecture_of
    from irgraph.diagnostics import fail
    from irgraph.overheads.cpu_calls import is_cpu_trace
    from irgraph.overheads.extract import NO_COST, extract, merge, subtract_cost
    from irgraph.overheads.rules import find_rule
    from irgraph.overheads.table import is_table, load_host

    rule = find_rule(outliers)
    title = name or Path(sources[0]).name.partition(".")[0]
    tables = [source for source in sources if is_table(source)]
    files = [load_host(source).file for source in tables]
    traces = [source for source in sources if source not in tables]
    if tables and outliers != "all":
        raise fail(
            f"--outliers {outliers}: {tables[0]} is a table, which has no samples to select from",
            hint="name traces only",
            exit_code=2,
        )
    trees = reading.trees(traces)
    if trees:
        from irgraph.replay.replay import build_replayer

        samples = [
            build_replayer(tree).samples().require_sufficient(tree.trace.source) for tree in trees
        ]
        recordings = _print_recordings(trees, cost)
        costs = [cost or recording.cost for recording in recordings]
        _print_clipped(samples, costs)
        parts = map(subtract_cost, samples, costs)
        notes = dict.fromkeys(r.description for r in recordings if cost is None)
        names = ", ".join(Path(tree.trace.source).name for tree in trees)
        cards = {
            "cpu" if is_cpu_trace(tree.trace) else architecture_of(tree.trace.device_name)
            for tree in trees
        }
        card = cards.pop() if len(cards) == 1 else ""
        file = extract(
            parts,
            title,
            rule=rule,
            cost=NO_COST,
            source=names,
            architecture=card,
            description="; ".join(notes),
        )
        if cost is None:
            deviations = [r.relative_std(s) for r, s in zip(recordings, samples, strict=True)]
            file = replace(file, recording_std=round(max(deviations), 3))
        file = replace(file, profiled=not any(cost.host or cost.device for cost in costs))
        files.append(file)
    return (files[0] if len(files) == 1 else merge(files, title)), repair_exit_code(trees)


def _print_recordings(trees: list[Tree], cost: ProfilerCost | None) -> list[ProfilerRecording]:
    """Return the recording of each trace; print the estimate of its cost.

    Raises ``IrgraphError`` for a recording of unknown cost, unless the user gives one.
    """
    from irgraph.overheads.recording import recording_of, require_no_observer

    recordings = [recording_of(tree) for tree in trees]
    for tree, recording in zip(trees, recordings, strict=True):
        if cost is None:
            require_no_observer(recording, tree.trace.source)
            print_error(f"note: {Path(tree.trace.source).name}: {recording.description}")
        elif recording.observer:
            print_error(f"warning: {Path(tree.trace.source).name}: host times include an observer")
    return recordings


def _records(file: HostFile, other: HostFile | None) -> list[dict[str, Any]]:
    """Return all figures of a table, with the means of another table if there is one."""
    if other is None:
        return file.records()
    key = itemgetter("kind", "operation", "shapes")
    other_means = {key(row): row["mean_us"] for row in other.records()}
    return [{**row, "other_mean_us": other_means.get(key(row))} for row in file.records()]


def _show(file: HostFile, other: HostFile | None, longest: int) -> None:
    rows = [_row("T1", "", file.t1, other.t1 if other else None)]
    for function, stat in file.t4.items():
        rows.append(_row("T4", function, stat, other.t4.get(function) if other else None))
    costs = [
        (stat.mean * stat.count, kind, op, stat)
        for op, entry in file.ops.items()
        for kind in ("t2", "t3", "t5", "whole")
        if (stat := getattr(entry, kind)) is not None
    ]
    costs.sort(key=lambda cost: -cost[0])
    for _, kind, op, stat in costs[:longest]:
        entry = other.ops.get(op) if other else None
        other_stat = getattr(entry, kind) if entry is not None else None
        rows.append(_row(kind.replace("t", "T"), op, stat, other_stat))
    if other is None:
        rows = [{k: v for k, v in row.items() if k != "other us"} for row in rows]
    print_rows(f"host overheads: {file.name}", rows)
    print_error(f"{len(file.ops)} operations; listed by their share of all host time")


def _row(kind: str, name: str, stat: Stat, other: Stat | None) -> dict[str, Any]:
    return {
        "": kind,
        "operation": name,
        "mean us": f"{stat.mean:.2f}",
        "std": f"{stat.std:.2f}",
        "count": str(stat.count),
        **{name: _quantile(stat, name) for name in ("p50", "p95")},
        "other us": f"{other.mean:.2f}" if other else "",
    }


def _quantile(stat: Stat, name: str) -> str:
    """Return a quantile, or a dash if the table lacks it."""
    return f"{stat.quantiles[name]:.1f}" if name in stat.quantiles else "-"
