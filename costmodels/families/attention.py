"""Fused attention: softmax(Q K^T) V without the matrix of scores in memory."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from msgspec.structs import replace

from costmodels.benchmarks.bench import Bench, Call, gradient
from costmodels.benchmarks.sweep import Sweep
from costmodels.devices.sheet import HALVED, UNITS_SHARE
from costmodels.formulas.hopper.flash import fused_on_hopper
from costmodels.formulas.intervals import BORROWED, ROUGH
from costmodels.formulas.machine import SMALL, Machine, Rule, shape_text, traffic, work
from costmodels.learnable.attention_blocks import attention_blocks
from costmodels.learnable.campaign import Campaign
from costmodels.learnable.family import LearnedFamily, Query
from costmodels.learnable.hardware import CORES, Hardware
from costmodels.learnable.inputs import Inputs, Sizes, log2, multiples, settling
from costmodels.learnable.modern import GROUPS, UNITS, VARIANTS, KernelTable, Row, reader
from costmodels.learnable.settings import Architecture, Settings
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.points.point_values import maximum, to_float, to_int
from irgraph.ir.schema import arguments_of
from irgraph.ir.tensor import Tensor

SOURCE = (
    "max(flop / half the peak, of the memory-efficient kernel 0.3 (0.17 on Hopper and B200), bytes "
    "/ DRAM bandwidth), on GeForce rounds of blocks (Dao 2022, 2023; xFormers), on Hopper steps of "
    "the blocks of cuDNN and FlashAttention-2, as torch chooses between them (H100), "
    "FlexAttention by the density of its mask, with a wider interval; trained on "
    "published forward passes over whole sequences in bf16 since Ampere"
)

SHARE = 0.5
"""Share of the peak of fused attention kernels (FlashAttention-2 reports 0.5 to 0.73 forward on
A100, 0.3 to 0.5 its first version)."""

EFFICIENT = 0.3
"""Share of the peak of CUTLASS's memory-efficient kernel: forward 0.26 to 0.35 of A100's peak
(xFormers' issue 712: no mask, heads of 64 and 128, 1,024 to 8,192 tokens); backward 0.17 to 0.28
(CUTLASS' pull request 992: 2,048 to 8,192 tokens, on an unnamed card), which is this share at
``SLOWDOWN``."""

NEWER_FACTOR = 0.57
"""Factor on such a share on Hopper and B200, for whose units that kernel was not written:
FlashAttention-2 without a mask reaches 0.64 of A100's peak [Dao 2023] and 0.37 of H100's
[Shah et al. 2024], with heads of 128 and 2,048 tokens."""

BACKWARD = 2.5
"""Products of the gradient over those of the forward pass: five to two [Dao 2022]."""

SLOWDOWN = 1.2
"""Ratio of the forward rate to the gradient's: median of the ratios in Figures 5 and 6 of Shah et
al. 2024 (FlashAttention-2 and -3 and cuDNN on H100, no mask, heads of 64 and 128, 512 to 16k
tokens: 1.0 to 1.6); Dao 2023 has 0.73 and 0.63 on A100. Only Hopper has more than one figure: all
architectures use this one."""

GRADIENT = 0.3
"""Half a 90 % interval of log errors to add for gradients: it includes all those ratios."""

BLOCK = 64
"""Rows of a block of FlashAttention-2, and keys of one of its steps; both are padded to it."""

BLOCK_FORMULA = "rounds of blocks of 64 rows over padded keys, or bytes / DRAM bandwidth [Dao 2023]"
"""Formula for units that accumulate at half of their rate, without trained models: passes over 512
keys of 8 heads take 18.5 and 10.5 us (RTX 4090, heads of 128 and 64; here 18.7 and 10.7), 18.4 and
10.2 us (5090; 18.1 and 10.4), causal ones of 16 heads of 256 take 39 to 41 us (4090; here 34.6), by
public sweeps (cloudrift-ai/emmy, July 2026); the trained model predicts up to 2.6 times as much.
"""

FORMULA = "max(4 B H S T D flop / share of peak, bytes / DRAM bandwidth) [Dao 2022]"


FIRST_VERSION = 2.0
"""Time of FlashAttention's first version over the second's (release notes of PyTorch 2.2;
0.25 to 0.4 and 0.5 to 0.73 of A100's peak by Dao 2023)."""

FIRST_SPREAD = 0.3
"""Half a 90 % interval of log errors to add for the first version: the range of those ratios."""


def _attention(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass by the version of FlashAttention that the release of torch has."""
    kernels = _attention_pass(op, machine)
    is_flash = op.base.startswith("_scaled_dot_product_flash_attention")
    if kernels is None or not (is_flash and machine.software.first_flash_attention):
        return kernels
    return tuple(_first_version(kernel) for kernel in kernels)


def _first_version(kernel: Kernel) -> Kernel:
    """Return a pass of the first version from one of the second."""
    time = kernel.time * FIRST_VERSION
    spread = time * (kernel.spread / kernel.time + FIRST_SPREAD)
    formula = f"{FIRST_VERSION:g} x {kernel.formula} (FlashAttention's first version)"
    return replace(kernel, time=time, spread=spread, formula=formula, outside=True)


def _attention_pass(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass over query [B, H, S, D] and key [B, H, T, D]; a causal mask halves it."""
    tensors = [t for t in op.operands if isinstance(t, Tensor) and t.rank == 4]
    backward = op.base.endswith("_backward")
    if len(tensors) < (4 if backward else 3) or (op.body and not backward):
        return None
    query, key = tensors[1:3] if backward else tensors[:2]
    name = f"{op.base.strip('_')} {shape_text(query)}"
    hopper_pass = fused_on_hopper(op, query, key, machine)
    if hopper_pass is not None:
        time = maximum(hopper_pass.time, machine.stream(traffic(*tensors, *op.outputs)) + SMALL)
        return (
            work(
                "attention",
                name,
                time,
                hopper_pass.error,
                hopper_pass.formula,
                outside=hopper_pass.outside,
            ),
        )
    is_halved = machine.sheet.halved and query.dtype in HALVED
    learned = None if is_halved else _learned(op, query, key, name, machine)
    if learned is not None:
        return (_gradient(learned) if backward else learned,)
    measured_share = min(
        (machine.sheet.measured_share(query.dtype) or UNITS_SHARE) / UNITS_SHARE, 1.0
    )
    share = machine.sheet.reached_share(query.dtype, _share(op, machine) * measured_share)
    peak = machine.sheet.peak(query.dtype)[0] * share
    visible_share = _visible_share(op)
    nbytes = traffic(*tensors, *op.outputs)
    if is_halved:
        flops, formula = _block_flops(query, key, visible_share, machine), BLOCK_FORMULA
    else:
        flops, formula = 4.0 * query.numel * to_int(key.shape[-2]) * visible_share, FORMULA
    flops *= BACKWARD if backward else 1.0
    time = maximum(flops / peak / 1e3, machine.stream(nbytes)) + SMALL
    spread = ROUGH if op.base.startswith("flex") else BORROWED
    return (work("attention", name, time, spread, formula, outside=True),)


def _visible_share(op: Op) -> float:
    """Return the mean share of keys that a row attends to."""
    density = op.attributes.get("density", 1.0)
    if isinstance(density, (int, float)) and not isinstance(density, bool) and density < 1:
        return float(density)
    return 0.5 if op.attributes.get("is_causal") is True else 1.0


def _block_flops(query: Tensor, key: Tensor, visible_share: float, machine: Machine) -> float:
    """Return the FLOP that all multiprocessors could do during the blocks of the busiest one.

    ``visible_share`` is the mean share of keys that a row attends to; the last block has all keys.
    """
    batch, heads, seq, dim = (to_int(size) for size in query.shape)
    rows, keys = -(-seq // BLOCK), -(-to_int(key.shape[-2]) // BLOCK)
    sms = machine.sheet.sms
    rounds = maximum(-(-batch * heads * rows // sms) * visible_share, 1.0)
    return 4.0 * rounds * sms * BLOCK * keys * BLOCK * dim


def _share(op: Op, machine: Machine) -> float:
    """Return the share of the peak that a kernel without a trained model reaches."""
    slower = SLOWDOWN if op.base.endswith("_backward") else 1.0
    if not op.base.startswith("_scaled_dot_product_efficient"):
        return SHARE / slower
    is_newer = machine.sheet.target.startswith(("sm_90", "sm_10"))
    return EFFICIENT * (NEWER_FACTOR if is_newer else 1.0) / slower


def _learned(op: Op, query: Tensor, key: Tensor, name: str, machine: Machine) -> Kernel | None:
    """Return the trained model's forward pass, ``None`` for kinds of kernels without training."""
    values = _value(op)
    is_same_size = values is not None and values.shape[-1] == query.shape[-1]
    if not op.base.startswith(MEASURED_OPS) or query.shape[-2] != key.shape[-2] or not is_same_size:
        return None
    batch, heads, seq, dim = (to_int(size) for size in query.shape)
    sees = "causal" if op.attributes.get("is_causal") is True else "full"
    sizes: dict[str, float | str] = {
        "batch": batch,
        "heads": heads,
        "kv_heads": to_int(key.shape[1]),
        "seq": seq,
        "dtype": query.dtype,
        "sees": sees,
    }

    def at_head_size(dim: int) -> Kernel | None:
        return machine.learned_kernel("attention", name, **sizes, dim=dim)

    if dim in DIMS:
        return at_head_size(dim)
    nearest = [*[size for size in DIMS if size < dim][-1:], *[s for s in DIMS if s > dim][:1]]
    kernels = [kernel for size in nearest if (kernel := at_head_size(size)) is not None]
    return _at_other_head_size(dim, nearest, kernels) if len(kernels) == len(nearest) else None


def _at_other_head_size(dim: int, sizes: list[int], kernels: list[Kernel]) -> Kernel:
    """Return a pass whose head size was not measured, from passes with the nearest sizes.

    Between two sizes it grows with a power of the size; beyond the last one it grows with the size,
    as FLOP and bytes do.
    """
    first, last = kernels[0], kernels[-1]
    if len(kernels) == 1:
        time = first.time * (dim / sizes[0])
        share = 0.0
    else:
        share = math.log(dim / sizes[0]) / math.log(sizes[1] / sizes[0])
        time = first.time ** (1.0 - share) * last.time**share
    ratio = (1.0 - share) * first.spread / first.time + share * last.spread / last.time
    return replace(first, time=time, spread=time * (ratio + BORROWED), outside=True)


def _value(op: Op) -> Tensor | None:
    """Return the values of an attention call, ``None`` if a bias is added to the scores."""
    arguments = arguments_of(op)
    value = arguments.get("value")
    is_biased = isinstance(arguments.get("attn_bias"), Tensor)
    return value if isinstance(value, Tensor) and not is_biased else None


def _gradient(forward: Kernel) -> Kernel:
    """Return the gradient's kernels as one, scaled from the learned forward pass."""
    factor = BACKWARD * SLOWDOWN
    spread = factor * (forward.spread + GRADIENT * forward.time)
    formula = f"{forward.formula}; times {BACKWARD:g} products at 1/{SLOWDOWN:g} of the rate"
    return replace(forward, time=factor * forward.time, spread=spread, formula=formula)


MEASURED_OPS = ("_scaled_dot_product_flash_attention", "_scaled_dot_product_cudnn_attention")
"""Ops with measured kernels: FlashAttention's, or equally fast ones."""

NAMES = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _attention for name in NAMES},
    **{f"aten.{name}_backward": _attention for name in NAMES},
    "aten.scaled_dot_product_attention": _attention,
    "irgraph.flex_attention": _attention,
    "irgraph.flex_attention_backward": _attention,
}


def _bench(bench: Bench) -> Call:
    op, shape = bench.case.op, (bench["batch"], bench["heads"], bench["length"], bench["dim"])
    function = bench.torch.nn.functional.scaled_dot_product_attention
    grad = op.endswith("backward")
    heads = [bench.values(*shape, grad=grad) for _ in range(3)]
    if grad:
        return gradient(bench, function(*heads), *heads)
    causal = op.endswith("causal")
    return lambda: function(*heads, is_causal=causal)


SWEEPS = {
    "attention": Sweep(
        dict.fromkeys(("attention", "attention_causal", "attention_backward"), _bench),
        {"batch": (1, 32), "heads": (1, 32), "length": (16, 4096), "dim": (16, 128)},
        max_product=2.0**31,
    )
}


OPS = ("causal", "paged", "paged_vllm", "full", "full_vllm")
"""Measurement methods: the causal kernel alone, or with keys and values written into a paged cache
(in two frameworks); the kernel without a mask, in two frameworks."""

SIZES = ("batch", "heads", "kv_heads", "dim", "seq")

CARDS = (
    "A100-SXM4-80GB", "H100-80GB-HBM3", "H200", "B200", "GB200",
    "RTX-PRO-6000-Blackwell-Server-Edition",
)  # fmt: skip
AFTER_AMPERE = tuple(card for card in CARDS if card != "A100-SXM4-80GB")

START = np.float32(5)
"""Microseconds of the shortest passes (6 to 10) minus their arithmetic."""
OVERHEAD_STEPS = np.float32(2)
"""Start and end of a block, as a number of steps."""
DIMS = (64, 72, 80, 128, 192, 256, 512)


def _inputs(sizes: Sizes, device: Hardware) -> Inputs:
    """Return inputs of forward passes over whole sequences in 16 bits."""
    batch, heads, kv, dim, seq = (sizes[name] for name in SIZES)
    op = sizes["op"].astype(np.intp)
    causal = op < OPS.index("full")
    flops = 4 * batch * heads * seq * seq * dim * np.where(causal, np.float32(0.5), np.float32(1))
    nbytes = 4 * batch * seq * dim * (heads + kv)
    compute = flops / (device.units * np.float32(1e3))
    memory = nbytes / (device.bandwidth * np.float32(1e3))
    run = attention_blocks(sizes, causal, op == OPS.index("full_vllm"), device)
    step_time = run.flops * device.sms / (device.units * np.float32(1e3))
    busy_time = run.rounds * (run.steps + OVERHEAD_STEPS) * step_time
    base = np.maximum(busy_time, memory) + START
    columns = [np.clip(log2(compute / memory), -8, 8), settling(base / START)]
    columns += [np.clip(log2(busy_time / memory), -8, 8), settling(busy_time / START)]
    columns += [np.clip(log2(busy_time / compute), -1, 8), np.clip(log2(run.padding), 0, 8)]
    columns += [np.clip(log2(run.rounds / run.share), 0, 6), settling(run.rounds)]
    columns += [settling(run.steps), settling(run.steps / 16), log2(run.parts)]
    columns += [settling(compute / START), settling(memory / START), settling(nbytes / device.l2)]
    columns += [settling(4 * batch * seq * dim * kv / device.l2), log2(heads / kv)]
    columns += [(dim == size).astype(np.float32) for size in DIMS]
    columns += [(op == number).astype(np.float32) for number in range(len(OPS))]
    columns += [(device.core == number).astype(np.float32) for number in range(3, 8)]
    personal = [np.clip(log2(seq), 0, 17), settling(seq / 1024), log2(dim), log2(batch)]
    personal += [log2(heads), log2(kv), settling(batch * heads / device.sms)]
    personal += multiples(seq, 2, 16, 128)
    personal += [log2(device.units / device.bandwidth) - 8, log2(device.sms / 100)]
    return Inputs(base, columns, personal, log2(flops), device.indicators)


MEASURED_HEAD_SIZES: Mapping[str, tuple[int, ...]] = {"causal": (64, 128), "full": (64, 72, 80)}
"""Head sizes of each kernel that were measured on nearly all cards."""


def _query(arguments: Mapping[str, float | str]) -> Query | None:
    """Return a pass; it is outside if its head size was measured for another kernel only."""
    sizes = {name: to_float(arguments[name]) for name in SIZES}
    op, dim = str(arguments["sees"]), int(sizes["dim"])
    if dim not in DIMS:
        return None
    is_measured = dim in MEASURED_HEAD_SIZES[op]
    return Query(op, sizes, 0.0 if is_measured else BORROWED, not is_measured)


def _flops(arguments: Mapping[str, float | str]) -> float:
    """Return the FLOP of a forward pass."""
    batch, heads, dim, seq = (
        to_float(arguments[name]) for name in ("batch", "heads", "dim", "seq")
    )
    return 4.0 * batch * heads * seq * seq * dim * (0.5 if arguments["sees"] == "causal" else 1.0)


def _op(row: Row) -> str:
    """Return the measurement method of a row."""
    in_vllm = "vllm" in row["library"]
    if row["causal"] == "0":
        return "full_vllm" if in_vllm else "full"
    if row["includes"] == "kernel":
        return "causal"
    return "paged_vllm" if in_vllm else "paged"


def _sizes(row: Row) -> tuple[str, ...]:
    return row["batch"], row["heads"], row["kv_heads"], row["head_dim"], row["seq"]


LEARNED = LearnedFamily(
    "attention",
    OPS,
    SIZES,
    _inputs,
    _query,
    Settings(steps=20000, batch=1024, refit=False, architecture=Architecture(128, 3, 2)),
    campaign=Campaign(
        CARDS,
        VARIANTS,
        (),
        (GROUPS[1], GROUPS[2]),
        reader(
            KernelTable("attention_causal_bf16", _op, _sizes),
            KernelTable("attention_full_bf16", _op, _sizes),
        ),
        True,
        ("heads", "kv_heads", "dim"),
        dtypes=("bf16", "f16"),
        op_cards={
            "causal": AFTER_AMPERE,
            "full": ("H100-80GB-HBM3", "H200", "B200"),
            "full_vllm": AFTER_AMPERE,
            "paged": ("A100-SXM4-80GB", "H100-80GB-HBM3", "H200", "B200"),
            "paged_vllm": tuple(card for card in CARDS if card != "GB200"),
        },
        priced_ops=("causal", "full"),
        targets=tuple(target for target in UNITS if CORES[target] >= CORES["sm_80"]),
    ),
    flops=_flops,
)
