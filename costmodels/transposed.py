"""Copies that change the order of elements."""

from __future__ import annotations

from costmodels.elements import streaming
from costmodels.machine import Machine, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.tensor import Tensor

SHARE = 0.6
"""Share of DRAM bandwidth of copies that read across rows (traced: 5.75 MB in 12-13 us)."""

FORMULA = "bytes at the share of bandwidth that strided access reaches, plus the launch floor"


def transposed_copy(source: Tensor, result: Tensor, machine: Machine) -> Kernel:
    """Return the copy of a strided tensor; rows that stay whole run at full bandwidth."""
    whole = source.strides is not None and source.strides[-1:] == (1,) and result.contiguous
    nbytes = (traffic(source) + traffic(result)) / (1.0 if whole else SHARE)
    time = streaming(machine, nbytes, elements=result.numel)
    return work("transpose", f"permute {shape_text(result)}", time, 0.4, FORMULA)
