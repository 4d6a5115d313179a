"""``irgraph replay``: a recorded step simulated from its parts, compared with its measurement."""

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
    read_tree,
    repair_exit_code,
)

if TYPE_CHECKING:
    from irgraph.capture.kineto.events.tree import Tree
    from irgraph.capture.kineto.reading.selection import Selection
    from irgraph.replay.host_times import HostTimes
    from irgraph.replay.recorded_step import RecordedStep
    from irgraph.replay.replay import Replayed, Replayer
    from irgraph.replay.table_times import TableTimes

PANEL = "traces"

MIN_FAMILIAR_SHARE = 0.5
"""Minimum share of the host time whose operations another trace has, for a replay with its times.
"""

MAX_EXPLAINED_ERROR = 0.03
"""Maximum error of a step replayed with its own host times; above it the structure is unknown."""

INTERVAL_COLUMNS = ("from ms", "to ms")
"""Columns of the 90 % interval."""

MIN_PRINTED_SHARE = 0.005
"""Minimum printed share; smaller shares round to 0 %."""


def replay(
    traces: TracesArgument,
    overheads: Annotated[
        str,
        typer.Option(
            metavar="own|table|TRACE|HOST",
            help="Host times: measured, means of the trace, another trace's, or a host table's.",
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
    from irgraph.replay.table_times import names_table, table_times

    trees = reading.trees(traces)
    is_own = overheads in ("own", "table")
    has_table = not is_own and names_table(overheads)
    if outliers != "all" and (has_table or overheads == "own"):
        raise fail(
            f"--outliers {outliers} selects samples of a trace, and --overheads {overheads} has "
            + ("statistics only" if has_table else "each host time as measured"),
            hint="use it with `--overheads table` or `--overheads TRACE`",
            exit_code=2,
        )
    other = None if is_own or has_table else _load_other(overheads, reading.selection)
    replays: list[Replayed] = []
    own_replays: list[Replayed] = []
    origins: list[_Origin] = []
    for tree in trees:
        replayer = _replayer(tree)
        if has_table:
            table = table_times(replayer, overheads, match_speed=match_speed)
            host_times = table.times
            origins.append(_Origin.of_table(replayer, table))
        else:
            host_times = _host_times(replayer, overheads, other, outliers, match_speed)
        origins += [_Origin.of_replay(replayer, other, host_times)] if other is not None else []
        own_steps = replayer.consecutive(HostTimes())
        steps = own_steps if overheads == "own" else replayer.consecutive(host_times)
        for replayed in steps:
            # a timeline is as large as its step: only the last is shown
            replays[-1:] = [r.without_timeline() for r in replays[-1:]]
            replays.append(replayed)
            own_replay = replayed if overheads == "own" else next(own_steps)
            own_replays.append(own_replay.without_timeline())
        complete_steps = [step for step in tree.steps if step.complete]
        if complete_steps:
            recorded = RecordedStep(tree, complete_steps[-1])
    if not replays:
        raise fail("no complete step to replay", SourceSpan(traces[0]))
    if timeline is not None:
        _write_timeline(recorded, replays[-1], timeline)
    trees += [other.tree] if other is not None else []
    notes = _Notes(origins, trees)
    if html is not None:
        _report(recorded, replays, own_replays, notes, html)
    _show(replays, own_replays, notes, csv, json)
    _check_limit(replays, limit)
    is_doubtful = _unexplained_notes(own_replays) or any(origin.is_doubtful for origin in origins)
    raise typer.Exit(3 if is_doubtful else repair_exit_code(trees))


def _write_timeline(recorded: RecordedStep, simulated: Replayed, path: str) -> None:
    from irgraph.schedule.perfetto import write_side_by_side

    write_side_by_side({"measured": recorded, "simulated": simulated.timeline}, path)


def _report(
    recorded: RecordedStep,
    replays: list[Replayed],
    own_replays: list[Replayed],
    notes: _Notes,
    path: str,
) -> None:
    """Write the report of the steps; the last one is shown on a timeline."""
    from irgraph.cli.html import write_page
    from irgraph.pages.replay import replay_page

    typical = [r for r in replays if not r.left_out]
    errors = {
        f"mean of {len(typical)} steps": _mean_error(typical),
        "median": _median_error(typical),
    }
    lines = [*_unexplained_notes(own_replays), *(line for o in notes.origins for line in o.lines())]
    page = replay_page(
        recorded, replays[-1], _rows(replays, own_replays), errors, [*lines, *notes.reasons]
    )
    write_page(page, path)


def _rows(replays: list[Replayed], own_replays: list[Replayed]) -> list[dict[str, Any]]:
    """Return figures of the steps; ``own_replays`` are their replays with measured host times."""
    return [
        {**r.row(), "own_overheads_error": round(o.error, 5)}
        for r, o in zip(replays, own_replays, strict=True)
    ]


def _check_limit(replays: list[Replayed], limit: float | None) -> None:
    """Exit with 1 if the error of the worst typical step is over a limit in percent."""
    worst = max(abs(r.error) for r in [r for r in replays if not r.left_out] or replays)
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


def _host_times(
    replayer: Replayer, overheads: str, other: Replayer | None, outliers: str, match_speed: bool
) -> HostTimes:
    """Return the host times for a replay: measured, means of the trace, or of another trace."""
    from irgraph.overheads.default_host import MACHINE_STD
    from irgraph.overheads.rules import find_rule
    from irgraph.overheads.table import LAUNCH_STD
    from irgraph.replay.host_times import HostTimes, launch_ratio

    if overheads == "own":
        return HostTimes()
    own_samples, rule = replayer.samples(), find_rule(outliers)
    if other is None:
        return HostTimes(own_samples, rule)
    samples = other.samples()
    machine_std = 0.0
    if replayer.tree.trace.device_name != other.tree.trace.device_name:
        machine_std = LAUNCH_STD if match_speed else MACHINE_STD
    scale = launch_ratio(own_samples, samples) if match_speed else 1.0
    return HostTimes(samples, rule, scale, other=True, machine_std=machine_std)


def _load_other(path: str, selection: Selection) -> Replayer:
    """Return another trace, read with the same marks of steps as the replayed traces."""
    from irgraph.replay.replay import build_replayer

    return build_replayer(read_tree(path, replace(selection, steps=None)))


class _Origin(Struct, frozen=True):
    """Origin of a replay's host times in another trace, or in a host table.

    Attributes:
        rank: of the replayed trace.
        of: the other trace.
        device, other_device: cards of the replayed and of the other trace.
        scale: factor on the other trace's host times.
        shares: shares of the measured host time, by the level of the samples in the replay.
        observed: the recordings, ``here`` and ``there``, that had an execution trace observer.
        is_table: whether ``of`` is a host table.
    """

    rank: int
    of: str
    device: str
    other_device: str
    scale: float
    shares: dict[str, float]
    observed: tuple[str, ...] = ()
    is_table: bool = False

    @classmethod
    def of_replay(cls, replayer: Replayer, other: Replayer, host_times: HostTimes) -> _Origin:
        """Return the origin of a replay's host times."""
        from irgraph.overheads.recording import is_observed
        from irgraph.replay.host_times import share_by_level

        trace, other_trace = replayer.tree.trace, other.tree.trace
        cards = (trace.device_name, other_trace.device_name)
        shares = share_by_level(replayer.samples(), host_times)
        traces = {"here": trace, "there": other_trace}
        observed = tuple(label for label, t in traces.items() if is_observed(t))
        return cls(trace.rank, other_trace.source, *cards, host_times.scale, shares, observed)

    @classmethod
    def of_table(cls, replayer: Replayer, table: TableTimes) -> _Origin:
        """Return the origin of a replay's host times in a host table."""
        from irgraph.overheads.recording import is_observed
        from irgraph.replay.host_times import share_by_level

        trace = replayer.tree.trace
        shares = share_by_level(replayer.samples(), table.times)
        observed = ("here",) if is_observed(trace) else ()
        source = f"host table {table.table}"
        source += ", as profiled (the recording here is not added)" if table.profiled else ""
        cards = (trace.device_name, trace.device_name)
        return cls(trace.rank, source, *cards, 1.0, shares, observed, is_table=True)

    @property
    def is_doubtful(self) -> bool:
        """Whether these host times cannot stand for those of the replayed trace."""
        return self.is_unfamiliar or len(self.observed) == 1

    @property
    def is_unfamiliar(self) -> bool:
        """Whether most of the host time is in operations that the other trace does not have."""
        from irgraph.replay.host_times import OPERATION_LEVELS

        return sum(self.shares[level] for level in OPERATION_LEVELS) < MIN_FAMILIAR_SHARE

    def lines(self) -> list[str]:
        """Return the footnotes for the table."""
        from irgraph.replay.host_times import LEVELS

        speed = "" if self.is_table else ", as recorded there"
        if self.scale != 1.0:
            speed = f", scaled by {self.scale:.2f}, the ratio of launch times"
        level_shares = [
            f"{s:.0%} {LEVELS[level]}" for level, s in self.shares.items() if s >= MIN_PRINTED_SHARE
        ]
        result = [f"rank {self.rank}: host times of {self.of}{speed}; {', '.join(level_shares)}"]
        if self.device != self.other_device:
            cards = f"{self.other_device or 'an unknown device'} there, {self.device} here"
            result.append(f"rank {self.rank}: another machine: {cards}")
        if len(self.observed) == 1:
            result.append(
                f"rank {self.rank}: an execution trace observer was attached {self.observed[0]} "
                "alone, which makes host times 6 to 12 times as long: they cannot be compared"
            )
        if self.is_unfamiliar:
            result.append(
                f"rank {self.rank}: most of these operations are unknown there: neither times "
                "nor intervals can be relied on"
            )
        return result


class _Notes(Struct, frozen=True):
    """Notes on replayed steps: origins of host times, repairs, and missing events."""

    origins: list[_Origin]
    trees: list[Tree]

    @property
    def reasons(self) -> list[str]:
        """Repairs and missing events of each trace, the other trace's last."""
        return [line for tree in self.trees for line in tree.trace.health.reasons()]


def _show(
    replays: list[Replayed], own_replays: list[Replayed], notes: _Notes, csv: str | None, json: bool
) -> None:
    """Print the steps; ``own_replays`` are their replays with measured host times."""
    rows = _rows(replays, own_replays)
    typical = [r for r in replays if not r.left_out]
    within_interval = sum(r.within for r in typical)
    if csv is not None:
        write_csv({"replay": rows}, csv)
    if json:
        figures = {
            "mean_error": round(_mean_error(typical), 5),
            "median_error": round(_median_error(typical), 5),
        }
        origins = [to_builtins(origin) for origin in notes.origins]
        other = {"host_times": origins, "steps_within_interval": within_interval} if origins else {}
        write_json(
            {"steps": rows, **figures, "steps_in_mean": len(typical), **other}
            | {"unexplained": _unexplained_notes(own_replays), "repairs": notes.reasons}
        )
        return
    if csv is not None:
        return
    footnotes = [line for origin in notes.origins for line in origin.lines()]
    if notes.origins:
        footnotes.append(
            f"measured within the 90 % interval: {within_interval} of {len(typical)} steps"
        )
    cells = [_cells(*pair) for pair in zip(replays, own_replays, strict=True)]
    print_rows("replay", cells, [*footnotes, *_unexplained_notes(own_replays), *notes.reasons])
    _print_errors(replays, typical)


def _unexplained_notes(own_replays: list[Replayed]) -> list[str]:
    """Return a note on steps that do not follow from their own host times, if there are any."""
    typical = [r for r in own_replays if not r.left_out]
    unexplained = [r for r in typical if abs(r.error) > MAX_EXPLAINED_ERROR]
    if not unexplained:
        return []
    worst = max(unexplained, key=lambda r: abs(r.error))
    count = f"{len(unexplained)} of {len(typical)} steps"
    return [
        f"{count} do not follow from their own host times (up to {worst.error:+.1%}): this trace "
        "does not show what waits for what"
    ]


def _print_errors(replays: list[Replayed], typical: list[Replayed]) -> None:
    mean, middle = _mean_error(typical), _median_error(typical)
    worst = max(typical, key=lambda r: abs(r.error), default=replays[0])
    print_error(
        f"error of the mean of {len(typical)} steps: {mean:+.2%}, of their median: {middle:+.2%}, "
        f"of the worst: {worst.error:+.2%}"
        + (f"; {len(replays) - len(typical)} left out" if len(typical) < len(replays) else "")
    )


def _mean_error(typical: list[Replayed]) -> float:
    """Return the signed error of the mean of the simulated steps."""
    measured, simulated = sum(r.measured for r in typical), sum(r.simulated for r in typical)
    return simulated / measured - 1 if measured else 0.0


def _median_error(typical: list[Replayed]) -> float:
    """Return the signed error of the median of the simulated steps."""
    measured = median([r.measured for r in typical]) if typical else 0.0
    return median([r.simulated for r in typical]) / measured - 1 if measured else 0.0


def _cells(replayed: Replayed, own_replay: Replayed) -> dict[str, str | int]:
    return {
        "rank": replayed.rank,
        "step": replayed.step,
        "measured ms": f"{replayed.measured / 1e3:.3f}",
        "simulated ms": f"{replayed.simulated / 1e3:.3f}",
        **{
            end: f"{time / 1e3:.3f}"
            for end, time in zip(INTERVAL_COLUMNS, replayed.interval or (), strict=False)
        },
        "error": f"{replayed.error:+.2%}",
        "own overheads": f"{own_replay.error:+.2%}",
        "GPU active ms": f"{replayed.active / 1e3:.3f}",
        "simulated active ms": f"{replayed.simulated_active / 1e3:.3f}",
        "GPU idle ms": f"{(replayed.measured - replayed.active) / 1e3:.3f}",
        "simulated idle ms": f"{(replayed.simulated - replayed.simulated_active) / 1e3:.3f}",
        "note": f"{replayed.left_out}: left out" if replayed.left_out else "",
    }
