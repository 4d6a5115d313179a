"""Figures of a prediction as plain values, for tables and JSON; times in microseconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from irgraph.backend import DeviceFacts
from irgraph.ir.cost import PROVENANCES, Kernel, PowerDraw, Priced
from irgraph.schedule.intervals import KERNEL, cause_name
from irgraph.schedule.memory.peak import Memory, workspace
from irgraph.schedule.sensitivity import Sensitivity, sensitivity
from irgraph.schedule.timeline import Timeline

SPEEDUP = 2.0
"""Factor of the what-ifs that a summary lists."""

MAX_ROWS, MAX_OPERATIONS = 10, 60
"""Maximum number of rows of operations in a summary, and of operations that share these rows."""


def what_ifs(timeline: Timeline, factor: float = SPEEDUP) -> dict[str, Any]:
    """Return the step's time with operations, families and causes ``factor`` times faster.

    Operations of one name with the same saving, to 0.1 us, share a row with their ``count``; its
    times are for a single one of them, its module and origin those of the first.
    """

    def row(what_if: Sensitivity, count: int = 1) -> dict[str, Any]:
        full_location = (
            {"module": what_if.module, "from": what_if.origin} if what_if.kind == "op" else {}
        )
        location = {key: value for key, value in full_location.items() if value}
        count_field = {"count": count} if count > 1 else {}
        times = {"step_time_us": what_if.step_time, "saved_us": what_if.saved}
        return {"kind": what_if.kind, "name": what_if.name, **location, **count_field, **times}

    rows: dict[tuple[str, float], list[Sensitivity]] = {}
    ops, groups = sensitivity(timeline, factor=factor, top=MAX_OPERATIONS)
    for operation in ops:
        rows.setdefault((operation.name, round(operation.saved, 1)), []).append(operation)
    return {
        "factor": factor,
        "ops": [row(similar[0], len(similar)) for similar in list(rows.values())[:MAX_ROWS]],
        "groups": [row(s) for s in groups],
    }


def group_name(row: Mapping[str, Any]) -> str:
    """Return the name of a group of ``what_ifs``: a cause, or a family of kernels."""
    name: str = row["name"]
    return cause_name(name if row["kind"] == "cause" else f"{KERNEL}{name}")


def power_summary(power: PowerDraw | None) -> dict[str, float] | None:
    """Return the power of a step and the time that its limit adds, ``None`` if it is unknown."""
    if power is None:
        return None
    return {"draw": power.draw, "clock": power.clock, "added_us": power.added}


def memory_summary(
    memory: Memory, reserved_bytes: int | None, sheet: DeviceFacts
) -> dict[str, Any]:
    """Return the peak memory and the memory of the device, in bytes.

    ``needed_bytes`` has to fit: tensors at their peak, workspace and context.
    Torch's caching allocator has ``reserved_bytes``: it frees cached blocks of a full device.
    """
    return {
        "needed_bytes": memory.needs(sheet.architecture),
        "peak_bytes": memory.peak,
        "reserved_bytes": reserved_bytes,
        "at": memory.at.name if memory.at is not None else "",
        "by_kind_bytes": dict(memory.by_kind),
        "workspace_and_context_bytes": workspace(sheet.architecture),
        "device_bytes": sheet.memory_bytes,
        "fits": memory.fits(sheet.memory_bytes, sheet.architecture),
    }


def coverage(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Return the share of device time by provenance, and of times outside the models' ranges."""
    times = dict.fromkeys(PROVENANCES, 0.0)
    outside = 0.0
    for kernel in kernels:
        times[kernel.by] += kernel.time
        outside += kernel.time if kernel.outside else 0.0
    total = sum(times.values()) or 1.0
    shares = {provenance: time / total for provenance, time in times.items() if time}
    return {**shares, "outside range": outside / total} if outside else shares


def by_family(kernels: Iterable[Kernel]) -> dict[str, dict[str, float]]:
    """Return count and microseconds of device work by family, longest first."""
    figures: dict[str, dict[str, float]] = {}
    for kernel in kernels:
        entry = figures.setdefault(kernel.family, {"count": 0, "time_us": 0.0})
        entry["count"] += 1
        entry["time_us"] += kernel.time
    return dict(sorted(figures.items(), key=lambda item: -item[1]["time_us"]))


def unknown(priced: Priced) -> dict[str, Any]:
    """Return the ops without a cost model: counts by name, and their share of the bytes."""
    names = Counter(op.name for op in priced.unknown)
    unknown_bytes = sum(t.nbytes for op in priced.unknown for t in (*op.inputs, *op.outputs))
    total_bytes = sum(t.nbytes for op in priced.graph.leaves() for t in (*op.inputs, *op.outputs))
    return {
        "ops": dict(names.most_common()),
        "share_of_bytes": unknown_bytes / total_bytes if total_bytes else 0.0,
    }
