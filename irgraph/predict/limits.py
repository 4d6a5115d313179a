"""Limits of figures that users give on the command line: ``error=10%``, ``step.time=9ms``."""

from __future__ import annotations

from typing import Any

from irgraph.diagnostics import fail, suggestion
from irgraph.diagnostics.quantities import BYTES, QUANTITY, parse_time

TIMES = {"step.time": "step_time_us", "gpu.active": "gpu_active_us", "gpu.idle": "gpu_idle_us"}
FIGURES = ("error", *TIMES, "memory.peak")


def broken_limits(limits: list[str], summary: dict[str, Any], measured: float | None) -> list[str]:
    """Return a line for each limit that a prediction exceeds.

    ``error=10%`` needs a measured time; ``step.time=12ms`` and ``gpu.active=8ms`` take times,
    ``memory.peak=16GiB`` takes bytes: of tensors, workspace and context, as reports show.
    """
    return [line for text in limits if (line := _broken_limit(text, summary, measured))]


def _broken_limit(text: str, summary: dict[str, Any], measured: float | None) -> str:
    name, _, bound = text.partition("=")
    if name == "memory.peak":
        return _broken_memory_limit(bound, summary["memory"])
    if name in TIMES:
        value, limit = summary[TIMES[name]], parse_time(bound, f"--limit {name}")
        return f"{name} is {value / 1e3:.3f} ms, over the limit of {bound}" if value > limit else ""
    if name != "error":
        message = f"--limit: unknown figure {name!r}{suggestion(name, FIGURES)}"
        raise fail(message, hint=f"figures: {', '.join(FIGURES)}", exit_code=2)
    match = QUANTITY.fullmatch(bound)
    if match is None or match[2] != "%":
        raise fail(f"--limit error: give a percentage such as 10%, not {bound!r}", exit_code=2)
    if measured is None:
        raise fail("--limit error needs a measured time: add --measured", exit_code=2)
    error = abs(summary["step_time_us"] / measured - 1) * 100
    return f"error is {error:.1f}%, over the limit of {bound}" if error > float(match[1]) else ""


def _broken_memory_limit(bound: str, memory: dict[str, Any]) -> str:
    match = QUANTITY.fullmatch(bound.strip())
    if match is None or match[2] not in BYTES:
        hint = f"give bytes with their unit, such as 16GiB ({', '.join(BYTES)})"
        raise fail(f"--limit memory.peak: not a size: {bound!r}", hint=hint, exit_code=2)
    needed_bytes = memory["needed_bytes"]
    if needed_bytes <= float(match[1]) * BYTES[match[2]]:
        return ""
    assumed_mib = memory["workspace_and_context_bytes"] / 2**20
    assumed = (
        f" ({assumed_mib:.1f} MiB of it assumed for workspace and context)" if assumed_mib else ""
    )
    return f"memory.peak is {needed_bytes / 2**30:.2f} GiB{assumed}, over the limit of {bound}"
