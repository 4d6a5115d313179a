"""A call over contiguous tensors costs the same whatever the axes are."""

from __future__ import annotations

import math
import random

import pytest

from irgraph.predict.prediction import predict
from irgraph.text import parse

DEVICES = ("v100", "a100-sxm4-80gb", "a40", "h100-80gb-hbm3", "h200", "l40s", "mi300x")
OPERATORS = {"add": 2, "mul": 2, "gelu": 1, "relu": 1, "sigmoid": 1, "silu": 1}
DTYPES = ("f16", "bf16", "f32")

STEP = """model "m" {{ format = 2 }}

device @gpu0 "{device}"
{inputs}
%r = aten.{operator}({operands}) : {type} in $r
return %r
"""


def call_time(device: str, operator: str, dtype: str, shape: list[int]) -> float:
    tensor_type = f"{dtype}[{', '.join(map(str, shape))}]"
    names = [f"x{index}" for index in range(OPERATORS[operator])]
    text = STEP.format(
        device=device,
        inputs="\n".join(f"input %{name} : {tensor_type} in ${name}" for name in names),
        operator=operator,
        operands=", ".join(f"%{name}" for name in names),
        type=tensor_type,
    )
    return sum(kernel.time for kernel in predict(parse(text), device=device).kernels())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operator", OPERATORS)
def test_only_the_number_of_elements_counts(device: str, operator: str) -> None:
    source = random.Random(f"{device} {operator}")
    for dtype in DTYPES:
        shape = [2 ** source.randint(0, 8) * source.choice((1, 3, 5)) for _ in range(4)]
        permuted = source.sample(shape, len(shape))
        flat = [math.prod(shape)]
        times = [call_time(device, operator, dtype, form) for form in (shape, permuted, flat)]
        assert times == pytest.approx([times[0]] * len(times), rel=1e-6), (dtype, shape)
