"""``irgraph replay``: a recorded step simulated from its parts, beside what was measured."""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import Struct, to_builtins
from msgspec.structs import replace

from irgraph.cli.common import (
    CsvOption,
    JsonOption,
    finite_value,
    print_error,
    write_csv,
    write_json,
)
from irgraph.cli.html import HtmlOption
from irgraph.cli.traces import (
    OutliersOption,
    TraceOptions,
    TracesArgument,
    print_rows,
    read_trees,
    repair_exit_code,
)

if TYPE_CHECKING:
    from irgraph.capture.kineto.events.tree import Tree
    from irgraph.capture.kineto.reading.selection import Selection
    from irgraph.replay.host_times import HostTimes
    from irgraph.replay.recorded_step import RecordedStep
    from irgraph.replay.replay import Replayed, Replayer

PANEL = "traces"

FAMILIAR = 0.5
"""Share of the host time whose operations another trace must have for a replay with its times."""

EXPLAINED = 0.03
"""Error of a step with its own host times above which its structure is not known."""

ENDS = ("from ms", "to ms")
"""Columns of the 90 % interval."""

ROUND = 0.005
"""Shares below this round to 0 %, and are not printed."""


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
            metavar="PERCENT", min=0, callback=finite_value, help="Exit with 1 above this error."
        ),
    ] = None,
    timeline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Write a timeline, measured beside simulated, here."),
    ] = None,
    *,
    reading: TraceOptions,
    html: HtmlOption = None,
    csv: CsvOption = None,
    json: JsonOption = False,
) -> None:
    """Simulate recorded steps with measured kernels; compare simulated with measured."""
    from irgraph.diagnostics import SourceSpan, fail
    from irgraph.replay.host_times import HostTimes
    from irgraph.replay.recorded_step import RecordedStep

    trees = reading.trees(traces)
    other = None if overheads in ("own", "table") else _other(overheads, reading.selection)
    found: list[Replayed] = []
    own: list[Replayed] = []
    origins: list[_Origin] = []
    for tree in trees:
        one = _replayer(tree)
        lengths = _lengths(one, overheads, other, outliers, match_speed)
        origins += [_Origin.of_replay(one, other, lengths)] if other is not None else []
        for step in (step for step in tree.steps if step.complete):
            # a timeline is as large as its step: only the last is shown
            found[-1:] = [r.without_timeline() for r in found[-1:]]
            found.append(one.replay(step, lengths))
            own.append(found[-1] if overheads == "own" else one.replay(step, HostTimes()))
            own[-1] = own[-1].without_timeline()
            recorded = RecordedStep(tree, step)
    if not found:
        raise fail("no complete step to replay", SourceSpan(traces[0]))
    if timeline is not None:
        _write(recorded, found[-1], timeline)
    trees += [other.tree] if other is not None else []
    notes = _Notes(origins, trees)
    if html is not None:
        _report(recorded, found, own, notes, html)
    _show(found, own, notes, csv, json)
    _check_limit(found, limit)
    doubtful = _unexplained(own) or any(origin.strange for origin in origins)
    raise typer.Exit(3 if doubtful else repair_exit_code(trees))


def _write(recorded: RecordedStep, simulated: Replayed, path: str) -> None:
    from irgraph.schedule.perfetto import write_side_by_side

    write_side_by_side({"measured": recorded, "simulated": simulated.timeline}, path)


def _report(
    recorded: RecordedStep, found: list[Replayed], own: list[Replayed], notes: _Notes, path: str
) -> None:
    """Write the report of the steps; the last one is shown on a timeline."""
    from irgraph.cli.html import write_page
    from irgraph.pages.replay import replay_page

    usual = [r for r in found if not r.left_out]
    errors = {f"mean of {len(usual)} steps": _mean_error(usual), "median": _median_error(usual)}
    lines = [*_unexplained(own), *(line for o in notes.origins for line in o.lines())]
    page = replay_page(recorded, found[-1], _rows(found, own), errors, [*lines, *notes.reasons])
    write_page(page, path)


def _rows(found: list[Replayed], own: list[Replayed]) -> list[dict[str, Any]]:
    """Return figures of the steps; ``own`` are the same with the host times of each as measured."""
    return [
        {**r.row(), "own_overheads_error": round(o.error, 5)}
        for r, o in zip(found, own, strict=True)
    ]


def _check_limit(found: list[Replayed], limit: float | None) -> None:
    """Exit with 1 where the worst usual step is off by more than a limit in percent."""
    worst = max(abs(r.error) for r in [r for r in found if not r.left_out] or found)
    if limit is not None and worst * 100 > limit:
        print_error(f"error is {worst:.1%}, over the limit of {limit:g}%")
        raise typer.Exit(1)


def _replayer(tree: Tree) -> Replayer:
    from irgraph.diagnostics import SourceSpan, fail
    from irgraph.replay.replay import build_replayer

    if not tree.trace.on_device.any():
        raise fail(
            "no device events to replay",
            SourceSpan(tree.trace.source),
            hint="record on a GPU, with ProfilerActivity.CUDA among the activities",
        )
    return build_replayer(tree)


def _lengths(
    one: Replayer, overheads: str, other: Replayer | None, outliers: str, match_speed: bool
) -> HostTimes:
    """Return the host times to replay with: each as measured, the trace's means, or another's."""
    from irgraph.overheads.rules import find_rule
    from irgraph.replay.host_times import HostTimes, launch_ratio

    if overheads == "own":
        return HostTimes()
    mine, rule = one.samples(), find_rule(outliers)
    if other is None:
        return HostTimes(mine, rule)
    samples = other.samples()
    return HostTimes(samples, rule, launch_ratio(mine, samples) if match_speed else 1.0, other=True)


