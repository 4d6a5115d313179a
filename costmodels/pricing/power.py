"""The draw of products, for the clock that a step sustains (``irgraph.predict.power``)."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.devices.power import sustained_rate
from costmodels.formulas.machine import Machine
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import if_else, maximum
from irgraph.ops.flops import flops
from irgraph.predict.power import EXPONENT, STREAMING

FAMILIES = ("gemm", "attention", "conv")
"""Families whose kernels may reach the rate at which the power limit holds."""


def with_draw(op: Op, kernels: tuple[Kernel, ...], machine: Machine) -> tuple[Kernel, ...]:
    """Return an op's kernels, products with their draw as a share of the power limit.

    At the rate that the card sustains the draw is the limit. A slower kernel leaves units idle and
    draws in proportion, a faster one runs at a higher clock. A kernel that draws no more than one
    that streams through memory does not count as a product.
    """
    products = [kernel for kernel in kernels if kernel.family in FAMILIES]
    if machine.paper or not products or not op.inputs:
        return kernels
    rate = sustained_rate(machine.sheet, op.inputs[0].dtype)
    if rate is None:
        return kernels
    flop = sum(flops(leaf) or 0 for leaf in op.walk() if not leaf.body)
    time = sum(kernel.time for kernel in products)
    share = flop / (time * rate * 1e3)
    draw = if_else(share > STREAMING, maximum(share, share**EXPONENT), 0.0)
    return tuple(replace(k, power=draw) if k.family in FAMILIES else k for k in kernels)
