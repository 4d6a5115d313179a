"""Times of elementwise kernels that process their elements individually.

torch's kernels process vectors if all operands have the same layout. Otherwise each access computes
the offset of its element, or its type: for broadcast or strided operands, and for different types,
which the kernel converts on load and store (TensorIterator, ``gpu_kernel_impl``). Constants of
Hopper were measured on an H100 SXM 80 GB, torch 2.11; Blackwell is assumed to equal Hopper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from costmodels.formulas.machine import Machine, distinct_elements, traffic
from costmodels.formulas.strided import WHOLE_SHARES, sectors_time
from irgraph.ir.points.point_values import maximum
from irgraph.ir.tensor import Tensor

BROADCAST_PER_CYCLE = 1.4
"""Elements per cycle and multiprocessor of kernels that compute an offset for each element (traced
``unrolled_elementwise_kernel`` of the bias copies: 145 G elements/s on V100 at 1297 MHz)."""

ACCESSES = 4.5
"""Loads and stores with computed offsets per cycle and multiprocessor of Hopper: sums of 16 bits
with a row (290 M in 744 us, three accesses each)."""

CASTS = 2.9
"""Loads and stores with a conversion of types (casts of 195 M bytes to f16 in 513 us, two accesses
each); V100's rate of casts would be 2.8: the same rate is assumed for other cards."""


def is_cast(operands: Iterable[Tensor]) -> bool:
    """Return whether a kernel converts types on load and store; masks are not numbers."""
    return len({t.dtype for t in operands if t.numel > 1 and t.dtype != "bool"}) > 1


def needs_offsets(operands: Iterable[Tensor], count: int) -> bool:
    """Return whether a kernel must compute offsets: for broadcast or strided operands.

    Operands that are dense in one order of axes, such as ``channels_last``, need none: they are
    processed as vectors (torch's TensorIterator).
    """
    many = [t for t in operands if t.numel > 1]
    if any(t.numel != count or not t.dense for t in many):
        return True
    return len({None if t.contiguous else t.strides for t in many}) > 1


def unvectorized_time(
    read: Sequence[Tensor], written: Sequence[Tensor], count: int, machine: Machine
) -> float:
    """Return microseconds without the launch; 0 if a kernel processes vectors."""
    operands = (*read, *written)
    strided, sms = needs_offsets(operands, count), machine.sheet.sms
    cast_time = 0.0
    if is_cast(operands):
        cast_time = machine.cycles(count * len(operands) / (CASTS * sms))
    if not strided:
        return cast_time
    if machine.sheet.architecture not in WHOLE_SHARES:
        return maximum(cast_time, machine.cycles(count / (BROADCAST_PER_CYCLE * sms)))
    memory_time = machine.stream(traffic(*operands), WHOLE_SHARES[machine.sheet.architecture])
    offset_time = machine.cycles(count * len(operands) / (ACCESSES * sms))
    across = [t for t in read if written and distinct_elements(t) == count]
    sector_time = sum(sectors_time(t, written[0], machine) for t in across)
    return maximum(maximum(memory_time, offset_time), cast_time) + sector_time
