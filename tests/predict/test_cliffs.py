"""Warnings of layouts that a library has no good kernel for."""

from __future__ import annotations

from irgraph.predict.prediction import predict
from irgraph.text import parse

MODEL = """model "grouped" {{ format = 1 }}
input %x : f16[32, 64, 28, 28{last}] in $b0
input %g : f16[32, 64, 28, 28{last}] in $b9
param %w : f16[64, 8, 3, 3] in $b1
[%dx, %dw] = aten.convolution_backward(%g, %x, %w, stride = [1, 1], padding = [1, 1], groups = 8) : [f16[32, 64, 28, 28{last}] in $b2, f16[64, 8, 3, 3] in $b3]
"""  # noqa: E501


def test_a_prediction_names_grouped_convolutions_with_channels_last() -> None:
    last, first = (
        predict(parse(MODEL.format(last=strides)), "a100").warnings
        for strides in ("; 50176, 1, 1792, 64", "")
    )
    assert any("grouped, channels last" in line for line in last)
    assert not any("channels last" in line for line in first)
