"""Layers to measure: convolutions, pools, attention, recurrent layers."""

from __future__ import annotations

from collections.abc import Mapping

from costmodels.measure.bench import Bench
from costmodels.measure.calls import Call, Maker, gradient

GROUPS = 4
"""Groups of the grouped convolution; channels are rounded up to a multiple of it."""


def _conv(bench: Bench) -> Call:
    torch, window = bench.torch, bench["window"]
    op, _, kind = bench.case.op.partition("_")
    groups = {"depthwise": bench["channels"], "grouped": GROUPS}.get(kind, 1)
    channels = -(-bench["channels"] // groups) * groups
    out = channels if kind == "depthwise" else -(-bench["out"] // groups) * groups
    axes = 1 if op == "conv1d" else 2
    grad = kind == "backward"
    image = bench.values(bench["batch"], channels, *(bench["side"],) * axes, grad=grad)
    wide = (channels, out) if kind == "transposed" else (out, channels // groups)
    weight = bench.values(*wide, *(window,) * axes, grad=grad)
    if kind == "transposed":
        return lambda: torch.conv_transpose2d(image, weight, None, 1, window // 2)
    function = torch.conv1d if axes == 1 else torch.conv2d

    def call() -> object:
        return function(image, weight, None, 1, window // 2, 1, groups)

    return gradient(bench, call(), image, weight) if grad else call


def _pool(bench: Bench) -> Call:
    functions, op = bench.torch.nn.functional, bench.case.op
    grad = op.endswith("backward")
    image = bench.values(bench["batch"], bench["channels"], bench["side"], bench["side"], grad=grad)
    if op == "avg_pool":
        return lambda: functions.avg_pool2d(image, 2)
    if op == "upsample_bilinear":
        return lambda: functions.interpolate(image, scale_factor=2, mode="bilinear")
    if grad:
        return gradient(bench, functions.max_pool2d(image, 3, 2, 1), image)
    return lambda: functions.max_pool2d(image, 3, 2, 1)


def _attention(bench: Bench) -> Call:
    op, shape = bench.case.op, (bench["batch"], bench["heads"], bench["length"], bench["dim"])
    function = bench.torch.nn.functional.scaled_dot_product_attention
    grad = op.endswith("backward")
    heads = [bench.values(*shape, grad=grad) for _ in range(3)]
    if grad:
        return gradient(bench, function(*heads), *heads)
    causal = op.endswith("causal")
    return lambda: function(*heads, is_causal=causal)


def _recurrent(bench: Bench) -> Call:
    torch = bench.torch
    kind = torch.nn.LSTM if bench.case.op == "lstm" else torch.nn.GRU
    layer = kind(bench["inputs"], bench["hidden"], device=bench.device, dtype=bench.dtype)
    data = bench.values(bench["steps"], bench["batch"], bench["inputs"])

    def call() -> object:
        with torch.no_grad():
            return layer(data)

    return call


LAYERS: Mapping[str, Maker] = {
    **dict.fromkeys(
        ("conv2d", "conv2d_depthwise", "conv2d_grouped", "conv2d_transposed", "conv2d_backward",
         "conv1d", "conv1d_depthwise"),
        _conv,
    ),
    **dict.fromkeys(("max_pool", "avg_pool", "max_pool_backward", "upsample_bilinear"), _pool),
    **dict.fromkeys(("attention", "attention_causal", "attention_backward"), _attention),
    **dict.fromkeys(("lstm", "gru"), _recurrent),
}  # fmt: skip
"""What makes each op's call, by the op's name."""
