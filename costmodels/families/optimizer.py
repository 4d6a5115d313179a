"""Optimizer updates over lists of tensors; updates tensor by tensor are element-wise ops."""

from __future__ import annotations

from collections.abc import Sequence

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import ROOFLINE
from costmodels.formulas.intervals import CLOSE, FEW
from costmodels.formulas.machine import SMALL, Machine, Rule, members, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.many import most
from irgraph.ir.tensor import Tensor

SOURCE = (
    "roofline (paper, III-B-1b) over all tensors of the lists, in as many launches as torch needs "
    "for them (torch, MultiTensorApply.cuh)"
)

MOST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors that one launch takes, by how many lists it walks (torch, MultiTensorApply.cuh)."""

MOST_BLOCKS, CHUNK = 320, 65536
"""Blocks of a launch, and elements that a block works on (torch, MultiTensorApply.cuh)."""


def launches(sizes: Sequence[int], lists: int) -> int:
    """Return how many kernels a list update needs for tensors of these numbers of elements."""
    blocks = sum(-(-size // CHUNK) for size in sizes)
    return most(-(-len(sizes) // MOST_TENSORS[lists]), -(-blocks // MOST_BLOCKS), 1)


def _lists(op: Op) -> list[list[Tensor]]:
    """Return the non-empty lists of tensors among an op's arguments.

    Behind a plain number they are attributes: ``_foreach_pow(0.9, steps)``.
    """
    return [found for found in map(members, (*op.operands, *op.attributes.values())) if found]


def _kernels(
    op: Op, machine: Machine, first: Sequence[Tensor], depth: int, moved: float
) -> tuple[Kernel, ...]:
    """Return the launches of an update that walks ``depth`` lists and moves ``moved`` bytes."""
    if any(t.device == "cpu" for t in first):
        return ()
    count = launches([t.numel for t in first], depth)
    name = f"{op.base} {len(first)} tensors"
    time = machine.stream(moved) / count + SMALL
    return (work("optimizer", name, time, CLOSE, ROOFLINE),) * count


def _foreach(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one elementary step over lists: all are read, the first or a new one written."""
    lists = _lists(op)
    if not lists:
        return None
    read = {t.name: t for t in op.inputs}
    written = [*op.outputs, *(t for t in read.values() if t.name in op.written)]
    source = [] if op.base == "_foreach_zero_" else list(read.values())
    depth = len(lists) + bool(op.outputs)
    return _kernels(op, machine, lists[0], depth, traffic(*source, *written))


def _fused(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a whole update in one kernel: gradients and states read, all but gradients written.

    Step counts are updated in the same launch. Gradients are written back where the kernel
    unscales them.
    """
    lists = _lists(op)
    if len(lists) < 2:
        return None
    big = [found for found in lists if sum(t.numel for t in found) >= len(found) * 2] or lists
    unscaled = isinstance(op.attributes.get("grad_scale"), Tensor)
    written = [found for place, found in enumerate(big) if place != 1 or unscaled]
    moved = sum(traffic(t) for found in (*big, *written) for t in found)
    return _kernels(op, machine, lists[0], min(len(big), 5), moved)


def _norms(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the norm of each tensor: partial norms in chunks, and a kernel that joins them."""
    lists = _lists(op)
    if not lists:
        return None
    parts = _kernels(op, machine, lists[0], 1, traffic(*lists[0]))
    joined = work("optimizer", "join partial norms", SMALL, FEW, ROOFLINE)
    return (*parts, joined) if parts else ()


def _unscale(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the check and division of gradients by the loss scale, in place."""
    lists = _lists(op)
    if not lists:
        return None
    return _kernels(op, machine, lists[0], 1, 2 * traffic(*lists[0]))


UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor",
    "frac", "lgamma", "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt",
    "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc", "zero", "clone",
)  # fmt: skip
OTHER = (
    "add", "sub", "mul", "div", "addcmul", "addcdiv", "lerp", "maximum", "minimum", "clamp_min",
    "clamp_max", "pow", "copy",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten._foreach_{name}{end}": _foreach for name in (*UNARY, *OTHER) for end in ("", "_")},
    **{f"aten._fused_{name}_": _fused for name in ("sgd", "adam", "adamw", "adagrad")},
    **dict.fromkeys(("aten._foreach_norm", "aten._foreach_max", "aten._foreach_powsum"), _norms),
    "aten._amp_foreach_non_finite_check_and_unscale_": _unscale,
    "irgraph.fused_adam": _fused,
}


def _bench(bench: Bench) -> Call:
    torch = bench.torch
    weights = [bench.values(bench["elements"]) for _ in range(bench["tensors"])]
    for weight in weights:
        bench.spend(3 * weight.nbytes)
        weight.grad = torch.ones_like(weight)
    name, _, how = bench.case.op.partition("_")
    given = {"foreach": how == "foreach", "fused": how == "fused"}
    if name == "sgd":
        return torch.optim.SGD(weights, lr=1e-3, momentum=0.9, **given).step  # type: ignore[no-any-return]
    return torch.optim.Adam(weights, lr=1e-3, **given).step  # type: ignore[no-any-return]


SWEEPS = {
    "optimizer": Sweep(
        dict.fromkeys(
            ("sgd", "sgd_foreach", "sgd_fused", "adam", "adam_foreach", "adam_fused"), _bench
        ),
        {"tensors": (1, 64), "elements": (16, 2**20)},
    )
}
