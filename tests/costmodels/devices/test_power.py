"""Rates of products that cards sustain, and their draw."""

from __future__ import annotations

from typing import Any

import pytest

from costmodels.devices.library import list_devices, load_device
from costmodels.devices.power import sustained_rate
from irgraph import predict
from irgraph.ir.ranks import with_ranks
from irgraph.predict.power import EXPONENT
from irgraph.predict.tables import figure_rows
from irgraph.predict.target import target
from irgraph.predict.variants import predict_variants
from irgraph.text import parse

TEXT = """model "products" { format = 1  dims = { B = 16384 } }

device @gpu0 "h100"
param %w : bf16[4096, 4096] in $w
input %x0 : bf16[B, 4096] in $x0

""" + "\n".join(f"%x{i + 1} = aten.mm(%x{i}, %w) : bf16[B, 4096] in $x{i + 1}" for i in range(12))
PRODUCTS = parse(TEXT)


def test_a_card_without_figure_follows_its_nearest_relative() -> None:
    card, relative = load_device("l40s"), load_device("l4")
    rate = relative.sustained_rate("bf16")
    assert rate is not None and relative.watts is not None and card.watts is not None
    ratio = (card.watts / card.sms) / (relative.watts / relative.sms)
    expected = rate * card.sms / relative.sms * ratio ** (1 / EXPONENT)
    assert sustained_rate(card, "bf16") == pytest.approx(expected)


@pytest.mark.parametrize("name", list_devices())
def test_no_card_sustains_more_than_its_short_kernels_reach(name: str) -> None:
    sheet = load_device(name)
    for dtype in ("f16", "bf16"):
        rate = sustained_rate(sheet, dtype)
        if rate is not None:
            peak = sheet.peak(dtype)[0]
            assert 0.2 * peak < rate <= peak * (sheet.measured_share(dtype) or 0.75)


def test_halved_units_and_other_types_have_no_sustained_rate() -> None:
    assert sustained_rate(load_device("rtx-4090"), "bf16") is None
    assert sustained_rate(load_device("h100"), "f32") is None
    assert sustained_rate(load_device("mi300x"), "bf16") is None


@pytest.mark.parametrize("device", ["h100", "b200", "l40s"])
def test_products_without_a_pause_run_at_the_sustained_rate(device: str) -> None:
    prediction = predict(PRODUCTS, device)
    time = sum(kernel.time for kernel in prediction.kernels())
    flop = 12 * 2 * 16384 * 4096**2
    rate = sustained_rate(load_device(device), "bf16")
    assert flop / time / 1e3 == pytest.approx(rate, rel=0.01)
    power: Any = prediction.summary()["power"]
    assert power["draw"] > 1 > power["clock"]
    isolated = time - power["added_us"]
    assert time / isolated == pytest.approx(1 / power["clock"])
    text = dict(figure_rows(prediction.summary()))["power limit"]
    assert f"{power['clock']:.1%}" in text


def test_many_sizes_together_sustain_what_each_does() -> None:
    sizes = [{"B": rows} for rows in (64, 1024, 16384)]
    together = predict_variants(PRODUCTS, ["h100"], sizes).step_time[0]
    assert list(together) == [predict(PRODUCTS, "h100", dims=dims).step_time for dims in sizes]


def test_collectives_leave_products_no_power() -> None:
    """They run on another stream at the same time: the mean draw is over the products' time."""
    calls = (
        f'c10d.allreduce_([%x{layer}!], process_group = "world", reduce_op = "sum", '
        "sparse_indices = none)"
        for layer in (6, 12)
    )
    graph = with_ranks(parse("\n".join([TEXT, *calls])), 8)
    sizes = [{"B": rows} for rows in (64, 16384)]
    predictions = [predict(graph, "h100", dims=dims) for dims in sizes]
    assert [k.family for k in predictions[1].kernels()].count("collective") == 2
    power = predictions[1].priced.power
    assert power is not None
    assert power == predict(PRODUCTS, "h100").priced.power
    together = predict_variants(graph, ["h100"], sizes).step_time[0]
    assert list(together) == [prediction.step_time for prediction in predictions]


def test_scripts_read_the_times_of_the_step() -> None:
    times = target("h100")
    total = sum(times.time(PRODUCTS, op) for op in PRODUCTS.top_level())
    assert total == pytest.approx(sum(k.time for k in predict(PRODUCTS, "h100").kernels()))


def test_a_step_of_small_kernels_keeps_its_clock() -> None:
    assert predict(PRODUCTS, "h100", dims={"B": 8}).priced.power is None
    power = predict(PRODUCTS, "l4", dims={"B": 256}).summary()["power"]
    assert power is None or power["clock"] > 0.9
