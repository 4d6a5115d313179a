"""Plots of an analysis: the paper's Figs. 1 and 5 (utilisation and breakdown), 7 and 8."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from irgraph.capture.kineto.events.families import COMMUNICATION
from irgraph.diagnostics import fail
from irgraph.report.plots import BLUE, GREY, ORANGE, Plot, matplotlib, save
from irgraph.schedule.intervals import cause_name

if TYPE_CHECKING:
    from irgraph.analyze.figures import StepFigures
    from irgraph.overheads.format import HostFile, Stat

MAX_BARS = 10
"""Maximum bars of a breakdown; the rest becomes one more bar."""

MIN_BAR_SLOTS = 7
"""Minimum number of bars for which a panel has space."""

MAX_LABELLED_STEPS = 16
"""Maximum number of steps with utilisation above each bar."""

MAX_TICKS = 12
"""Maximum number of labels on the axis of steps."""

MAX_NAME_CHARACTERS = 32
"""Maximum characters of a name next to a bar."""


def draw(
    figures: Sequence[StepFigures],
    idle_times: Mapping[str, float],
    breakdowns: Mapping[str, Mapping[str, tuple[float, float]]],
) -> Plot:
    """Draw step times with utilisation, idle time by cause, and device work (``Analysis``).

    Raises ``IrgraphError`` if matplotlib is not installed, or if the traces have no device events.
    """
    if not any(step.on_device and not step.left_out for step in figures):
        raise fail("--plot: no step with device events to draw", exit_code=4)
    mpl = matplotlib()
    with mpl.rc_context({"font.size": 9}):
        figure = mpl.figure.Figure(figsize=(13, 7.5), constrained_layout=True)
        (steps, idle), (ops, families) = figure.subplots(2, 2)
        _steps(steps, [step for step in figures if not step.left_out])
        causes = {cause_name(k.partition(":")[0]): us for k, us in idle_times.items() if us}
        _breakdown(idle, causes, "device idle, by what the host did")
        work = {key: us for key, (us, _) in breakdowns["op"].items()}
        _breakdown(ops, work, "device work by operator")
        work = {key: us for key, (us, _) in breakdowns["family"].items()}
        _breakdown(families, work, "device work by kernel family")
    return Plot(figure)


def draw_overheads(file: HostFile, path: str) -> None:
    """Draw T1, T4 and the most costly overheads of a host table, with standard deviations."""
    mpl = matplotlib()
    with mpl.rc_context({"font.size": 9}):
        figure = mpl.figure.Figure(figsize=(13, 7.5), constrained_layout=True)
        first, *axes = figure.subplots(2, 2).flat
        launches = [("T1", file.t1), *((f"T4 {key}", stat) for key, stat in file.t4.items())]
        _means(first, launches[:MAX_BARS], "T1, and T4 by what is launched and how")
        for axis, kind in zip(axes, ("t2", "t3", "t5"), strict=True):
            stats = [(op, s) for op, e in file.ops.items() if (s := getattr(e, kind)) is not None]
            stats.sort(key=lambda pair: -pair[1].mean * pair[1].count)
            _means(axis, stats[:MAX_BARS], f"{kind.upper()}, by share of all host time")
        figure.suptitle(f"host overheads of {file.name}: mean and standard deviation")
        save(figure, path)


def _means(axis: Any, rows: Sequence[tuple[str, Stat]], title: str) -> None:  # noqa: ANN401
    positions = range(len(rows))
    deviations = [stat.std for _, stat in rows]
    means = [stat.mean for _, stat in rows]
    # a time is never negative, however skewed its samples are
    low = [min(pair) for pair in zip(deviations, means, strict=True)]
    error_style = {"lw": 0.8, "alpha": 0.7, "capsize": 2}
    axis.barh(positions, means, xerr=[low, deviations], color=BLUE, error_kw=error_style)
    axis.set_yticks(positions, [_shorten(name) for name, _ in rows])
    axis.set_ylim(max(len(rows), MIN_BAR_SLOTS) - 0.4, -0.6)
    axis.set_xlim(0, 1.15 * max([m + s for m, s in zip(means, deviations, strict=True)], default=1))
    for position, (mean, std) in enumerate(zip(means, deviations, strict=True)):
        axis.annotate(f"{mean:.1f}", (mean + std, position), (4, 0), **_LABEL_STYLE)
    axis.set_xlabel("us")
    axis.set_title(title, loc="left")
    _hide_frame(axis)


_LABEL_STYLE = {"textcoords": "offset points", "va": "center", "fontsize": 8}


def _steps(axis: Any, steps: Sequence[StepFigures]) -> None:  # noqa: ANN401
    parts = {
        "compute": ([s.compute / 1e3 for s in steps], BLUE),
        "exposed communication": ([s.exposed / 1e3 for s in steps], ORANGE),
        "idle": ([s.idle / 1e3 for s in steps], GREY),
    }
    is_labelled = len(steps) <= MAX_LABELLED_STEPS
    base = [0.0] * len(steps)
    for label, (values, color) in parts.items():
        if any(values):
            axis.bar(
                range(len(steps)),
                values,
                0.7 if is_labelled else 1.0,
                base,
                label=label,
                color=color,
            )
        base = [a + b for a, b in zip(base, values, strict=True)]
    shares = [step.active / step.time if step.time else 0.0 for step in steps]
    for position, share in enumerate(shares if is_labelled else ()):
        axis.text(position, base[position], f"{share:.0%}", ha="center", va="bottom", fontsize=8)
    axis.set_ylim(0, 1.25 * max(base))
    label_title, names = _step_labels(steps)
    tick_distance = -(-len(steps) // MAX_TICKS)
    axis.set_xticks(range(0, len(steps), tick_distance), names[::tick_distance])
    axis.set_xlabel(label_title)
    axis.set_ylabel("ms")
    mean = sum(step.active for step in steps) / (sum(step.time for step in steps) or 1.0)
    low, high = f"{min(shares):.0%}", f"{max(shares):.0%}"
    limits = f" ({low} to {high})" if low != high else ""
    axis.set_title(f"step time; GPU utilization {mean:.0%}{limits}", loc="left")
    axis.legend(ncols=3, loc="upper left", frameon=False)
    _hide_frame(axis)


def _step_labels(steps: Sequence[StepFigures]) -> tuple[str, list[str]]:
    """Return the title of the axis of steps, and the label of each: ranks or steps that differ."""
    ranks, numbers = {s.rank for s in steps}, {s.step for s in steps}
    if len(ranks) == 1:
        return "step", [str(s.step) for s in steps]
    if len(numbers) == 1:
        return f"rank (step {numbers.pop()} of each)", [str(s.rank) for s in steps]
    return "rank, step", [f"{s.rank}, {s.step}" for s in steps]


def _breakdown(axis: Any, rows: dict[str, float], title: str) -> None:  # noqa: ANN401
    """Draw microseconds per step by name, longest first, with shares."""
    total = sum(rows.values()) or 1.0
    bars = dict(list(rows.items())[:MAX_BARS])
    if len(rows) > MAX_BARS:
        bars[f"{len(rows) - MAX_BARS} others"] = total - sum(bars.values())
    values = [us / 1e3 for us in bars.values()]
    colors = [ORANGE if name == COMMUNICATION else BLUE for name in bars]
    axis.barh(range(len(bars)), values, color=colors)
    axis.set_yticks(range(len(bars)), [_shorten(name) for name in bars])
    axis.set_ylim(max(len(bars), MIN_BAR_SLOTS) - 0.4, -0.6)
    axis.set_xlim(0, 1.15 * max([*values, 1e-9]))
    for position, value in enumerate(values):
        axis.annotate(f"{value * 1e3 / total:.1%}", (value, position), (4, 0), **_LABEL_STYLE)
    axis.set_xlabel("ms a step")
    axis.set_title(f"{title}: {total / 1e3:.2f} ms a step", loc="left")
    _hide_frame(axis)


def _hide_frame(axis: Any) -> None:  # noqa: ANN401
    axis.spines[["top", "right"]].set_visible(False)


def _shorten(name: str) -> str:
    """Return a name short enough for the axis of bars."""
    for prefix in ("autograd::engine::evaluate_function: ", "torch::autograd::", "autograd."):
        name = name.removeprefix(prefix)
    return name if len(name) <= MAX_NAME_CHARACTERS else f"{name[: MAX_NAME_CHARACTERS - 1]}…"
