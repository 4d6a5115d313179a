"""Figures of a V100-SXM2-16GB, as published, for times that tests work out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from costmodels.families import rules
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from tests.costmodels.families.helpers import NEW, kernels, machine

PEAK = 15.7e6 * 1297 / 1530
"""Flop a microsecond: the datasheet's 15.7 TFLOP/s at 1530 MHz, at the 1297 MHz of the traces."""

FLOOR = 2.7
"""Microseconds of a kernel that moves next to nothing (four V100 traces of 2021)."""

SPREAD = 1.7
"""Half the interval around it, microseconds."""


def dram(nbytes: float) -> float:
    """Return microseconds at the 816.953 GB/s that gpuroofperf-toolkit measured."""
    return nbytes / 816.953e3


def walked(nbytes: float, lists: int, steps: int = 32, slower: float = 1.0) -> float:
    """Return microseconds of a list update at 1297 MHz, whose blocks take ``steps`` of 2048."""
    far = min(max(nbytes / 6_291_456, 0.5), 1.0)
    walk = (steps * slower - 1) * (300 + 134 * lists + 500 * far) / 1297
    return math.hypot(dram(nbytes), walk) + FLOOR


def cache(nbytes: float) -> float:
    """Return microseconds at the 2847.457 GB/s of the second-level cache, same source."""
    return nbytes / 2847.457e3


def cycles(elements: float, rate: float) -> float:
    """Return microseconds for elements at so many a cycle and multiprocessor: 80 at 1297 MHz."""
    return elements / rate / 80 / 1297


def times(op: Op, mode: str = "corrected", software: str = NEW) -> list[float]:
    """Return the microseconds of an op's kernels."""
    return [k.time for k in kernels(op, machine(mode=mode, software=software))]


def near(*expected: float) -> list[Any]:
    """Return times that equal others but for rounding."""
    return [pytest.approx(each) for each in expected]


def width(kernel: Kernel) -> float:
    """Return half a kernel's interval beside ``SPREAD``, as a share of its time."""
    return round((kernel.spread - SPREAD) / kernel.time, 9)


def unknown(op: Op) -> bool:
    """Tell whether the family leaves an op to others."""
    return rules()[op.name](op, machine()) is None


def without(op: Op) -> list[Op]:
    """Return an op without results, and without operands."""
    return [replace(op, results=()), replace(op, operands=())]
