"""Measured times go before all models, on the card that they come from."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from costmodels.devices.library import load_device, sheet_of_card
from costmodels.pricing.measured import is_card
from irgraph.ir.graph import Graph
from irgraph.predict.prediction import Prediction, predict
from irgraph.text import parse

HEADER = """model "m" { format = 1  measured_on = "Tesla V100-DGXS-32GB" }

device @gpu0 "v100"
input %h : f32[64, 32] @cpu in $b0
input %x : f32[64, 32] in $b1
param %w "w" : f32[16, 32] in $b2

"""
RELU = """"label"() [time = 3us, by = measured, kernels = 1] {
  %y = aten.relu(%x) : f32[64, 32] in $b4 [time = 500us +- 5us, by = measured, kernels = 1]
}
"""
LINEAR = """%y = aten.linear(%x, %w) : f32[64, 16] in $b4 {
  %t = aten.t(%w) : f32[32, 16; 1, 32] in $b2
  %y = aten.mm(%x, %t) : f32[64, 16] in $b4 [time = 70us, by = measured, kernels = 2]
}
"""


def graph(body: str) -> Graph:
    return parse(HEADER + body)


def times(found: Prediction) -> list[tuple[str, float]]:
    return [(kernel.by, round(kernel.time, 3)) for kernel in found.kernels()]


def test_the_recorded_card_is_the_default_and_its_times_go_first() -> None:
    found = predict(graph(RELU))
    assert times(found) == [("measured", 500.0)]
    assert found.timeline.active_time == pytest.approx(500.0, abs=1.0)
    assert found.summary()["coverage"] == {"measured": 1.0}
    assert found.kernels()[0].spread == 5.0


def test_work_that_only_a_label_launched_is_told() -> None:
    assert "3.0 us that no operator launched are left out" in predict(graph(RELU)).measured


def test_work_below_a_call_is_split_over_its_launches() -> None:
    assert times(predict(graph(LINEAR))) == [("measured", 35.0), ("measured", 35.0)]


def test_nothing_launched_is_nothing_priced() -> None:
    idle = "[time = 0us, by = measured, kernels = 0]"
    body = f"%y = aten.sigmoid(%x) : f32[64, 32] in $b4 {idle}\n"
    assert times(predict(graph(body))) == []


def test_models_price_a_call_that_was_measured_in_part() -> None:
    body = LINEAR.replace("}", "  %z = aten.relu(%y) : f32[64, 16] in $b5\n}")
    (gemm, *_) = predict(graph(body)).kernels()
    assert gemm.by != "measured"


def test_models_price_another_card_and_whoever_asks_for_them() -> None:
    for found in (
        predict(graph(RELU), "a100"),
        predict(graph(RELU), measured=False),
        predict(graph(RELU), mode="paper"),
        predict(replace(graph(RELU), settings={}), "v100"),
    ):
        assert all(kernel.by != "measured" for kernel in found.kernels())
        assert found.measured.startswith("not used")


@pytest.mark.parametrize(
    ("card", "sheet"),
    [
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-SXM4-40GB"),
        ("NVIDIA GeForce RTX 2080 Ti", "RTX-2080-Ti"),
        ("Tesla V100-DGXS-32GB", "V100-SXM2-16GB"),
        ("AMD Instinct MI250", "MI250"),
        ("AMD Instinct MI100", ""),
    ],
)
def test_cards_find_their_sheet(card: str, sheet: str) -> None:
    assert sheet_of_card(card) == sheet


@pytest.mark.parametrize(
    ("sheet", "card", "same"),
    [
        ("v100", "Tesla V100-SXM2-32GB", True),
        ("v100-pcie-16gb", "Tesla V100-SXM2-16GB", False),
        ("v100", "NVIDIA A100-SXM4-40GB", False),
        ("v100", "AMD Instinct MI250", False),
        ("v100", "", False),
    ],
)
def test_a_sheet_stands_for_cards_that_differ_in_memory_alone(
    sheet: str, card: str, same: bool
) -> None:
    assert is_card(load_device(sheet), card) is same


@pytest.mark.parametrize("count", [1, 2, 3])
def test_measured_copies_and_reads_bring_what_models_say_over_links(count: int) -> None:
    """However many launches were counted: a copy of 8 KB, and rows of NAND with their copy."""
    noted = f"[time = 20us, by = measured, kernels = {count}]"
    copy = f"%y = aten._to_copy(%h) : f32[64, 32] in $b4 {noted}\n"
    assert sum(k.link_bytes for k in predict(graph(copy)).kernels()) == 64 * 32 * 4
    table = 'input %i : i64[64] in $i\nparam %t "t" : f32[1000, 32] @cpu in $t\n\n'
    made = 'tier = "NAND-P3700-800GB") : [f32[64, 32] in $r]'
    read = f"[%r] = irgraph.tier_read([%t], [%i], {made} {noted}\n"
    found = predict(parse(HEADER.rstrip("\n") + "\n" + table + read))
    assert sum(k.link_bytes for k in found.kernels()) == 64 * 4096 + 64 * 128
