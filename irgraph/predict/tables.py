"""Tables of a prediction, and of the difference of two."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from rich.table import Table

from irgraph.diagnostics import fail
from irgraph.predict.answer import cached_text, flop_text, times_of_other_steps, title
from irgraph.predict.figures import group_name
from irgraph.predict.validation import UNVALIDATED, validation_text
from irgraph.report.console import bytes_text, time_text
from irgraph.schedule.intervals import by_cause_name

MAX_ROWS = 12

MAX_BRIEF_ROWS = 5
"""Rows of each table below the answer."""

TABLES = ("figures", "causes", "ops", "modules", "savings", "kernels")
"""Names of the tables of a prediction."""

ALL = "all"
"""Name of all tables together."""

BRIEF: dict[str, Any] = {
    "box": None,
    "pad_edge": False,
    "padding": (0, 2, 0, 0),
}
"""Style of tables below the answer: without lines."""


def check_table_names(names: Iterable[str]) -> list[str]:
    """Return names of ``TABLES``, or ``all``; raise ``IrgraphError`` (exit code 2) for another."""
    checked = list(names)
    for name in checked:
        if name not in (*TABLES, ALL):
            hint = f"one of {', '.join((*TABLES, ALL))}"
            raise fail(f"--show: no table {name!r}", hint=hint, exit_code=2)
    return checked


def prediction_tables(
    summary: dict[str, Any], measured: float | None = None, names: Iterable[str] = ("all",)
) -> list[Table]:
    """Return tables of ``Prediction.summary`` by their names in ``TABLES``, or ``all``.

    ``measured`` is a step time in microseconds. Raises ``IrgraphError`` for an unknown name.
    """
    wanted = check_table_names(names)
    step = summary["step_time_us"]
    tables: dict[str, Callable[[], Table]] = {
        "figures": lambda: _figures(summary, measured),
        "causes": lambda: _shares("cause", by_cause_name(summary["critical_path_us"]), step),
        "ops": lambda: _shares("op", summary["critical_ops_us"], step),
        "modules": lambda: _shares("module", summary["critical_modules_us"], step),
        "savings": lambda: _what_ifs(summary["sensitivity"]),
        "kernels": lambda: _kernels(summary),
    }
    return [table() for name, table in tables.items() if name in wanted or ALL in wanted]


def brief_tables(summary: dict[str, Any]) -> list[Table]:
    """Return the most costly causes of a step and the largest savings, in a few rows each."""
    step = summary["step_time_us"]
    causes = Table("critical path", "time", "share", **BRIEF)
    for name, time in list(by_cause_name(summary["critical_path_us"]).items())[:MAX_BRIEF_ROWS]:
        causes.add_row(name, time_text(time), f"{time / step:.0%}" if step else "")
    sensitivity = summary["sensitivity"]
    savings = Table(f"if {sensitivity['factor']:g}x faster", "step time", "saved", **BRIEF)
    rows = [(group_name(row), row) for row in sensitivity["groups"]]
    rows += [(_op_label(row), row) for row in sensitivity["ops"]]
    rows.sort(key=lambda item: -item[1]["saved_us"])
    for name, row in rows[:MAX_BRIEF_ROWS]:
        savings.add_row(name, time_text(row["step_time_us"]), _saved(row))
    return [table for table in (causes, savings) if table.row_count]


def _op_label(row: Mapping[str, Any]) -> str:
    count = row.get("count", 1)
    return f"{row['name']}, one of {count} alike" if count > 1 else str(row["name"])


def _what_ifs(sensitivity: dict[str, Any]) -> Table:
    title = f"step time if it were {sensitivity['factor']:g}x faster"
    table = Table("what", "where", "step time", "saved", title=title, title_justify="left")
    table.caption, table.caption_justify = UNVALIDATED, "left"
    for row in sensitivity["ops"]:
        location = ", ".join(row[key] for key in ("module", "from") if key in row)
        if row.get("count", 1) > 1:
            location = f"{location} …"
        table.add_row(_op_label(row), location, time_text(row["step_time_us"]), _saved(row))
    table.add_section()
    for row in sensitivity["groups"][:MAX_ROWS]:
        table.add_row(group_name(row), "", time_text(row["step_time_us"]), _saved(row))
    return table


def _saved(row: dict[str, Any]) -> str:
    return time_text(row["saved_us"])


def _figures(summary: dict[str, Any], measured: float | None) -> Table:
    table = Table(title=title(summary), show_header=False, title_justify="left")
    for label, text in figure_rows(summary, measured):
        table.add_row(label, text, style="bold red" if label == "WARNING" else None)
    return table


def figure_rows(
    summary: Mapping[str, Any], measured: float | None = None
) -> Iterator[tuple[str, str]]:
    """Yield the figures of ``Prediction.summary`` as text, each with its label.

    ``measured`` is a step time in microseconds.
    """
    yield from _times(summary, measured)
    yield from (("WARNING", text) for text in summary["warnings"])
    device = summary["device"]
    processor = "CPU" if device["architecture"] == "cpu" else "GPU"
    yield f"{processor} active", time_text(summary["gpu_active_us"])
    yield f"{processor} idle", time_text(summary["gpu_idle_us"])
    yield f"{processor} utilization", f"{summary['gpu_utilization']:.1%}"
    yield "host waits for device", time_text(summary["host_waits_us"])
    yield "products", _flop_text(summary)
    yield "peak memory", _memory(summary["memory"])
    yield "of that", _kinds(summary["memory"])
    more = "" if processor == "CPU" else f", TF32 {_tf32(device)}"
    yield "device", f"{device['name']}, {device['clock_mhz']:.0f} MHz{more}"
    yield "host", summary["host"]
    yield "software, accounting", f"{summary['software']}, {summary['accounting']}"
    yield from _origins(summary)


def _tf32(device: Mapping[str, Any]) -> str:
    """Return the calls of float32 that the matrix units compute in tf32, ``off`` for none."""
    uses_tf32 = {"products": device["tf32"], "convolutions": device["tf32_convolutions"]}
    return (
        "in " + " and ".join(tf32_calls)
        if (tf32_calls := [name for name in uses_tf32 if uses_tf32[name]])
        else "off"
    )


def _times(summary: Mapping[str, Any], measured: float | None) -> Iterator[tuple[str, str]]:
    low, high = (time_text(end) for end in summary["step_time_interval_us"])
    predicted = f"{time_text(summary['step_time_us'])}, 90 % interval {low} to {high}"
    yield "step time, predicted", predicted
    yield from times_of_other_steps(summary)
    if measured is not None:
        error = summary["step_time_us"] / measured - 1
        yield "step time, measured", f"{time_text(measured)}, error {error:+.1%}"


def _origins(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the sources and the assumptions of a prediction's times."""
    shares = ", ".join(
        f"{share:.1%} {provenance}" for provenance, share in summary["coverage"].items()
    )
    yield "device time by provenance", shares or "no device work"
    if summary["power"]:
        yield "power limit", _power(summary["power"])
    if summary["measured_times"]:
        yield "measured kernel times", summary["measured_times"]
    levels = ", ".join(f"{count} by {level}" for level, count in summary["overheads_found"].items())
    ratio = summary["no_graph_ratio"]
    no_graph = f"; x{ratio:g}, as no graph for autograd is recorded" if ratio != 1.0 else ""
    yield "host overheads of ops", f"{levels}{no_graph}"
    yield "ops no model knows", _unknown(summary["unknown"])
    yield from (("embedding rows looked up", text) for text in summary["indices"])
    yield from (("collectives", text) for text in summary["collectives"])
    yield from (("rests on", reason) for reason in summary["assumptions"])


