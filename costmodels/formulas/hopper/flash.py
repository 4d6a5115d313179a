"""Fused attention of torch on Hopper: cuDNN's kernels and FlashAttention-2, in steps of blocks.

A thread block has a tile of queries (of keys, backward) of one head and iterates over the other
side, one tile each step. Torch's releases with cuDNN 9.16 or newer prefer cuDNN on such cards, and
use FlashAttention-2 for heads that cuDNN does not support: their number of features is no multiple
of 8, and torch pads them (``check_prefer_cudnn_attention``, ``sdp_utils.cpp``). FlashAttention-3,
measured in published sweeps of these cards, is in no release.

Unless stated otherwise, constants are of an H100 SXM 80 GB, torch 2.11, cuDNN 9.19, in cycles at
1,980 MHz. FlashAttention-2's were fitted to 209 passes (heads of 17 to 127 features), with a mean
error of 3 %; cuDNN's to 356 whose heads have multiples of 8 features, with mean errors of 0.4
(gradients) and 1.6 %, on 169 others of 0.6 and 1.1 % (from the nearest time between a warm and a
cold cache).
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
MAX_FEATURES = 256
"""Maximum number of features of a head that either kernel supports."""

MAX_MEASURED_FEATURES = 128
"""Maximum number of features of measured heads; the time of larger ones is assumed to be
proportional."""

TILE = 128
"""Rows of a block's tile."""


class FlashLaw(Struct, frozen=True):
    """Constants of one library's kernel.

    Attributes:
        name: name of the kernel.
        steps: maximum number of features of a head, rows in a step of the side that a block
            iterates over, and cycles of a step.
        begin: start and end of a block, as a number of steps.
        idle: minimum share of a round if several blocks share a multiprocessor.
        tail: share of the longest block by which the ends of blocks under a causal mask differ.
        start: microseconds in which the kernels start and end.
        extra_bytes: bytes that the other kernels move for each element of the queries.
        whole_rounds: whether a multiprocessor runs one block at a time, in whole rounds.
        error: half a 90 % interval.
    """

    name: str
    steps: tuple[tuple[int, int, int], ...]
    begin: float
    idle: float
    tail: float
    start: float
    extra_bytes: int
    whole_rounds: bool
    error: float


FORWARD = {
    CUDNN: FlashLaw(
        "cuDNN's flash_fprop", ((64, 128, 2103), (128, 128, 3029)), 1.32, 1.0, 0.71, 2.9, 0, True,
        CLOSE,
    ),
    FLASH: FlashLaw(
        "FlashAttention-2's flash_fwd",
        ((32, 128, 3069), (64, 128, 4475), (96, 64, 3406), (128, 64, 4118)),
        2.0, 0.58, 0.42, 4.0, 0, False, FAIR,
    ),
}  # fmt: skip

BACKWARD = {
    CUDNN: FlashLaw(
        "cuDNN's flash_bprop, dot_do_o and convert_dq",
        ((64, 64, 2624), (128, 64, 3994)), 1.34, 1.0, 0.5, 6.8, 24, True, CLOSE,
    ),
    FLASH: FlashLaw(
        "FlashAttention-2's flash_bwd, dot_do_o and convert_dq",
        ((32, 128, 6593), (64, 128, 10118), (96, 64, 7742), (128, 64, 8653)),
        0.7, 1.0, 0.42, 8.0, 14, True, FAIR,
    ),
}  # fmt: skip
"""Laws of the gradient: blocks have a tile of keys and iterate over queries; two other kernels read
the output and its gradient, clear the sum of the queries' gradient in f32, and round it."""


class Pass(Struct, frozen=True):
    """Microseconds of a pass, half a 90 % interval as a share, whether it is outside, and why."""

    time: float
    error: float
    outside: bool
    formula: str


def fused_on_hopper(op: Op, query: Tensor, key: Tensor, machine: Machine) -> Pass | None:
    """Return a pass, or its gradient, of torch's own kernels on Hopper, or else ``None``."""
    if machine.sheet.target != TARGET or query.dtype not in TYPES or machine.paper:
        return None
    library = _library(op, query, machine)
    if not library or query.shape[-1] > MAX_FEATURES:
        return None
    backward = op.base.endswith("_backward")
    kind = (BACKWARD if backward else FORWARD)[library]
    block_side, walk_side = (key, query) if backward else (query, key)
    time = _blocks_time(
        kind, query, block_side, walk_side, op.attributes.get("is_causal") is True, machine
    )
    extra_time = machine.stream(kind.extra_bytes * query.numel) + kind.start
    is_measured = query.shape[-1] <= MAX_MEASURED_FEATURES and query.shape[-2] == key.shape[-2]
    is_masked = isinstance(op.attributes.get("attn_bias"), Tensor)
    outside = not is_measured or is_masked
    formula = f"{kind.name}: steps of blocks over multiprocessors (H100, torch 2.11)"
    return Pass(time + extra_time, BORROWED if outside else kind.error, outside, formula)


def _library(op: Op, query: Tensor, machine: Machine) -> str:
    """Return the library whose kernel runs, ``""`` for a third one."""
    if op.base.startswith(CUDNN):
        return CUDNN
    if not op.base.startswith(FLASH) or "for_cpu" in op.base:
        return ""
    return CUDNN if machine.software.cudnn_attention and not _is_padded(op, query) else FLASH


def _is_padded(op: Op, query: Tensor) -> bool:
    """Return whether torch padded the heads: the scale is that of fewer features."""
    scale = op.attributes.get("scale")
    if not isinstance(scale, (int, float)) or isinstance(scale, bool) or scale <= 0:
        return False
    features = scale**-2
    size = query.shape[-1]
    return bool(size - 8 < features < size - 0.5 and abs(features - round(features)) < 1e-3)


def _blocks_time(
    kind: FlashLaw,
    query: Tensor,
    block_side: Tensor,
    walk_side: Tensor,
    causal: bool,
    machine: Machine,
) -> float:
    """Return microseconds of the busiest multiprocessor's steps."""
    dim, sms = to_int(query.shape[-1]), machine.sheet.sms
    _, rows, cycles = next((s for s in kind.steps if dim <= s[0]), kind.steps[-1])
    step_time = machine.cycles(cycles * maximum(dim / MAX_MEASURED_FEATURES, 1.0))
    heads = to_int(query.shape[0]) * to_int(query.shape[1])
    blocks = heads * -(-to_int(block_side.shape[-2]) // TILE)
    longest = -(-to_int(walk_side.shape[-2]) // rows) + kind.begin
    if not causal:
        rounds = -(-blocks // sms) if kind.whole_rounds else maximum(blocks / sms, kind.idle)
        return rounds * longest * step_time
    mean = (longest - kind.begin + maximum(TILE / rows, 1.0)) / 2 + kind.begin
    busy_steps = blocks * mean / sms + kind.tail * longest
    return maximum(kind.idle * longest, busy_steps) * step_time
