"""Optimizer updates over lists of tensors; updates tensor by tensor are element-wise ops."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec import Struct

from costmodels.benchmarks.bench import Bench, Call
from costmodels.benchmarks.sweep import Sweep
from costmodels.formulas.elements import ROOFLINE
from costmodels.formulas.intervals import FEW, NEAR
from costmodels.formulas.machine import Machine, Rule, members, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import ScalarOnlyError, point_count
from irgraph.ir.tensor import Tensor

SOURCE = (
    "roofline (paper, III-B-1b) over all tensors of the lists, in as many launches as torch needs "
    "for them, and the walk of a block through its chunk (torch, MultiTensorApply.cuh; measured: "
    "H100 SXM 80 GB, torch 2.11)"
)

WALKED = (
    "bytes / DRAM bandwidth and the steps of a block through its chunk, together as the sides of a "
    "right angle (step measured: H100 SXM 80 GB, torch 2.11), plus the launch floor"
)

MOST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Tensors that one launch takes, by how many lists it walks (torch, MultiTensorApply.cuh)."""

MOST_BLOCKS, CHUNK = 320, 65536
"""Blocks of a launch, and elements that a block works on (torch, MultiTensorApply.cuh)."""

STEP = 2048
"""Elements of each list that a block loads, computes and stores in one step of its walk: four for
each of 512 threads (torch, MultiTensorApply.cuh and ForeachFunctors.cuh)."""

STEP_CYCLES, LIST_CYCLES, FAR_CYCLES = 300, 134, 500
"""Cycles of a step from the second-level cache, for each list beside, and where the lists come from
DRAM (measured: H100 SXM 80 GB, torch 2.11: 547 cycles with 1.9 lists on average, 700 with three,
one chunk alone; 400 to 500 more on a cache filled with other data)."""

ALIGNED, UNALIGNED = 4, 1.3
"""Times that a step takes longer where tensors are no multiple of four elements, so that each is
loaded alone (the same card: 718 cycles instead of 547, 890 instead of 700)."""

ADAM = 2.0
"""Times that a step of fused Adam takes longer, for roots and quotients (the same card: 1670)."""


class Launch(Struct, frozen=True):
    """What one kernel of an update takes: elements of each list, and its longest chunk's."""

    elements: int = 0
    longest: int = 0


def launches(sizes: Sequence[int], lists: int) -> list[Launch]:
    """Return the kernels that a list update needs for tensors of these numbers of elements.

    Chunks fill a kernel's blocks, tensor by tensor; a tensor may go on in the next one. Raises
    ``OneByOneError`` where sizes differ between points.
    """
    if point_count(*sizes):
        raise ScalarOnlyError("chunks of tensors")
    found, now, tensors, blocks = [], Launch(), 0, 0
    for size in sizes:
        left, tensors = int(size), tensors + 1
        while left:
            took = min(left, (MOST_BLOCKS - blocks) * CHUNK)
            now = Launch(now.elements + took, max(now.longest, min(took, CHUNK)))
            left, blocks = left - took, blocks - (-took // CHUNK)
            if blocks == MOST_BLOCKS:
                found.append(now)
                now, tensors, blocks = Launch(), int(left > 0), 0
        if tensors == MOST_TENSORS[lists]:
            found.append(now)
            now, tensors, blocks = Launch(), 0, 0
    return [*found, now] if now.elements or not found else found


def _lists(op: Op) -> list[list[Tensor]]:
    """Return the non-empty lists of tensors among an op's arguments.

    Behind a plain number they are attributes: ``_foreach_pow(0.9, steps)``.
    """
    return [found for found in map(members, (*op.operands, *op.attributes.values())) if found]


def walk_time(
    machine: Machine, longest: int, depth: int, moved: float, slower: float = 1.0
) -> float:
    """Return microseconds of the longest chunk's walk, in an update that moves ``moved`` bytes.

    Steps wait for one another; a first one is in any kernel's start. What earlier kernels left in
    the cache serves half of the lists that fit there. ``slower``: times that a step takes longer.
    """
    steps = -(-longest // STEP)
    far = min(max(moved / machine.sheet.l2_bytes, 0.5), 1.0)
    cycles = STEP_CYCLES + LIST_CYCLES * depth + FAR_CYCLES * far
    return machine.cycles(max(steps * slower - 1.0, 0.0) * cycles)


def _kernels(
    op: Op,
    machine: Machine,
    first: Sequence[Tensor],
    depth: int,
    moved: float,
    slower: float = 1.0,
) -> tuple[Kernel, ...]:
    """Return the launches of an update that walks ``depth`` lists and moves ``moved`` bytes."""
    if any(t.device == "cpu" for t in first):
        return ()
    sizes = [t.numel for t in first]
    found, every = launches(sizes, depth), max(sum(sizes), 1)
    slower *= UNALIGNED if max(sizes) % ALIGNED else 1.0
    name = f"{op.base} {len(first)} tensors"
    kernels = []
    for launch in found:
        walk = walk_time(machine, launch.longest, depth, moved, slower)
        bytes_time = machine.stream(moved * launch.elements / every)
        time = math.hypot(bytes_time, walk) + machine.start
        kernels.append(work("optimizer", name, time, NEAR, WALKED))
    return tuple(kernels)


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
    slower = ADAM if "adam" in op.base else 1.0
    return _kernels(op, machine, lists[0], min(len(big), 5), moved, slower)


def _norms(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the norm of each tensor: partial norms in chunks, and a kernel that joins them."""
    lists = _lists(op)
    if not lists:
        return None
    parts = _kernels(op, machine, lists[0], 1, traffic(*lists[0]))
    joined = work("optimizer", "join partial norms", machine.start, FEW, ROOFLINE)
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
