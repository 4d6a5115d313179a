"""Kernels that move elements: the roofline of memory with a launch floor, and copies."""

from __future__ import annotations

import math

from costmodels.formulas.intervals import CLOSE, FEW, UNTRACED
from costmodels.formulas.machine import Machine, shape_text, traffic, work
from costmodels.formulas.offsets import BROADCAST_PER_CYCLE
from costmodels.formulas.strided import WHOLE_SHARES, strided_time
from irgraph.ir.cost import Kernel
from irgraph.ir.points.point_values import maximum
from irgraph.ir.tensor import Tensor

ROOFLINE = "max(flop / peak, bytes / DRAM bandwidth) (paper, III-B-1b), plus the launch floor"


def launch_floor(machine: Machine) -> float:
    """Return microseconds of any kernel in addition to its work; 0 with the paper's formulas."""
    return 0.0 if machine.paper else machine.start


def streaming(machine: Machine, nbytes: float, flops: float = 0.0, elements: float = 0.0) -> float:
    """Return microseconds of a kernel that streams through memory.

    Args:
        machine: the device.
        nbytes: distinct bytes to read and write.
        flops: FLOP of its arithmetic, for the roofline's other side.
        elements: elements that need an offset computation (broadcast or strided operands).
    """
    peak = machine.sheet.peak("f32")[0]
    offsets = 0.0 if machine.paper else elements / (BROADCAST_PER_CYCLE * machine.sheet.sms)
    bound = maximum(machine.stream(nbytes), flops / peak / 1e3, machine.cycles(offsets))
    return bound + launch_floor(machine)


def broadcast_copy(source: Tensor, result: Tensor, machine: Machine) -> Kernel:
    """Return the copy of a smaller tensor into every part of a larger one."""
    time = streaming(machine, traffic(source) + traffic(result), elements=result.numel)
    return work("elementwise", f"broadcast to {shape_text(result)}", time, CLOSE, ROOFLINE)


def channels_last(tensor: Tensor) -> bool:
    """Return whether the channels of an image, its second axis, are contiguous."""
    strides = tensor.strides
    return strides is not None and strides[1:2] == (1,) and math.prod(tensor.shape[2:]) > 1


CROSSING_SHARE = 0.6
"""Share of DRAM bandwidth of copies that read across rows (traced: 5.75 MB in 12-13 us on V100)."""

CROSSING = "bytes at the share of bandwidth that strided access reaches, plus the launch floor"
SECTORS = "offsets of all elements, and the sectors that reads across rows fetch (measured: H100)"


def transposed_copy(source: Tensor, result: Tensor, machine: Machine) -> Kernel:
    """Return the copy of a strided tensor; contiguous rows are read in order."""
    name = f"permute {shape_text(result)}"
    if machine.sheet.architecture in WHOLE_SHARES and not machine.paper:
        time = strided_time(source, result, machine) + machine.start
        return work("transpose", name, time, FEW, SECTORS)
    has_whole_rows = (
        source.strides is not None and source.strides[-1:] == (1,) and result.contiguous
    )
    nbytes = traffic(source, result) / (1.0 if has_whole_rows else CROSSING_SHARE)
    time = streaming(machine, nbytes, elements=result.numel)
    return work("transpose", name, time, UNTRACED, CROSSING)
