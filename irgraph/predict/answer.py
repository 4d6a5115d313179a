"""The answer of a prediction in words: step time, bound, throughput, sources."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from irgraph.ir.cost import COLLECTIVE
from irgraph.ir.dim import BATCH
from irgraph.report.console import bytes_text, rounded_times, time_text
from irgraph.schedule.intervals import KERNEL, cause_name, host_time

COMMUNICATION = f"{KERNEL}{COLLECTIVE}"
"""Cause of the time of collectives on a critical path."""

MAJORITY = 0.5
"""Share of the critical path from which on something bounds the step."""


FLOP_UNITS = (("FLOP", 1.0), ("MFLOP", 1e6), ("GFLOP", 1e9), ("TFLOP", 1e12), ("PFLOP", 1e15))
"""Units of operations, each for counts from its size on."""

BOUNDS = {
    "host": "Host-bound",
    "data loader": "Input-bound",
    "collectives": "Communication-bound",
    "kernels": "Device-bound",
    "latencies and waits": "Latency-bound",
}
"""Kinds of work on a critical path, and the adjective for a step that is mostly of that kind."""


def answer(summary: Mapping[str, Any], measured: float | None = None) -> Iterator[str]:
    """Yield the lines of the answer of ``Prediction.summary``, without its warnings.

    ``measured`` is a step time in microseconds.
    """
    step, (low, high) = summary["step_time_us"], summary["step_time_interval_us"]
    yield f"{summary['device']['name']}: {rounded_times(step, low, high)}. {bound(summary)}"
    if measured is not None:
        yield f"Measured: {time_text(measured)}; the prediction is {step / measured - 1:+.1%} off."
    for label, time in times_of_other_steps(summary):
        yield f"{label[0].upper()}{label[1:]}: {time}."
    yield f"{title(summary)}: {', '.join(_rates(summary))}."
    yield f"Host {summary['host']}. {_sources(summary)}"


def times_of_other_steps(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the times of a program's rarer steps and the mean of all steps, each with a label."""
    for rarer in summary["rarer_steps"]:
        count, period = Fraction(rarer["share"]).as_integer_ratio()
        yield f"{count} in {period} steps", time_text(rarer["step_time_us"])
    if summary["rarer_steps"]:
        yield "mean of all steps", time_text(summary["mean_step_time_us"])


def bound(summary: Mapping[str, Any]) -> str:
    """Return a sentence on which kind of work is most of the critical path."""
    path, step = summary["critical_path_us"], summary["step_time_us"] or 1.0
    times = _times_by_work(path)
    first, second = sorted(times, key=lambda work: -times[work])[:2]
    share = times[first] / step
    if share < MAJORITY:
        return f"No single bound: {first} {share:.0%}, {second} {times[second] / step:.0%}."
    text = f"{BOUNDS[first]}: {first} {share:.0%} of the critical path"
    return f"{text}, {_largest(path, step)}." if first == "kernels" else f"{text}."


def _times_by_work(path: Mapping[str, float]) -> dict[str, float]:
    host, loader = host_time(path), path.get("loader", 0.0)
    collectives = path.get(COMMUNICATION, 0.0)
    kernels = sum(time for cause, time in path.items() if cause.startswith(KERNEL)) - collectives
    rest = sum(path.values()) - host - loader - collectives - kernels
    return dict(zip(BOUNDS, (host, loader, collectives, kernels, rest), strict=True))


def _largest(path: Mapping[str, float], step: float) -> str:
    """Return the two largest families of kernels on a path with their shares."""
    kernels = [cause for cause in path if cause.startswith(KERNEL)]
    causes = sorted(kernels, key=lambda cause: -path[cause])[:2]
    return " and ".join(f"{cause_name(cause)} {path[cause] / step:.0%}" for cause in causes)


def title(summary: Mapping[str, Any]) -> str:
    """Return the model's name and its sizes."""
    dims = ", ".join(f"{name} = {size}" for name, size in summary["dims"].items())
    return f"{summary['model']} ({dims})" if dims else str(summary["model"])


def _rates(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield samples a second over all steps, operations and memory of the usual step."""
    step, flop, mean = (summary[key] for key in ("step_time_us", "flop", "mean_step_time_us"))
    if BATCH in summary["dims"] and mean:
        samples = summary["dims"][BATCH] * summary["batches"]
        yield f"{_rounded(samples / mean * 1e6)} samples a second"
    if flop and step:
        yield f"{flop_text(flop)} of products at {flop_text(flop / step * 1e6)}/s"
    memory = summary["memory"]
    verdict = "" if memory["fits"] else ", which DOES NOT FIT"
    needed, available = map(bytes_text, (memory["needed_bytes"], memory["device_bytes"]))
    yield f"memory {needed} of {available}{cached_text(memory)}{verdict}"


def cached_text(memory: Mapping[str, Any]) -> str:
    """Return the memory that is needed with all blocks that torch's allocator caches."""
    if memory["reserved_bytes"] is None:
        return ""
    bytes_with_blocks = memory["reserved_bytes"] + memory["workspace_and_context_bytes"]
    return f" (up to {bytes_text(bytes_with_blocks)} with cached blocks)"


def _rounded(number: float) -> str:
    """Return a number with three digits, thousands separated."""
    decimals = 2 - math.floor(math.log10(number)) if number > 0 else 0
    return f"{round(number, decimals):,.{max(0, decimals)}f}"


def flop_text(flop: float) -> str:
    """Return operations with the largest unit of ``FLOP_UNITS`` that is not above them."""
    unit, size = [(unit, size) for unit, size in FLOP_UNITS if size <= max(flop, 1.0)][-1]
    return f"{_rounded(flop / size)} {unit}"


def _sources(summary: Mapping[str, Any]) -> str:
    """Return the sources of the device's time, and the number of ops without a model."""
    shares = ", ".join(f"{share:.0%} {source}" for source, share in summary["coverage"].items())
    text = f"Device time: {shares or 'none'}."
    count = sum(summary["unknown"]["ops"].values())
    if not count:
        return text
    return f"{text} No model knows {count} op{'s' * (count > 1)}: the time is a lower bound."
