"""The roofline of a step: what each call computes and moves, how fast, and what bounds it."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from irgraph.backend import DeviceFacts
from irgraph.capture.kineto.events.families import family_of
from irgraph.capture.kineto.reading.trace import EventKind

BY = ("shape", "op", "kernel")
"""What calls can be grouped by; by shape those that multiply and add alone."""

MULTIPLIES = frozenset(("gemm", "convolution", "attention"))
"""Families of kernels that do the operations of a call."""

_PREPARES = re.compile(
    r"reduc|Offsets|generateWinogradTiles|scalePackedTensor|im2col|epilogue::|precompute|globalKernel"
)
"""What names of kernels of those families hold that prepare or sum up."""


class CallWork(Struct, frozen=True):
    """Device work of one call.

    Attributes:
        op: name of the operator.
        shape: types and shapes of its operands.
        dtype: the element type in which it computes.
        kernels: name and microseconds of each piece of work.
        flop: floating-point operations, ``None`` where they are not known or not counted.
        nbytes: bytes that it must move at least, ``None`` where they are not known.
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
        """Microseconds of device work."""
        return sum(time for _, time in self.kernels)

    @property
    def counted(self) -> bool:
        """Whether its operations or its bytes are known."""
        return self.flop is not None or self.nbytes is not None


class RooflineRow(Struct, frozen=True):
    """One row of a roofline, of all calls alike; times in microseconds a step.

    Attributes:
        name: of the operator, kernel or operator with shapes.
        calls, time: a step.
        flop, nbytes: a step, of the calls of which they are known; ``None`` where of none.
        flop_time, bytes_time: time of those calls.
        compute, memory: time that the device's peak and its memory would take for them; ``None``
            where the device is not known.
        least, limited: the larger of the two, call by call, and the time of the calls that have
            either.
        uncounted: calls a step of which neither operations nor bytes are known.
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
    least: float
    limited: float
    uncounted: float

    @property
    def bound(self) -> str:
        """What would take longer at its limit: ``compute`` or ``memory``; ``""`` if unknown."""
        if not self.least:
            return ""
        return "compute" if (self.compute or 0.0) > (self.memory or 0.0) else "memory"

    def row(self, by: str, total: float) -> dict[str, Any]:
        """Return the figures as plain values, ``None`` where unknown; ``total`` is of all rows."""
        return {
            by: self.name,
            "calls": round(self.calls, 2),
            "us": round(self.time, 3),
            "share": _ratio(self.time, total),
            "gflop": _scaled(self.flop, 1e9),
            "mbyte": _scaled(self.nbytes, 1e6),
            "tflop_s": _scaled(self.flop, 1e6 * self.flop_time),
            "tb_s": _scaled(self.nbytes, 1e6 * self.bytes_time),
            "of_peak": _ratio(self.compute, self.flop_time),
            "of_bandwidth": _ratio(self.memory, self.bytes_time),
            "of_limit": _ratio(self.least or None, self.limited),
            "bound": self.bound,
            "uncounted_calls": round(self.uncounted, 2),
        }


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None or not unit else float(f"{value / unit:.6g}")


def _ratio(value: float | None, whole: float) -> float | None:
    return None if value is None or not whole else float(f"{value / whole:.6g}")


def roofline(
    works: Iterable[CallWork], by: str = "op", device: DeviceFacts | None = None, steps: int = 1
) -> list[RooflineRow]:
    """Return the rows of a roofline, the longest first.

    Args:
        works: the calls of some steps.
        by: one of ``BY``.
        device: whose limits hold; ``None`` where it is not known.
        steps: how many steps the calls are of.
    """
    groups: dict[str, list[CallWork]] = defaultdict(list)
    for work in works:
        for name, part in _parts(work, by):
            groups[name].append(part)
    rows = [_roof(name, group, device, steps) for name, group in groups.items()]
    return sorted(rows, key=lambda row: -row.time)


def _parts(work: CallWork, by: str) -> list[tuple[str, CallWork]]:
    """Return what a call adds to the rows."""
    if by == "op":
        return [(work.op, work)]
    if by == "shape":
        return [(f"{work.op}({work.shape})", work)] if work.flop is not None else []
    return [(kernel[0], _of_kernel(work, kernel)) for kernel in work.kernels]


def _of_kernel(work: CallWork, kernel: tuple[str, float]) -> CallWork:
    """Return what one kernel of a call does.

    Operations go to the kernels that multiply where all have one name, bytes to those of a call
    whose kernels all do: how others share them is not known.
    """
    alone = len({name for name, _ in work.kernels}) == 1
    several = [name for name, _ in work.kernels if alone or _multiplies(name)]
    flop, nbytes = work.flop, work.nbytes
    flop = flop / len(several) if flop is not None and set(several) == {kernel[0]} else None
    nbytes = nbytes / len(work.kernels) if nbytes is not None and alone else None
    return replace(work, kernels=(kernel,), flop=flop, nbytes=nbytes)


def _multiplies(kernel: str) -> bool:
    return family_of(kernel, EventKind.KERNEL) in MULTIPLIES and not _PREPARES.search(kernel)


def _roof(
    name: str, works: Sequence[CallWork], device: DeviceFacts | None, steps: int
) -> RooflineRow:
    flops = [work for work in works if work.flop is not None]
    moves = [work for work in works if work.nbytes is not None]
    limits = [_limits(work, device) for work in works]
    limited = [work for work, limit in zip(works, limits, strict=True) if limit is not None]
    known = [limit for limit in limits if limit is not None]
    return RooflineRow(
        name,
        len(works) / steps,
        sum(work.time for work in works) / steps,
        sum(work.flop or 0 for work in flops) / steps if flops else None,
        sum(work.nbytes or 0 for work in moves) / steps if moves else None,
        sum(work.time for work in flops) / steps,
        sum(work.time for work in moves) / steps,
        sum(compute for compute, _ in known) / steps if known and flops else None,
        sum(memory for _, memory in known) / steps if known and moves else None,
        sum(max(limit) for limit in known) / steps,
        sum(work.time for work in limited) / steps,
        sum(not work.counted for work in works) / steps,
    )


def _limits(work: CallWork, device: DeviceFacts | None) -> tuple[float, float] | None:
    """Return microseconds at the device's peak and at its memory's bandwidth."""
    if device is None or work.over_link or not work.counted:
        return None
    compute = (work.flop or 0) / device.peak(work.dtype)[0] / 1e3 if work.flop else 0.0
    return compute, (work.nbytes or 0) / device.bandwidth / 1e3


def uncounted(works: Iterable[CallWork], steps: int = 1) -> list[dict[str, Any]]:
    """Return the operators with calls of which neither operations nor bytes are known."""
    missing = [work for work in works if not work.counted]
    rows = roofline(missing, "op", steps=steps)
    return [{"op": r.name, "calls": round(r.calls, 2), "us": round(r.time, 3)} for r in rows]
