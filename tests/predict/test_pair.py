"""Predictions that are subtracted: never one measured and the other modelled."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.predict.pair import predict_pair
from irgraph.predict.prediction import Prediction, predict
from irgraph.text import parse

MODEL = """model "m" { format = 1  measured_on = "Tesla V100-SXM2-16GB" }

device @gpu0 "v100"
input %x : f32[4096, 1024] in $b1

%y = aten.relu(%x) : f32[4096, 1024] in $b2 [time = 900us, by = measured, kernels = 1] from "t#1"
%z = aten.sigmoid(%y) : f32[4096, 1024] in $b3 [time = 700us, by = measured, kernels = 1] from "t#2"
"""
NOTED = "[time = 700us, by = measured, kernels = 1] "
HALF = MODEL.replace("f32[4096, 1024] in $b3 " + NOTED, "f16[4096, 1024] in $b3 ")


def unmeasured(graph: Graph) -> Graph:
    ops = tuple(replace(op, notes={}) for op in graph.ops)
    return replace(graph, ops=ops, settings={})


def active(found: Prediction) -> float:
    return sum(kernel.time for kernel in found.kernels())


def test_no_change_changes_nothing() -> None:
    first, second = predict_pair(parse(MODEL), parse(MODEL))
    assert active(first) == active(second) == pytest.approx(1600.0)


def test_an_op_without_its_time_is_scaled_to_what_was_measured() -> None:
    lost = parse(MODEL.replace(NOTED, ""))
    assert active(predict(lost)) < 1000.0
    first, second = predict_pair(parse(MODEL), lost)
    assert active(second) == pytest.approx(active(first))
    assert [kernel.by for kernel in second.kernels()] == ["measured", "scaled"]
    assert "changed ops: modelled time x measured / model before" in second.measured


def test_a_changed_op_gains_by_the_models_share_of_what_was_measured() -> None:
    plain = [active(predict(parse(text), measured=False)) for text in (MODEL, HALF)]
    alone = active(predict(parse(MODEL.replace("aten.relu", "aten.sigmoid")), measured=False)) / 2
    first, second = predict_pair(parse(MODEL), parse(HALF))
    gain = (plain[0] - plain[1]) / alone
    assert gain > 0.1
    assert active(first) - active(second) == pytest.approx(gain * 700.0, rel=0.05)


def test_new_ops_are_scaled_as_the_changed_ones_of_their_family() -> None:
    fused = MODEL[: MODEL.index("%y =")] + (
        '%z = aten.sigmoid(%x) : f32[4096, 1024] in $b3 from "fuse: t#1, t#2"\n'
    )
    first, second = predict_pair(parse(MODEL), parse(fused))
    assert active(second) == pytest.approx(active(first) / 2, rel=0.05)


def test_a_removed_op_saves_what_was_measured_of_it() -> None:
    cut = MODEL[: MODEL.index("%z =")]
    first, second = predict_pair(parse(MODEL), parse(cut))
    assert active(first) - active(second) == pytest.approx(700.0)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_model_that_nobody_measured_is_compared_by_models_alone(swapped: bool) -> None:
    pair = [parse(MODEL), unmeasured(parse(MODEL))]
    first, second = predict_pair(*(reversed(pair) if swapped else pair))
    assert active(first) == pytest.approx(active(second))
    assert "only one of the models" in first.measured
    assert first.measured == second.measured


def test_models_alone_are_to_be_had() -> None:
    first, second = predict_pair(parse(MODEL), parse(HALF), measured=False)
    found = {k.by for prediction in (first, second) for k in prediction.kernels()}
    assert not found & {"measured", "scaled"}
