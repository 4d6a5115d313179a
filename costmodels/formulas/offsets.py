"""How long an element-wise kernel takes that goes over its elements one by one.

torch's kernels go over vectors where all operands lie alike. Otherwise each access works out where
its element lies, or what type it has: broadcast or strided operands, and types that differ, which
the kernel converts as it loads and stores (TensorIterator, ``gpu_kernel_impl``). Constants of
Hopper were measured on an H100 SXM 80 GB, torch 2.11; Blackwell is taken as Hopper.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from costmodels.formulas.machine import Machine, stored, traffic
from costmodels.formulas.strided import WHOLE_SHARES, sectors_time
from irgraph.ir.points.point_values import maximum
from irgraph.ir.tensor import Tensor

BROADCAST_PER_CYCLE = 1.4
"""Elements a cycle and multiprocessor of kernels that compute an offset for each element (traced
``unrolled_elementwise_kernel`` of the bias copies: 145 G elements/s on V100 at 1297 MHz)."""

ACCESSES = 4.5
"""Loads and stores a cycle and multiprocessor of Hopper whose offsets are worked out: sums of 16
bits with a row (290 M in 744 us, three accesses each)."""

CASTS = 2.9
"""The same where types are converted (casts of 195 M bytes to f16 in 513 us, two accesses each);
2.8 would be V100's rate of casts, so that other cards are taken alike."""


def is_cast(operands: Iterable[Tensor]) -> bool:
    """Return whether a kernel converts types as it loads and stores; masks are no numbers."""
    return len({t.dtype for t in operands if t.numel > 1 and t.dtype != "bool"}) > 1


def needs_offsets(operands: Iterable[Tensor], count: int) -> bool:
    """Return whether a kernel must compute offsets: for broadcast or strided operands.

    Not where all are dense in one order of axes, such as ``channels_last``: it goes over them as
    over vectors (torch's TensorIterator).
    """
    many = [t for t in operands if t.numel > 1]
    if any(t.numel != count or not t.dense for t in many):
        return True
    return len({None if t.contiguous else t.strides for t in many}) > 1


def one_by_one(
    read: Sequence[Tensor], written: Sequence[Tensor], count: int, machine: Machine
) -> float:
    """Return microseconds beside the launch; 0 where a kernel goes over vectors."""
    operands = (*read, *written)
    strided, sms = needs_offsets(operands, count), machine.sheet.sms
    converted = 0.0
    if is_cast(operands):
        converted = machine.cycles(count * len(operands) / (CASTS * sms))
    if not strided:
        return converted
    if machine.sheet.architecture not in WHOLE_SHARES:
        return maximum(converted, machine.cycles(count / (BROADCAST_PER_CYCLE * sms)))
    moved = machine.stream(traffic(*operands), WHOLE_SHARES[machine.sheet.architecture])
    placed = machine.cycles(count * len(operands) / (ACCESSES * sms))
    across = [t for t in read if written and stored(t) == count]
    crossed = sum(sectors_time(t, written[0], machine) for t in across)
    return maximum(maximum(moved, placed), converted) + crossed
