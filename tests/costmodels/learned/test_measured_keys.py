"""What a trained model's answer rests on: the op, the card and the release that were measured."""

from __future__ import annotations

from itertools import pairwise, product
from pathlib import Path

import pytest
from msgspec.structs import replace

from costmodels.devices.library import load_device
from costmodels.families import learned_families
from costmodels.formulas.machine import Machine
from costmodels.formulas.software import software_profile
from costmodels.learned.predictors import predictors
from costmodels.learned.weights import load_shipped
from costmodels.training.recipe import read
from irgraph.ir.cost import Kernel
from irgraph.predict.prediction import predict
from irgraph.text import parse
from tests.costmodels.families.helpers import call, kernels, tensor

LOOKUP = """model "m" {{ format = 2 }}

device @gpu0 "{device}"
param %w : {dtype}[50000, {width}] in $w
input %i : i64[16384] in $i
%r = aten.embedding(%w, %i) : {dtype}[16384, {width}] in $r
return %r
"""

UNARY = """model "m" {{ format = 2 }}

device @gpu0 "{device}"
input %x : bf16[{count}] in $x
%r = aten.gelu(%x) : bf16[{count}] in $r
return %r
"""

PASS = {"batch": 1, "heads": 16, "kv_heads": 16, "seq": 2048, "dtype": "bf16", "dim": 64}

ATTENTION = """model "m" {{ format = 2 }}

device @gpu0 "{device}"
input %q : bf16[2, 16, 2048, {dim}] in $q
input %k : bf16[2, 16, 2048, {dim}] in $k
input %v : bf16[2, 16, 2048, {dim}] in $v
%r, _, _, _, _, _, _, _, _ = aten._scaled_dot_product_flash_attention(%q, %k, %v, \
is_causal = {causal}) : bf16[2, 16, 2048, {dim}] in $r, none, none, none, none, none, none, \
none, none
return %r
"""


def _kernel(text: str, device: str, software: str = "torch-2") -> Kernel:
    (kernel,) = predict(parse(text), device=device, software=software).kernels()
    return kernel


@pytest.mark.data
@pytest.mark.parametrize("name", ["gemm_units", "attention", "transformer"])
def test_campaigns_name_the_cards_of_each_op(name: str, data_dir: Path) -> None:
    campaign, (data, _) = learned_families()[name].campaign, read(name, data_dir)
    for (number, op), card in product(enumerate(data.ops), campaign.cards):
        rows = (data.op == number) & data.rows_of(card)
        assert rows.any() == campaign.measures(op, card), (op, card)


def test_an_op_that_was_not_measured_on_a_card_is_as_uncertain_as_an_unseen_card() -> None:
    unseen = load_shipped("attention").unseen
    answers = {
        card: predictors(load_device(card), "torch-2")["attention"]({**PASS, "sees": "full"})
        for card in ("h200", "a100-sxm4-80gb", "rtx-pro-6000")
    }
    assert all(answers.values())
    outside = {card: answer.outside for card, answer in answers.items() if answer}
    assert outside == {"h200": False, "a100-sxm4-80gb": True, "rtx-pro-6000": True}
    widths = {card: answer.spread / answer.time for card, answer in answers.items() if answer}
    assert widths["h200"] < unseen < min(widths["a100-sxm4-80gb"], widths["rtx-pro-6000"])


@pytest.mark.parametrize(("dtype", "width"), [("bf16", 4096), ("f16", 512), ("f32", 128)])
def test_lookups_on_twin_cards_differ_by_their_memory(dtype: str, width: int) -> None:
    for software in ("torch-2", "torch-2.7"):
        times, bandwidths = [], []
        for device in ("h100-80gb-hbm3", "gh200", "h200"):
            text = LOOKUP.format(device=device, dtype=dtype, width=width)
            times.append(_kernel(text, device, software).time)
            bandwidths.append(load_device(device).bandwidth)
        ratio = max(times) / min(times)
        assert ratio < 1.15 * max(bandwidths) / min(bandwidths), (software, times)


def test_lookups_take_the_kernels_of_their_release() -> None:
    """Since 2.8 a block copies each row at the memory's speed; before, elements were looked up."""
    text = LOOKUP.format(device="a100-sxm4-80gb", dtype="bf16", width=4096)
    newer, older = (_kernel(text, "a100-sxm4-80gb", name) for name in ("torch-2", "torch-2.7"))
    assert (newer.by, older.by) == ("heuristic", "learned")
    assert newer.outside and not older.outside
    assert older.time > 5 * newer.time


@pytest.mark.parametrize("device", ["a100-sxm4-80gb", "a40", "h100-80gb-hbm3"])
def test_gelu_has_no_border_between_two_answers(device: str) -> None:
    counts = [int(100 * 1.3**step) for step in range(56)]
    times = [_kernel(UNARY.format(device=device, count=count), device).time for count in counts]
    for (count, before), (_, after) in pairwise(zip(counts, times, strict=True)):
        assert 0.95 * before < after < 1.3**2 * before, count  # where the cache ends on A40


@pytest.mark.parametrize("device", ["a100-sxm4-80gb", "b200", "rtx-pro-6000", "l40s"])
@pytest.mark.parametrize("causal", ["true", "false"])
def test_attention_has_no_cliff_at_head_sizes_that_were_not_measured(
    device: str, causal: str
) -> None:
    def at(dim: int) -> Kernel:
        return _kernel(ATTENTION.format(device=device, dim=dim, causal=causal), device)

    for smaller, dim, larger in ((80, 96, 128), (80, 112, 128), (128, 160, 192)):
        ends, kernel = sorted((at(smaller).time, at(larger).time)), at(dim)
        assert ends[0] <= kernel.time <= ends[1]
        assert kernel.outside and kernel.spread > 0.5 * kernel.time
    assert at(32).time < at(64).time < at(768).time


@pytest.mark.parametrize(
    ("device", "dtype", "channels", "last", "outside"),
    [
        ("v100", "f32", 64, False, False),
        ("v100", "f32", 64, True, True),
        ("t4", "f32", 64, True, True),
        ("a100", "f16", 64, True, False),
        ("a100", "f16", 1, False, True),
    ],
)
def test_dense_convolutions_that_were_not_measured_are_outside(
    device: str, dtype: str, channels: int, last: bool, outside: bool
) -> None:
    image = tensor("x", 32, channels, 28, 28, dtype=dtype)
    if last:
        image = replace(image, strides=(channels * 784, 1, channels * 28, channels))
    weight = tensor("w", 64, channels, 3, 3, dtype=dtype)
    op = call("aten.convolution", image, weight, out=(32, 64, 28, 28))
    sheet = load_device(device)
    learned = predictors(sheet, "torch-2")
    for models in ({}, learned):
        on = Machine(sheet, software_profile("torch-2"), learned=models)
        first = kernels(op, on)[0]
        assert first.outside == outside
        assert not outside or first.spread >= 0.5 * first.time
