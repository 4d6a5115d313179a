"""Optimizer updates over lists of tensors; updates of single tensors are elementwise ops."""

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

WALK_FORMULA = (
    "bytes / DRAM bandwidth and the steps of a block through its chunk, together as the sides of a "
    "right angle (step measured: H100 SXM 80 GB, torch 2.11), plus the launch floor"
)

MAX_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""Maximum number of tensors of a launch, by its number of lists (torch, MultiTensorApply.cuh)."""

MAX_BLOCKS, CHUNK = 320, 65536
"""Maximum number of blocks of a launch, and elements of a block (torch, MultiTensorApply.cuh)."""

STEP = 2048
"""Elements of each list that a block loads, computes and stores in one step: four for each of 512
threads (torch, MultiTensorApply.cuh and ForeachFunctors.cuh)."""

STEP_CYCLES, LIST_CYCLES, DRAM_CYCLES = 300, 134, 500
"""Cycles of a step from the second-level cache, and additional cycles for each list, and for lists
in DRAM (measured: H100 SXM 80 GB, torch 2.11: 547 cycles with 1.9 lists on average, 700 with three,
one chunk alone; 400 to 500 more with other data in the cache)."""

ALIGNED, UNALIGNED = 4, 1.3
"""Elements of a load, and the factor on a step for tensors that are no multiple of it, whose
elements are loaded individually (the same card: 718 cycles instead of 547, 890 instead of 700)."""

ADAM = 2.0
"""Factor on a step of fused Adam, for roots and quotients (the same card: 1670 cycles)."""


class UpdateLaunch(Struct, frozen=True):
    """One kernel of an update: number of elements of each list, and of its longest chunk."""

    elements: int = 0
    longest: int = 0


def list_update_launches(sizes: Sequence[int], lists: int) -> list[UpdateLaunch]:
    """Return the kernels of a list update for tensors of ``sizes`` elements.

    Chunks fill a kernel's blocks, tensor by tensor; a tensor may continue in the next kernel.
    Raises ``ScalarOnlyError`` if sizes differ between points.
    """
    if point_count(*sizes):
        raise ScalarOnlyError("chunks of tensors")
    full_launches, current, tensors, blocks = [], UpdateLaunch(), 0, 0
    for size in sizes:
        remaining, tensors = int(size), tensors + 1
        while remaining:
            count = min(remaining, (MAX_BLOCKS - blocks) * CHUNK)
            current = UpdateLaunch(
                current.elements + count, max(current.longest, min(count, CHUNK))
            )
            remaining, blocks = remaining - count, blocks - (-count // CHUNK)
            if blocks == MAX_BLOCKS:
                full_launches.append(current)
                current, tensors, blocks = UpdateLaunch(), int(remaining > 0), 0
        if tensors == MAX_TENSORS[lists]:
            full_launches.append(current)
            current, tensors, blocks = UpdateLaunch(), 0, 0
    return [*full_launches, current] if current.elements or not full_launches else full_launches


def _lists(op: Op) -> list[list[Tensor]]:
    """Return the non-empty lists of tensors among an op's arguments.

    After a plain number they are attributes: ``_foreach_pow(0.9, steps)``.
    """
    return [tensors for tensors in map(members, (*op.operands, *op.attributes.values())) if tensors]


def walk_time(
    machine: Machine, longest: int, depth: int, nbytes: float, slowdown: float = 1.0
) -> float:
    """Return microseconds of the longest chunk's steps, in an update that moves ``nbytes`` bytes.

    Steps run in sequence; the first one is part of any kernel's start. Earlier kernels leave half
    of the lists that fit in the cache. ``slowdown``: factor on a step.
    """
    steps = -(-longest // STEP)
    dram_share = min(max(nbytes / machine.sheet.l2_bytes, 0.5), 1.0)
    cycles = STEP_CYCLES + LIST_CYCLES * depth + DRAM_CYCLES * dram_share
    return machine.cycles(max(steps * slowdown - 1.0, 0.0) * cycles)


def _kernels(
    op: Op,
    machine: Machine,
    first: Sequence[Tensor],
    depth: int,
    nbytes: float,
    slowdown: float = 1.0,
) -> tuple[Kernel, ...]:
    """Return the launches of an update over ``depth`` lists that moves ``nbytes`` bytes."""
    if any(t.device == "cpu" for t in first):
        return ()
    sizes = [t.numel for t in first]
    update_launches, total = list_update_launches(sizes, depth), max(sum(sizes), 1)
    slowdown *= UNALIGNED if max(sizes) % ALIGNED else 1.0
    name = f"{op.base} {len(first)} tensors"
    kernels = []
    for launch in update_launches:
        walk = walk_time(machine, launch.longest, depth, nbytes, slowdown)
        bytes_time = machine.stream(nbytes * launch.elements / total)
        time = math.hypot(bytes_time, walk) + machine.start
        kernels.append(work("optimizer", name, time, NEAR, WALK_FORMULA))
    return tuple(kernels)


def _foreach(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one elementary step over lists: all are read, the first or a new one is written."""
    lists = _lists(op)
    if not lists:
        return None
    read = {t.name: t for t in op.inputs}
    written = [*op.outputs, *(t for t in read.values() if t.name in op.written)]
    source = [] if op.base == "_foreach_zero_" else list(read.values())
    depth = len(lists) + bool(op.outputs)
    return _kernels(op, machine, lists[0], depth, traffic(*source, *written))


def _fused(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price a fused update in one kernel: all lists are read, all but gradients are written.

    Step counts are updated in the same launch. Gradients are written if the kernel unscales them.
    """
    lists = _lists(op)
    if len(lists) < 2:
        return None
    state_lists = [
        tensors for tensors in lists if sum(t.numel for t in tensors) >= len(tensors) * 2
    ] or lists
    is_unscaled = isinstance(op.attributes.get("grad_scale"), Tensor)
    written = [tensors for index, tensors in enumerate(state_lists) if index != 1 or is_unscaled]
    nbytes = sum(traffic(t) for tensors in (*state_lists, *written) for t in tensors)
    slowdown = ADAM if "adam" in op.base else 1.0
    return _kernels(op, machine, lists[0], min(len(state_lists), 5), nbytes, slowdown)


def _norms(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the norm of each tensor: partial norms in chunks, and a kernel that combines them."""
    lists = _lists(op)
    if not lists:
        return None
    parts = _kernels(op, machine, lists[0], 1, traffic(*lists[0]))
    join_kernel = work("optimizer", "join partial norms", machine.start, FEW, ROOFLINE)
    return (*parts, join_kernel) if parts else ()


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
    name, _, implementation = bench.case.op.partition("_")
    options = {"foreach": implementation == "foreach", "fused": implementation == "fused"}
    if name == "sgd":
        return torch.optim.SGD(weights, lr=1e-3, momentum=0.9, **options).step  # type: ignore[no-any-return]
    return torch.optim.Adam(weights, lr=1e-3, **options).step  # type: ignore[no-any-return]


SWEEPS = {
    "optimizer": Sweep(
        dict.fromkeys(
            ("sgd", "sgd_foreach", "sgd_fused", "adam", "adam_foreach", "adam_fused"), _bench
        ),
        {"tensors": (1, 64), "elements": (16, 2**20)},
    )
}
