"""Reductions: sums, means, extrema and norms over some or all axes."""

from __future__ import annotations

from msgspec.structs import replace

from costmodels.benchmarks.sweep import MATRIX, Sweep, forward
from costmodels.formulas.elements import ROOFLINE, streaming
from costmodels.formulas.intervals import EXACT, FAIR, UNTRACED
from costmodels.formulas.machine import Machine, Rule, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.many import most
from irgraph.ir.tensor import Tensor

BLOCK_START = 5.5
"""Microseconds of a reduction inside blocks on top of its bytes (traced: 5 to 6.7 for 2048
values)."""

GRID_START = 9.0
"""Microseconds of a reduction across blocks, which meet through memory (traced column sums of
2048 rows: 10 to 13 for 64 to 512 columns)."""

GRID_RATIO = 256
"""Values for each result from which blocks share one result (torch, Reduce.cuh)."""

SOURCE = (
    "roofline (paper, III-B-1b) over input and results, plus the start of a reduction in one or "
    "two stages (traced V100 sums); scans read and write once"
)

SHORT, SHORT_SHARE = 128, 0.5
"""Values for each result of spatial means below which lanes stay idle, and the share of bandwidth
that is left (traced means of 7 x 7 pixels: 0.42 on V100, 0.55 on RTX 2080 Ti)."""

FORMULA = f"{ROOFLINE}; start of a two-stage reduction from traced kernels"


def reduction(
    source: Tensor, results: int, machine: Machine, *, written: int = 0, rows: bool = True
) -> tuple[Kernel, ...]:
    """Return the kernels that reduce a tensor to ``results`` values; one may clear semaphores.

    ``written`` are the bytes of these values, ``rows`` whether what is reduced lies next to each
    other. The paper's formula counts the bytes read and nothing else.
    """
    name = f"reduce {shape_text(source)} to {results}"
    time = machine.stream(traffic(source))
    if machine.paper:
        return (work("reduce", name, time, FAIR, ROOFLINE),)
    idle = rows and source.rank > 2 and source.numel < results * SHORT
    time = time / (SHORT_SHARE if idle else 1.0) + machine.stream(written)
    shared = source.numel > results * GRID_RATIO and source.numel > 16384
    kernel = work("reduce", name, time + (GRID_START if shared else BLOCK_START), FAIR, FORMULA)
    if not shared:
        return (kernel,)
    return (work("fill", "clear semaphores", 1.0, EXACT, FORMULA, launch="memset"), kernel)


def _scan(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price cumulative sums: input read and result written once, along rows in one kernel."""
    source = next(iter(op.inputs), None)
    if source is None:
        return None
    written = [*op.outputs, *(t for t in op.inputs if t.name in op.written)]
    time = streaming(machine, traffic(source) + traffic(*written))
    return (
        work("reduce", f"{op.base} {shape_text(source)}", time, UNTRACED, ROOFLINE, outside=True),
    )


def _reduce(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    source = next(iter(op.inputs), None)
    if source is None or not op.outputs:
        return None
    whole = replace(source, shape=(source.numel * len(op.inputs),)) if _pairs(op) else source
    made = op.outputs[0]
    return reduction(
        whole, most(made.numel, 1), machine, written=traffic(*op.outputs), rows=_along_rows(op)
    )


def _along_rows(op: Op) -> bool:
    """Return whether the last axis is among those that are reduced; all are where none is named."""
    given, last = op.attributes.get("dim"), op.inputs[0].rank - 1
    axes = given if isinstance(given, tuple) else (given,)
    named = [axis for axis in axes if isinstance(axis, int)]
    return not named or any(axis in (last, -1) for axis in named)


def _pairs(op: Op) -> bool:
    """Return whether a reduction reads two tensors of equal size."""
    return op.base in ("dot", "vdot", "dist", "equal") and len(op.inputs) == 2


NAMES = (
    "sum", "mean", "nansum", "prod", "amax", "amin", "aminmax", "max", "min", "argmax",
    "argmin", "all", "any", "norm", "linalg_vector_norm", "var", "std", "var_mean", "std_mean",
    "logsumexp", "count_nonzero", "dot", "vdot", "dist", "trace", "equal", "_aminmax",
    "_is_all_true", "_is_any_true", "linalg__powsum", "hash_tensor",
)  # fmt: skip

SCANS = (
    "cumsum",
    "cumprod",
    "logcumsumexp",
    "_cummax_helper",
    "_cummin_helper",
    "cummax",
    "cummin",
)

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _reduce for name in NAMES},
    **{f"aten.{name}{end}": _scan for name in SCANS for end in ("", "_")},
}

SWEEPS = {
    "reduce": Sweep(
        forward(
            {
                "sum_rows": lambda t, x: x.sum(0),
                "sum_cols": lambda t, x: x.sum(1),
                "sum_all": lambda t, x: x.sum(),
                "max_cols": lambda t, x: x.max(1),
                "cumsum": lambda t, x: x.cumsum(1),
            }
        ),
        MATRIX,
    )
}
