"""Fused attention of torch on Hopper: cuDNN's kernels and FlashAttention-2, in steps of blocks.

A block of threads holds a tile of queries (of keys, backward) of one head and walks over the other
side, a tile a step. Torch's releases with cuDNN 9.16 or newer ask cuDNN first on such cards, and
FlashAttention-2 for what cuDNN does not take: heads whose features are no multiple of 8, which
torch pads (``check_prefer_cudnn_attention``, ``sdp_utils.cpp``). FlashAttention-3, which published
sweeps of these cards measured, is in no release.

All constants but where said otherwise: H100 SXM 80 GB, torch 2.11, cuDNN 9.19, in cycles at 1,980
MHz. FlashAttention-2's were fitted to 209 passes (heads of 17 to 127 features), which they miss by
3 % on average, cuDNN's to 356 whose heads have multiples of 8 features, missed by 0.4 (gradients)
and 1.6 %, 169 others by 0.6 and 1.1 (from the nearest time between a warm and a cold cache).
"""

from __future__ import annotations

from msgspec import Struct

from costmodels.formulas.intervals import BORROWED, CLOSE, FAIR
from costmodels.formulas.machine import Machine
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum, to_int
from irgraph.ir.tensor import Tensor

TARGET = "sm_90"
TYPES = ("f16", "bf16")
FLASH, CUDNN = "_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention"
MOST = 256
"""Features of a head that either kernel takes."""

MEASURED = 128
"""Features up to which heads were measured; larger ones take longer in proportion (assumed)."""

TILE = 128
"""Rows of the tiles that blocks hold."""


class Kind(Struct, frozen=True):
    """How one library's kernel runs.

    Attributes:
        name: of the kernel.
        steps: for heads of up to so many features, rows of the side that a block walks over a
            step, and cycles of a step.
        begin: steps that a block would do while it begins and ends.
        idle: share of a round that the fewest blocks take, where several share a multiprocessor.
        tail: share of the longest block by which blocks under a causal mask end apart.
        start: microseconds in which the kernels start and end.
        moved: bytes that the kernels beside the main one move for each element of the queries.
        whole: whether each multiprocessor holds one block at a time, so that rounds are whole.
        error: half a 90 % interval.
    """

    name: str
    steps: tuple[tuple[int, int, int], ...]
    begin: float
    idle: float
    tail: float
    start: float
    moved: int
    whole: bool
    error: float


FORWARD = {
    CUDNN: Kind(
        "cuDNN's flash_fprop", ((64, 128, 2103), (128, 128, 3029)), 1.32, 1.0, 0.71, 2.9, 0, True,
        CLOSE,
    ),
    FLASH: Kind(
        "FlashAttention-2's flash_fwd",
        ((32, 128, 3069), (64, 128, 4475), (96, 64, 3406), (128, 64, 4118)),
        2.0, 0.58, 0.42, 4.0, 0, False, FAIR,
    ),
}  # fmt: skip

BACKWARD = {
    CUDNN: Kind(
        "cuDNN's flash_bprop, dot_do_o and convert_dq",
        ((64, 64, 2624), (128, 64, 3994)), 1.34, 1.0, 0.5, 6.8, 24, True, CLOSE,
    ),
    FLASH: Kind(
        "FlashAttention-2's flash_bwd, dot_do_o and convert_dq",
        ((32, 128, 6593), (64, 128, 10118), (96, 64, 7742), (128, 64, 8653)),
        0.7, 1.0, 0.42, 8.0, 14, True, FAIR,
    ),
}  # fmt: skip
"""The gradient's steps hold keys and walk over queries; beside its kernel two others read the
output and its gradient, clear the sum of the queries' gradient in f32, and round it."""


class Pass(Struct, frozen=True):
    """Microseconds of a pass, half a 90 % interval as a share, whether it is outside, and why."""

    time: float
    error: float
    outside: bool
    formula: str


def fused_on_hopper(op: Op, query: Tensor, key: Tensor, machine: Machine) -> Pass | None:
    """Return a pass, or its gradient, of torch's own kernels on Hopper; nothing elsewhere."""
    if machine.sheet.target != TARGET or query.dtype not in TYPES or machine.paper:
        return None
    library = _library(op, query, machine)
    if not library or query.shape[-1] > MOST:
        return None
    backward = op.base.endswith("_backward")
    kind = (BACKWARD if backward else FORWARD)[library]
    held, walked = (key, query) if backward else (query, key)
    time = _blocks(kind, query, held, walked, op.attributes.get("is_causal") is True, machine)
    beside = machine.stream(kind.moved * query.numel) + kind.start
    known = query.shape[-1] <= MEASURED and query.shape[-2] == key.shape[-2]
    masked = isinstance(op.attributes.get("attn_bias"), Tensor)
    outside = not known or masked
    formula = f"{kind.name}: steps of blocks over multiprocessors (H100, torch 2.11)"
    return Pass(time + beside, BORROWED if outside else kind.error, outside, formula)


def _library(op: Op, query: Tensor, machine: Machine) -> str:
    """Return whose kernel runs, ``""`` for others than these."""
    if op.base.startswith(CUDNN):
        return CUDNN
    if not op.base.startswith(FLASH) or "for_cpu" in op.base:
        return ""
    return CUDNN if machine.software.cudnn_attention and not _padded(op, query) else FLASH


def _padded(op: Op, query: Tensor) -> bool:
    """Return whether torch padded the heads: the scale is that of fewer features."""
    scale = op.attributes.get("scale")
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or scale <= 0:
        return False
    before = scale**-2
    size = query.shape[-1]
    return bool(size - 8 < before < size - 0.5 and abs(before - round(before)) < 1e-3)


def _blocks(
    kind: Kind, query: Tensor, held: Tensor, walked: Tensor, causal: bool, machine: Machine
) -> float:
    """Return microseconds of the busiest multiprocessor's steps."""
    dim, sms = to_int(query.shape[-1]), machine.sheet.sms
    _, rows, cycles = next((s for s in kind.steps if dim <= s[0]), kind.steps[-1])
    pace = machine.cycles(cycles * maximum(dim / MEASURED, 1.0))
    heads = to_int(query.shape[0]) * to_int(query.shape[1])
    blocks = heads * -(-to_int(held.shape[-2]) // TILE)
    longest = -(-to_int(walked.shape[-2]) // rows) + kind.begin
    if not causal:
        rounds = -(-blocks // sms) if kind.whole else maximum(blocks / sms, kind.idle)
        return rounds * longest * pace
    mean = (longest - kind.begin + maximum(TILE / rows, 1.0)) / 2 + kind.begin
    busy = blocks * mean / sms + kind.tail * longest
    return maximum(kind.idle * longest, busy) * pace
