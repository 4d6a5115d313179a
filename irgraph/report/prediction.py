"""A prediction as tables."""

from __future__ import annotations

from typing import Any

from rich.table import Table

LONGEST = 12


def time_text(microseconds: float) -> str:
    """Return a time with a unit that suits it."""
    if abs(microseconds) >= 1000:
        return f"{microseconds / 1000:.3f} ms"
    return f"{microseconds:.1f} us"


def prediction_tables(summary: dict[str, Any], measured: float | None = None) -> list[Table]:
    """Return tables of ``Prediction.summary``; ``measured`` is a step time in microseconds."""
    return [
        _figures(summary, measured),
        _shares("critical path by cause", summary["critical_path_us"], summary["step_time_us"]),
        _shares("critical path by op", summary["critical_ops_us"], summary["step_time_us"]),
        _kernels(summary),
    ]


def _figures(summary: dict[str, Any], measured: float | None) -> Table:
    dims = ", ".join(f"{name} = {size}" for name, size in summary["dims"].items())
    title = f"{summary['model']} ({dims})" if dims else summary["model"]
    table = Table(title=title, show_header=False, title_justify="left")
    spread = summary["step_time_spread_us"]
    table.add_row(
        "step time, predicted", f"{time_text(summary['step_time_us'])} +- {time_text(spread)}"
    )
    if measured is not None:
        error = summary["step_time_us"] / measured - 1
        table.add_row("step time, measured", f"{time_text(measured)}, error {error:+.1%}")
    table.add_row("GPU active", time_text(summary["gpu_active_us"]))
    table.add_row("GPU idle", time_text(summary["gpu_idle_us"]))
    table.add_row("GPU utilization", f"{summary['gpu_utilization']:.1%}")
    table.add_row("host waits for device", time_text(summary["host_waits_us"]))
    device = summary["device"]
    table.add_row("device", f"{device['name']}, TF32 {'on' if device['tf32'] else 'off'}")
    table.add_row("host", summary["host"])
    table.add_row("software, accounting", f"{summary['software']}, {summary['accounting']}")
    shares = ", ".join(f"{share:.1%} {by}" for by, share in summary["coverage"].items())
    table.add_row("device time by provenance", shares or "no device work")
    levels = ", ".join(f"{count} by {level}" for level, count in summary["overheads_found"].items())
    table.add_row("host overheads of ops", levels)
    table.add_row("ops no model knows", _unknown(summary["unknown"]))
    for reason in summary["assumptions"]:
        table.add_row("rests on", reason)
    return table


def _unknown(unknown: dict[str, Any]) -> str:
    if not unknown["ops"]:
        return "none"
    names = ", ".join(f"{name} x{count}" for name, count in list(unknown["ops"].items())[:LONGEST])
    more = ", …" if len(unknown["ops"]) > LONGEST else ""
    return f"{names}{more} ({unknown['share_of_bytes']:.1%} of all bytes)"


def _shares(title: str, times: dict[str, float], total: float) -> Table:
    table = Table(title.rpartition(" ")[2], "time", "share", title=title, title_justify="left")
    rows = list(times.items())
    rest = sum(time for _, time in rows[LONGEST:])
    for name, time in rows[:LONGEST] + ([("the rest", rest)] if rest else []):
        table.add_row(name, time_text(time), f"{time / total:.1%}" if total else "")
    return table


def _kernels(summary: dict[str, Any]) -> Table:
    table = Table(
        "family", "count", "time", title="device work by kernel family", title_justify="left"
    )
    for family, figures in summary["kernels"].items():
        table.add_row(family, str(figures["count"]), time_text(figures["time_us"]))
    return table