def _power(power: Mapping[str, float]) -> str:
    """Return whether the power limit slows the step's products, and by how much."""
    draw = f"kernels in isolation draw {power['draw']:.0%} of it"
    if power["clock"] == 1.0:
        return draw
    added = time_text(power["added_us"])
    return f"{draw}: products run at {power['clock']:.1%} of their clock, {added} more"


def _flop_text(summary: Mapping[str, Any]) -> str:
    """Return the operations of products, convolutions and attention, and their rate."""
    flop, step, uncounted = (
        summary[key] for key in ("flop", "step_time_us", "products_not_counted")
    )
    rate = f", {flop_text(flop / step * 1e6)}/s over the step" if flop and step else ""
    note = f"; {uncounted} not counted: their operands are not recorded" if uncounted else ""
    return (f"{flop_text(flop)}{rate}" if flop else "none counted") + note


def _memory(memory: dict[str, Any]) -> str:
    verdict = "fits in" if memory["fits"] else "DOES NOT FIT in"
    available = bytes_text(memory["device_bytes"])
    return f"{bytes_text(memory['needed_bytes'])}: {verdict} {available}{cached_text(memory)}"


def _kinds(memory: dict[str, Any]) -> str:
    kinds = ", ".join(f"{bytes_text(n)} {kind}" for kind, n in memory["by_kind_bytes"].items())
    assumed_bytes = memory["workspace_and_context_bytes"]
    tensor_text = f"{bytes_text(memory['peak_bytes'])} tensors ({kinds or 'none'})"
    return tensor_text + (
        f", {bytes_text(assumed_bytes)} assumed for workspace and context" if assumed_bytes else ""
    )


