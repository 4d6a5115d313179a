"""Fused attention: softmax(Q K^T) V without the matrix of scores in memory."""

from __future__ import annotations

from costmodels.benchmarks.bench import Bench, Call, gradient
from costmodels.benchmarks.sweep import Sweep
from costmodels.devices.sheet import UNITS_SHARE
from costmodels.formulas.intervals import BORROWED
from costmodels.formulas.machine import SMALL, Machine, Rule, shape_text, traffic, work
from irgraph.ir.cost import Kernel
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

SOURCE = "max(flop / half the peak, bytes / DRAM bandwidth) (Dao 2022, 2023); nothing was measured"

SHARE = 0.5
"""Share of the peak of fused attention kernels (FlashAttention-2 reports 0.5 to 0.73 forward on
A100, 0.3 to 0.5 its first version); nothing was measured here."""

BACKWARD = 2.5
"""Products of the gradient over those of the forward pass: five to two [Dao 2022]."""

FORMULA = "max(4 B H S T D flop / share of peak, bytes / DRAM bandwidth) [Dao 2022]"


def _attention(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price one pass over query [B, H, S, D] and key [B, H, T, D]; a causal one does half."""
    tensors = [t for t in op.operands if isinstance(t, Tensor) and t.rank == 4]
    backward = op.base.endswith("_backward")
    if len(tensors) < (4 if backward else 3) or (op.body and not backward):
        return None
    query, key = tensors[1:3] if backward else tensors[:2]
    held = min((machine.sheet.reached(query.dtype) or UNITS_SHARE) / UNITS_SHARE, 1.0)
    peak = machine.sheet.peak(query.dtype)[0] * SHARE * held
    flops = 4.0 * query.numel * int(key.shape[-2]) * (BACKWARD if backward else 1.0)
    flops *= 0.5 if op.attributes.get("is_causal") is True else 1.0
    moved = traffic(*tensors, *op.outputs)
    time = max(flops / peak / 1e3, machine.stream(moved)) + SMALL
    name = f"{op.base.strip('_')} {shape_text(query)}"
    return (work("attention", name, time, BORROWED, FORMULA, outside=True),)


NAMES = (
    "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_fused_attention_overrideable",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **{f"aten.{name}": _attention for name in NAMES},
    **{f"aten.{name}_backward": _attention for name in NAMES},
    "aten.scaled_dot_product_attention": _attention,
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
        most=2.0**31,
    )
}
