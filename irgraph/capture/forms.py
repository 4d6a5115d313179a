"""Ops that a capture shows in another form than an accelerator runs them in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from irgraph.ir.graph import Graph

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
    "aten.mkldnn_rnn_layer": "aten._cudnn_rnn",
    "aten.lstm_cell": "aten._thnn_fused_lstm_cell",
    "aten.gru_cell": "aten._thnn_fused_gru_cell",
    "aten.bernoulli_": "aten.native_dropout, where it belongs to a dropout",
    "aten._fused_moving_avg_obs_fq_helper": "another kernel",
}
"""By the captured op, what runs on a CUDA device instead (PyTorch 2.13's own choices)."""


def differing(graph: Graph) -> tuple[str, ...]:
    """Return one line for each kind of op whose accelerator form is another, with its count."""
    seen = Counter(op.name for op in graph.leaves() if op.name in FORMS)
    lines = [f"{name} ({count}): {FORMS[name]}" for name, count in sorted(seen.items())]
    hosts = Counter(
        op.name
        for op in graph.leaves()
        if op.base in ("index", "index_put", "index_put_", "_index_put_impl_")
        and {t.device for t in op.inputs} == {"cpu", graph.device}
    )
    lines += [
        f"{name} ({count}): copies its host indices to the device first"
        for name, count in sorted(hosts.items())
    ]
    return tuple(lines)
