"""Roofline of a step: operations, bytes, rates and the bound of each call."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from irgraph.backend import DeviceFacts
from irgraph.capture.kineto.events.families import family_of
from irgraph.capture.kineto.reading.trace import EventKind

SPREAD = ("min_us", "median_us", "max_us")
"""Columns of the spread of equal calls."""

GROUPINGS = ("shape", "op", "kernel")
"""Groupings of calls; ``shape`` only has calls with known operations."""

MULTIPLIES = frozenset(("gemm", "convolution", "attention"))
"""Families of kernels that perform the operations of a call."""

_AUXILIARY = re.compile(
    r"reduc|Offsets|generateWinogradTiles|scalePackedTensor|im2col|epilogue::|precompute|globalKernel"
)
"""Pattern in names of kernels of those families that only prepare or sum up."""


class CallWork(Struct, frozen=True):
    """Device work of one call.

    Attributes:
        op: name of the operator.
        shape: types and shapes of its operands.
        dtype: the element type in which it computes.
        kernels: name and microseconds of each piece of work.
        flop: floating-point operations, ``None`` if they are unknown or not counted.
        nbytes: minimum number of bytes moved, ``None`` if it is unknown.
        over_link: whether it copies between host and device, which no roofline bounds.
    """

    op: str
    shape: str
    dtype: str
    kernels: tuple[tuple[str, float], ...]
    flop: float | None = None
    nbytes: float | None = None
    over_link: bool = False

    @property
    def time(self) -> float:
        """Time of device work in microseconds."""
        return sum(time for _, time in self.kernels)

    @property
    def counted(self) -> bool:
        """Whether its operations or its bytes are known."""
        return self.flop is not None or self.nbytes is not None


class RooflineRow(Struct, frozen=True):
    """One row of a roofline, of all equivalent calls; times in microseconds per step.

    Attributes:
        name: name of the operator or kernel, or of the operator with shapes.
        calls, time: number of calls and their time, per step.
        flop, nbytes: operations and bytes per step of calls with known values; ``None`` without
            such calls.
        flop_time, bytes_time: time of those calls.
        compute, memory: time of those calls at the device's peak and at its memory's bandwidth;
            ``None`` if the device is unknown.
        limit_time, limited_time: sum of the larger limit of each call, and the time of all calls
            with a limit.
        uncounted: calls per step with unknown operations and bytes.
        spread: minimum, median and maximum time of a call.
    """

    name: str
    calls: float
    time: float
    flop: float | None
    nbytes: float | None
    flop_time: float
    bytes_time: float
    compute: float | None
    memory: float | None
    limit_time: float
    limited_time: float
    uncounted: float
    spread: tuple[float, float, float]

    @property
    def bound(self) -> str:
        """Limiting resource: ``compute`` or ``memory``, ``""`` if unknown."""
        if not self.limit_time:
            return ""
        return "compute" if (self.compute or 0.0) > (self.memory or 0.0) else "memory"

    def row(self, grouping: str, total: float) -> dict[str, Any]:
        """Return the figures as plain values, ``None`` if unknown; ``total`` is of all rows."""
        return {
            grouping: self.name,
            "calls": round(self.calls, 2),
            "us": round(self.time, 3),
            **dict(zip(SPREAD, (round(us, 3) for us in self.spread), strict=True)),
            "share": _ratio(self.time, total),
            "gflop": _scaled(self.flop, 1e9),
            "mbyte": _scaled(self.nbytes, 1e6),
            "tflop_s": _scaled(self.flop, 1e6 * self.flop_time),
            "tb_s": _scaled(self.nbytes, 1e6 * self.bytes_time),
            "of_peak": _ratio(self.compute, self.flop_time),
            "of_bandwidth": _ratio(self.memory, self.bytes_time),
            "of_limit": _ratio(self.limit_time or None, self.limited_time),
            "bound": self.bound,
            "uncounted_calls": round(self.uncounted, 2),
        }


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None or not unit else float(f"{value / unit:.6g}")


def _ratio(value: float | None, total: float) -> float | None:
    return None if value is None or not total else float(f"{value / total:.6g}")


def roofline(
    works: Iterable[CallWork],
    grouping: str = "op",
    device: DeviceFacts | None = None,
    steps: int = 1,
) -> list[RooflineRow]:
    """Return the rows of a roofline, the longest first.

    Args:
        works: the calls of some steps.
        grouping: one of ``GROUPINGS``.
        device: device with the limits; ``None`` if it is unknown.
        steps: number of steps of the calls.
    """
    groups: dict[str, list[CallWork]] = defaultdict(list)
    for work in works:
        for name, part in _parts(work, grouping):
            groups[name].append(part)
    rows = [_roofline_row(name, group, device, steps) for name, group in groups.items()]
    return sorted(rows, key=lambda row: -row.time)


def _parts(work: CallWork, grouping: str) -> list[tuple[str, CallWork]]:
    """Return the names of a call's rows, each with its share of the call's work."""
    if grouping == "op":
        return [(work.op, work)]
    if grouping == "shape":
        return [(f"{work.op}({work.shape})", work)] if work.flop is not None else []
    return [(kernel[0], _kernel_work(work, kernel)) for kernel in work.kernels]


def _kernel_work(work: CallWork, kernel: tuple[str, float]) -> CallWork:
    """Return the share of one kernel in a call's work.

    Operations are assigned to the kernels that multiply if all of them have one name, bytes to all
    kernels if all have one name: otherwise the shares are unknown.
    """
    has_one_name = len({name for name, _ in work.kernels}) == 1
    multiplying = [name for name, _ in work.kernels if has_one_name or _multiplies(name)]
    flop, nbytes = work.flop, work.nbytes
    flop = flop / len(multiplying) if flop is not None and set(multiplying) == {kernel[0]} else None
    nbytes = nbytes / len(work.kernels) if nbytes is not None and has_one_name else None
    return replace(work, kernels=(kernel,), flop=flop, nbytes=nbytes)


def _multiplies(kernel: str) -> bool:
    return family_of(kernel, EventKind.KERNEL) in MULTIPLIES and not _AUXILIARY.search(kernel)


def _roofline_row(
    name: str, works: Sequence[CallWork], device: DeviceFacts | None, steps: int
) -> RooflineRow:
    flops = [work for work in works if work.flop is not None]
    moves = [work for work in works if work.nbytes is not None]
    limits = [_limits(work, device) for work in works]
    limited_works = [work for work, limit in zip(works, limits, strict=True) if limit is not None]
    known_limits = [limit for limit in limits if limit is not None]
    return RooflineRow(
        name,
        len(works) / steps,
        sum(work.time for work in works) / steps,
        sum(work.flop or 0 for work in flops) / steps if flops else None,
        sum(work.nbytes or 0 for work in moves) / steps if moves else None,
        sum(work.time for work in flops) / steps,
        sum(work.time for work in moves) / steps,
        sum(compute for compute, _ in known_limits) / steps if known_limits and flops else None,
        sum(memory for _, memory in known_limits) / steps if known_limits and moves else None,
        sum(max(limit) for limit in known_limits) / steps,
        sum(work.time for work in limited_works) / steps,
        sum(not work.counted for work in works) / steps,
        spread_of([work.time for work in works]),
    )


def spread_of(times: Sequence[float]) -> tuple[float, float, float]:
    """Return the minimum, the median and the maximum of some times."""
    return min(times), median(times), max(times)


def kernels_by_operator(works: Iterable[CallWork], steps: int = 1) -> list[dict[str, Any]]:
    """Return a row for each kernel of each operator with its shapes, the longest operators first.

    Times and numbers of events are means per step, the spread is of single events.
    """
    groups: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for work in works:
        for kernel, time in work.kernels:
            groups[work.op, work.shape][kernel].append(time)
    ordered = sorted(groups.items(), key=lambda item: -sum(map(sum, item[1].values())))
    return [
        {
            "op": op,
            "shape": shape,
            "kernel": kernel,
            "events": round(len(times) / steps, 2),
            "us": round(sum(times) / steps, 3),
            **dict(zip(SPREAD, (round(us, 3) for us in spread_of(times)), strict=True)),
        }
        for (op, shape), kernels in ordered
        for kernel, times in sorted(kernels.items(), key=lambda item: -sum(item[1]))
    ]


def _limits(work: CallWork, device: DeviceFacts | None) -> tuple[float, float] | None:
    """Return the times at the device's peak and at its memory's bandwidth in microseconds."""
    if device is None or work.over_link or not work.counted:
        return None
    compute = (work.flop or 0) / device.peak(work.dtype)[0] / 1e3 if work.flop else 0.0
    return compute, (work.nbytes or 0) / device.bandwidth / 1e3


def uncounted_operators(works: Iterable[CallWork], steps: int = 1) -> list[dict[str, Any]]:
    """Return the operators with calls of unknown operations and bytes, as plain rows."""
    missing = [work for work in works if not work.counted]
    rows = roofline(missing, "op", steps=steps)
    return [{"op": r.name, "calls": round(r.calls, 2), "us": round(r.time, 3)} for r in rows]
