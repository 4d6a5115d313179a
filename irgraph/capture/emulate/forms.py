"""Ops that a capture shows in another form than an accelerator runs them in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op

FORMS: Mapping[str, str] = {
    "aten.native_batch_norm": "aten.cudnn_batch_norm",
    "aten._native_batch_norm_legit": "aten.cudnn_batch_norm",
    "aten.native_batch_norm_backward": "aten.cudnn_batch_norm_backward",
    "aten.mkldnn_convolution": "aten.cudnn_convolution",
    "aten.mkldnn_linear": "aten.addmm",
    "aten._scaled_dot_product_flash_attention_for_cpu": "aten._scaled_dot_product_flash_attention",
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": (
        "aten._scaled_dot_product_flash_attention_backward"
    ),
    "aten._scaled_dot_product_attention_math": "a fused attention kernel, where one fits",
    **dict.fromkeys(
        ("aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu"),
        "aten._cudnn_rnn, one call for all steps and layers",
    ),
    "aten.mkldnn_rnn_layer": "aten._cudnn_rnn",
    "aten.lstm_cell": "aten._thnn_fused_lstm_cell",
    "aten.gru_cell": "aten._thnn_fused_gru_cell",
    "aten.bernoulli_": "aten.native_dropout, where it belongs to a dropout",
    "aten._fused_moving_avg_obs_fq_helper": "another kernel",
}
"""The op that a CUDA device runs instead, by the captured op (PyTorch 2.13's own choices)."""


DEVICE_OPS = {"aten._cudnn_rnn"}
"""Ops of a CUDA device: a captured op with one of these in its body has the device's form."""


def accelerator_forms(graph: Graph) -> tuple[str, ...]:
    """Return one line, with its count, for each kind of op that has another form on a device."""
    seen = Counter(op.name for op in _outermost(graph.ops))
    lines = [f"{name} ({count}): {FORMS[name]}" for name, count in sorted(seen.items())]
    adds = sum(_is_copying_add(scope, op) for scope in graph.walk() for op in scope.body)
    if adds:
        lines.append(f"aten.add ({adds}): aten.add_, where nothing else holds the tensor")
    return tuple(lines)


def _outermost(ops: Sequence[Op]) -> Iterator[Op]:
    """Yield the outermost ops that have another form on a device."""
    for op in ops:
        if op.name in FORMS and not any(inner.name in DEVICE_OPS for inner in op.body):
            yield op
        else:
            yield from _outermost(op.body)


def _is_copying_add(scope: Op, op: Op) -> bool:
    """Return whether torch would add in place here if no dispatch mode were active."""
    return op.name == "aten.add" and (scope.is_autograd or scope.name == "aten.linear")