def _unknown(unknown: dict[str, Any]) -> str:
    if not unknown["ops"]:
        return "none"
    names = ", ".join(f"{name} x{count}" for name, count in list(unknown["ops"].items())[:MAX_ROWS])
    more = ", …" if len(unknown["ops"]) > MAX_ROWS else ""
    return f"{names}{more} ({unknown['share_of_bytes']:.1%} of all bytes)"


def _shares(kind: str, times: dict[str, float], total: float) -> Table:
    title = f"critical path by {kind}"
    table = Table(kind, "time", "share", title=title, title_justify="left")
    rows = list(times.items())
    rest = sum(time for _, time in rows[MAX_ROWS:])
    for name, time in rows[:MAX_ROWS] + ([("the rest", rest)] if rest else []):
        table.add_row(name, time_text(time), f"{time / total:.1%}" if total else "")
    return table


def _kernels(summary: dict[str, Any]) -> Table:
    table = Table(
        "family", "count", "time", title="device work by kernel family", title_justify="left"
    )
    for family, figures in summary["kernels"].items():
        table.add_row(family, str(figures["count"]), time_text(figures["time_us"]))
    return table


def difference_tables(result: dict[str, Any]) -> list[Table]:
    """Return the differences as tables."""
    title = f"{result['device']}, host {result['host']}"
    table = Table("", *result["models"], "change", "", title=title)
    table.title_justify = table.caption_justify = "left"
    for name, (first, second) in result["figures"].items():
        label = name.removesuffix("_us").replace("_", " ")
        table.add_row(label, time_text(first), time_text(second), *_changes(first, second))
    peaks = result["memory_peak_bytes"]
    sign = "+" if peaks[1] > peaks[0] else ""
    share = f"{peaks[1] / peaks[0] - 1:+.1%}" if peaks[0] else ""
    change = f"{sign}{bytes_text(peaks[1] - peaks[0])}"
    table.add_row("peak memory of tensors", *(bytes_text(peak) for peak in peaks), change, share)
    low, high = (time_text(end) for end in result["step_time_change_interval_us"])
    table.caption = f"90 % interval of the change in step time: {low} to {high}"
    table.caption += f"\n{validation_text(result['validation'])}"
    if result["measured_times"]:
        table.caption += f"\nmeasured kernel times {result['measured_times']}"
    for text in result["collectives"]:
        table.caption += f"\ncollectives: {text}"
    for text in result["warnings"]:
        table.caption += f"\nWARNING: {text}"
    for reason in result["assumptions"]:
        table.caption += f"\nrests on: {reason}"
    return [
        table,
        _pairs("critical path by cause", by_cause_name(result["critical_path_us"])),
        _pairs("device work by kernel family", result["kernels_us"]),
    ]


def _changes(first: float, second: float) -> tuple[str, str]:
    share = f"{second / first - 1:+.1%}" if first else ""
    sign = "+" if second > first else ""
    return f"{sign}{time_text(second - first)}", share


def _pairs(title: str, pairs: dict[str, list[float]]) -> Table:
    table = Table("", "before", "after", "change", "", title=title, title_justify="left")
    for name, (first, second) in list(pairs.items())[:MAX_ROWS]:
        table.add_row(name, time_text(first), time_text(second), *_changes(first, second))
    return table