def _other(path: str, part: Selection) -> Replayer:
    """Return another trace, its steps marked as those of the replayed ones."""
    from irgraph.replay.replay import build_replayer

    (tree,) = read_trees([path], strict=False, health=False, selection=replace(part, steps=None))
    return build_replayer(tree)


class _Origin(Struct, frozen=True):
    """Where the host times of a replay come from that are another trace's.

    Attributes:
        rank: of the replayed trace.
        of: the other trace.
        device, other_device: cards of the replayed and of the other trace.
        scale: factor on the other trace's host times.
        shares: of the measured host time, by where the replay takes it from.
    """

    rank: int
    of: str
    device: str
    other_device: str
    scale: float
    shares: dict[str, float]

    @classmethod
    def of_replay(cls, one: Replayer, other: Replayer, lengths: HostTimes) -> _Origin:
        """Return the origin of a replay's host times."""
        from irgraph.replay.host_times import share_by_level

        mine, theirs = one.tree.trace, other.tree.trace
        cards = (mine.device_name, theirs.device_name)
        shares = share_by_level(one.samples(), lengths)
        return cls(mine.rank, theirs.source, *cards, lengths.scale, shares)

    @property
    def strange(self) -> bool:
        """Whether most of the host time is of operations that the other trace does not have."""
        from irgraph.replay.host_times import OPERATION_LEVELS

        return sum(self.shares[level] for level in OPERATION_LEVELS) < FAMILIAR

    def lines(self) -> list[str]:
        """Return what to print below the table."""
        from irgraph.replay.host_times import LEVELS

        speed = "as recorded there"
        if self.scale != 1.0:
            speed = f"scaled by {self.scale:.2f}, the ratio of launch times"
        known = [f"{s:.0%} {LEVELS[level]}" for level, s in self.shares.items() if s >= ROUND]
        found = [f"rank {self.rank}: host times of {self.of}, {speed}; {', '.join(known)}"]
        if self.device != self.other_device:
            cards = f"{self.other_device or 'an unknown device'} there, {self.device} here"
            found.append(f"rank {self.rank}: another machine: {cards}")
        if self.strange:
            found.append(
                f"rank {self.rank}: the other trace lacks most of these operations: neither times "
                "nor intervals can be relied on"
            )
        return found


class _Notes(Struct, frozen=True):
    """What stands beside the steps: whose host times, and what was mended or is missing."""

    origins: list[_Origin]
    trees: list[Tree]

    @property
    def reasons(self) -> list[str]:
        """What was mended or is missing in each trace, the other one's last."""
        return [line for tree in self.trees for line in tree.trace.health.reasons()]


def _show(
    found: list[Replayed], own: list[Replayed], notes: _Notes, csv: str | None, json: bool
) -> None:
    """Print the steps; ``own`` are the same with the host times of each as measured."""
    rows = _rows(found, own)
    usual = [r for r in found if not r.left_out]
    within = sum(r.within for r in usual)
    if csv is not None:
        write_csv({"replay": rows}, csv)
    if json:
        figures = {
            "mean_error": round(_mean_error(usual), 5),
            "median_error": round(_median_error(usual), 5),
        }
        origins = [to_builtins(origin) for origin in notes.origins]
        other = {"host_times": origins, "steps_within_interval": within} if origins else {}
        write_json(
            {"steps": rows, **figures, "steps_in_mean": len(usual), **other}
            | {"unexplained": _unexplained(own), "repairs": notes.reasons}
        )
        return
    if csv is not None:
        return
    below = [line for origin in notes.origins for line in origin.lines()]
    if notes.origins:
        below.append(f"measured within the 90 % interval: {within} of {len(usual)} steps")
    cells = [_cells(*pair) for pair in zip(found, own, strict=True)]
    print_rows("replay", cells, [*below, *_unexplained(own), *notes.reasons])
    _say_errors(found, usual)


def _unexplained(own: list[Replayed]) -> list[str]:
    """Return what to say of steps that do not follow from their own host times."""
    usual = [r for r in own if not r.left_out]
    bad = [r for r in usual if abs(r.error) > EXPLAINED]
    if not bad:
        return []
    worst = max(bad, key=lambda r: abs(r.error))
    return [
        f"{len(bad)} of {len(usual)} steps do not follow from their own host times (up to "
        f"{worst.error:+.1%}): this trace does not show what waits for what"
    ]


def _say_errors(found: list[Replayed], usual: list[Replayed]) -> None:
    mean, middle = _mean_error(usual), _median_error(usual)
    worst = max(usual, key=lambda r: abs(r.error), default=found[0])
    print_error(
        f"error of the mean of {len(usual)} steps: {mean:+.2%}, of their median: {middle:+.2%}, "
        f"of the worst: {worst.error:+.2%}"
        + (f"; {len(found) - len(usual)} left out" if len(usual) < len(found) else "")
    )


def _mean_error(usual: list[Replayed]) -> float:
    """Return the signed error of the mean of the simulated steps."""
    measured, simulated = sum(r.measured for r in usual), sum(r.simulated for r in usual)
    return simulated / measured - 1 if measured else 0.0


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
        **{end: f"{time / 1e3:.3f}" for end, time in zip(ENDS, r.interval or (), strict=False)},
        "error": f"{r.error:+.2%}",
        "own overheads": f"{own.error:+.2%}",
        "GPU active ms": f"{r.active / 1e3:.3f}",
        "simulated active ms": f"{r.simulated_active / 1e3:.3f}",
        "GPU idle ms": f"{(r.measured - r.active) / 1e3:.3f}",
        "simulated idle ms": f"{(r.simulated - r.simulated_active) / 1e3:.3f}",
        "note": f"{r.left_out}: left out" if r.left_out else "",
    }
