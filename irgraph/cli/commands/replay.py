"""``irgraph replay``: a recorded step simulated from its parts, beside what was measured."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer

from irgraph.cli.common import CsvOption, JsonOption, finite, say, write_csv, write_json
from irgraph.cli.traces import (
    HealthOption,
    MarkOption,
    MemoryOption,
    OutliersOption,
    SkipOption,
    StepsOption,
    StrictOption,
    TracesArgument,
    WholeOption,
    print_rows,
    read_trees,
    repaired,
    selection,
)

if TYPE_CHECKING:
    from irgraph.capture.kineto.events.tree import Tree
    from irgraph.replay.recorded import RecordedStep
    from irgraph.replay.replay import Lengths, Replayed, Replayer

PANEL = "traces"


def replay(
    traces: TracesArgument,
    overheads: Annotated[
        str,
        typer.Option(
            metavar="own|table|TRACE",
            help="Host times: measured, means of the trace, or another trace's.",
        ),
    ] = "table",
    outliers: OutliersOption = "all",
    match_speed: Annotated[
        bool, typer.Option(help="Scale another trace's host times by the ratio of launch times.")
    ] = True,
    limit: Annotated[
        float | None,
        typer.Option(
            metavar="PERCENT", min=0, callback=finite, help="Exit with 1 above this error."
        ),
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a timeline, measured beside simulated, here."),
    ] = None,
    steps: StepsOption = None,
    step_mark: MarkOption = None,
    whole: WholeOption = False,
    skip: SkipOption = None,
    memory: MemoryOption = None,
    strict: StrictOption = False,
    health: HealthOption = False,
    csv: CsvOption = None,
    json: JsonOption = False,
) -> None:
    """Simulate recorded steps with measured kernels; compare simulated with measured."""
    from irgraph.diagnostics import Place, fail
    from irgraph.replay.recorded import RecordedStep
    from irgraph.replay.replay import Lengths, replayer

    part = selection(steps, skip, memory, step_mark, whole)
    trees = read_trees(traces, strict=strict, health=health, part=part)
    found: list[Replayed] = []
    own: list[Replayed] = []
    for tree in trees:
        _need_device(tree)
        one = replayer(tree)
        lengths = _lengths(one, overheads, outliers, match_speed)
        for step in (step for step in tree.steps if step.complete):
            # a timeline is as large as its step: only the last is shown
            found[-1:] = [r.without_timeline() for r in found[-1:]]
            found.append(one.replay(step, lengths))
            own.append(found[-1] if overheads == "own" else one.replay(step, Lengths()))
            own[-1] = own[-1].without_timeline()
            recorded = RecordedStep(tree, step)
    if not found:
        raise fail("no complete step to replay", Place(traces[0]))
    if timeline is not None:
        _write(recorded, found[-1], timeline)
    reasons = [line for tree in trees for line in tree.trace.health.reasons()]
    _show(found, own, reasons, csv, json)
    _check_limit(found, limit)
    raise typer.Exit(repaired(trees))


def _write(recorded: RecordedStep, simulated: Replayed, path: str) -> None:
    from irgraph.schedule.perfetto import write_side_by_side

    write_side_by_side({"measured": recorded, "simulated": simulated.timeline}, path)


def _check_limit(found: list[Replayed], limit: float | None) -> None:
    """Exit with 1 where the worst usual step is off by more than a limit in percent."""
    worst = max(abs(r.error) for r in [r for r in found if not r.left_out] or found)
    if limit is not None and worst * 100 > limit:
        say(f"error is {worst:.1%}, over the limit of {limit:g}%")
        raise typer.Exit(1)


def _need_device(tree: Tree) -> None:
    from irgraph.diagnostics import Place, fail

    if not tree.trace.on_device.any():
        raise fail(
            "no device events to replay",
            Place(tree.trace.source),
            hint="record on a GPU, with ProfilerActivity.CUDA among the activities",
        )


def _lengths(one: Replayer, overheads: str, outliers: str, match_speed: bool) -> Lengths:
    from irgraph.overheads.rules import find_rule
    from irgraph.replay.replay import Lengths, launch_ratio, replayer

    if overheads == "own":
        return Lengths()
    rule = find_rule(outliers)
    if overheads == "table":
        return Lengths(one.samples(), rule)
    (other,) = read_trees([overheads], strict=False, health=False)
    samples = replayer(other).samples()
    scale = launch_ratio(one.samples(), samples) if match_speed else 1.0
    return Lengths(samples, rule, scale)


def _show(
    found: list[Replayed], own: list[Replayed], reasons: list[str], csv: str | None, json: bool
) -> None:
    """Print the steps; ``own`` are the same with the host times of each as measured."""
    rows: list[dict[str, Any]] = [
        {**r.row(), "own_overheads_error": round(o.error, 5)}
        for r, o in zip(found, own, strict=True)
    ]
    usual = [r for r in found if not r.left_out]
    measured, simulated = sum(r.measured for r in usual), sum(r.simulated for r in usual)
    mean = simulated / measured - 1 if measured else 0.0
    middle = _median_error(usual)
    if csv is not None:
        write_csv({"replay": rows}, csv)
    if json:
        figures = {"mean_error": round(mean, 5), "median_error": round(middle, 5)}
        write_json({"steps": rows, **figures, "steps_in_mean": len(usual), "repairs": reasons})
        return
    if csv is not None:
        return
    print_rows("replay", [_cells(*pair) for pair in zip(found, own, strict=True)], reasons)
    worst = max(usual, key=lambda r: abs(r.error), default=found[0])
    say(
        f"error of the mean of {len(usual)} steps: {mean:+.2%}, of their median: {middle:+.2%}, "
        f"of the worst: {worst.error:+.2%}"
        + (f"; {len(found) - len(usual)} left out" if len(usual) < len(found) else "")
    )


def _median_error(usual: list[Replayed]) -> float:
    """Return the signed error of the median of the simulated steps."""
    measured = median([r.measured for r in usual]) if usual else 0.0
    return median([r.simulated for r in usual]) / measured - 1 if measured else 0.0


def _cells(r: Replayed, own: Replayed) -> dict[str, str | int]:
    return {
        "rank": r.rank,
        "step": r.step,
        "measured ms": f"{r.measured / 1e3:.3f}",
        "simulated ms": f"{r.simulated / 1e3:.3f}",
        "error": f"{r.error:+.2%}",
        "own overheads": f"{own.error:+.2%}",
        "GPU active ms": f"{r.active / 1e3:.3f}",
        "simulated active ms": f"{r.simulated_active / 1e3:.3f}",
        "GPU idle ms": f"{(r.measured - r.active) / 1e3:.3f}",
        "simulated idle ms": f"{(r.simulated - r.simulated_active) / 1e3:.3f}",
        "note": f"{r.left_out}: left out" if r.left_out else "",
    }
