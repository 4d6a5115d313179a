"""Layers in ``i8`` that follow each other, beside torch's own kernels that round sums in one.

``quantized::linear`` and ``quantized::linear_relu`` scale the sums of a layer, add its bias and
round them to the next one's steps. Here that is two ops, ``dequantize_columns`` and
``quantize_static``, with f32 between: they give the same steps.
"""

from __future__ import annotations

import pytest
import torch

from irgraph.ops.references.narrow import dequantize_columns, quantize_static

STEPS, MOST = 127.0, 63.0
"""Steps of rows, and of weights: with more of them, torch's kernel for CPUs without VNNI cuts off
the sums of two products at 16 bits."""


def values() -> dict[str, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    sizes = {"x": (512, 64), "w": (96, 64), "c": (96,), "v": (32, 96), "d": (32,)}
    found = {n: torch.randn(size, generator=source) for n, size in sizes.items()}
    return found | {"w": found["w"] / 8, "v": found["v"] / 10}


class Layer:
    """A layer with its weight in steps, as torch packs it and as a product takes it."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor) -> None:
        self.bias, self.scales = bias, weight.abs().amax(1) / MOST
        zeros = torch.zeros(len(weight), dtype=torch.int64)
        held = torch.quantize_per_channel(weight, self.scales.double(), zeros, 0, torch.qint8)
        self.steps = held.int_repr().int().t()
        self.packed = torch.ops.quantized.linear_prepack(held, bias)

    def sums(self, rows: torch.Tensor, scale: float) -> torch.Tensor:
        """Return what the layer gives of rows in steps, in f32."""
        return dequantize_columns(rows.int() @ self.steps, self.scales, scale, self.bias)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_two_ops_give_the_steps_of_torchs_kernel_that_rounds_sums_in_one(relu: bool) -> None:
    given = values()
    first, second = Layer(given["w"], given["c"]), Layer(given["v"], given["d"])
    hidden = given["x"] @ given["w"].t() + given["c"]
    hidden = hidden.relu() if relu else hidden
    exact = hidden @ given["v"].t() + given["d"]
    scales = [float(t.abs().max()) / STEPS for t in (given["x"], hidden, exact)]

    rows = torch.quantize_per_tensor(given["x"], scales[0], 128, torch.quint8)
    kernel = torch.ops.quantized.linear_relu if relu else torch.ops.quantized.linear
    between = kernel(rows, first.packed, scales[1], 128)
    theirs = torch.ops.quantized.linear(between, second.packed, scales[2], 128)

    sums = first.sums(quantize_static(given["x"], 64, scales[0]), scales[0])
    mine = quantize_static(sums.relu() if relu else sums, 96, scales[1])
    ours = quantize_static(second.sums(mine, scales[1]), 32, scales[2])
    for narrow, packed, equal in ((mine, between, 0.99), (ours, theirs, 0.98)):
        apart = (narrow.int() - (packed.int_repr().int() - 128).clamp(-127, 127)).abs()
        assert int(apart.max()) <= 1, "torch rounds the bias to whole steps of the sums, too"
        assert float((apart == 0).float().mean()) > equal
    error = [float((t - exact).norm()) for t in (ours * scales[2], theirs.dequantize())]
    assert error[0] == pytest.approx(error[1], rel=0.01)
