"""Optimizer updates over lists of tensors; updates tensor by tensor are element-wise ops."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.elements import ERROR, ROOFLINE
from costmodels.machine import SMALL, Machine, Rule, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

MOST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors that one launch takes, by how many lists it walks (torch, MultiTensorApply.cuh)."""

MOST_BLOCKS, CHUNK = 320, 65536
"""Blocks of a launch, and elements that a block works on (torch, MultiTensorApply.cuh)."""


def launches(sizes: Sequence[int], lists: int) -> int:
    """Return how many kernels a list update needs for tensors of these numbers of elements."""
    blocks = sum(-(-size // CHUNK) for size in sizes)
    return max(-(-len(sizes) // MOST_TENSORS.get(lists, 30)), -(-blocks // MOST_BLOCKS), 1)


def _foreach(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    lists = [v for v in op.operands if isinstance(v, tuple) and v]
    first = [t for t in lists[0] if isinstance(t, Tensor)] if lists else []
    if not first:
        return None
    if any(t.device == "cpu" for t in first):
        return ()
    read = {t.name: t for t in op.inputs}
    written = [*op.outputs, *(t for t in read.values() if t.name in op.written)]
    source = [] if op.base == "_foreach_zero_" else list(read.values())
    count = launches([t.numel for t in first], len(lists))
    time = machine.stream(sum(map(traffic, (*source, *written)))) / count + SMALL
    name = f"{op.base} {len(first)} tensors"
    return (work("optimizer", name, time, ERROR, ROOFLINE),) * count


FOREACH = (
    "add", "add_", "sub", "sub_", "mul", "mul_", "div", "div_", "addcmul_", "addcdiv_",
    "addcmul", "addcdiv", "sqrt", "sqrt_", "neg", "neg_", "lerp_", "lerp", "zero_", "copy_",
    "maximum_", "maximum", "clamp_min_", "reciprocal_", "pow", "exp", "abs", "sign",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten._foreach_{name}": _foreach for name in FOREACH},
    **{f"aten._fused_{name}": _foreach for name in ("sgd_", "adam_", "adamw_", "adagrad_")},
    "irgraph.fused_adam": _foreach,
}
