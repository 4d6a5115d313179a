"""Search spaces: axes from what is legal, conditions, figures as predictions have them, scripts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import irgraph
from irgraph.diagnostics import IrgraphError
from irgraph.tuning.build import objective
from irgraph.tuning.space import SearchSpace
from tests.tuning.spaces import GRAPH, WIDEN, small


@pytest.fixture(scope="module")
def space() -> SearchSpace:
    return small(limits={"memory.peak": "device", "step.time": "1ms"})


def point(**changes: Any) -> dict[str, Any]:
    found = {"device": "v100", "host": "default", "fuse-epilogue": "off", "B": 256}
    return {**found, **{name.replace("_", "-"): value for name, value in changes.items()}}


def test_axes_come_from_what_is_legal(space: SearchSpace) -> None:
    found = {axis.name: axis.choices for axis in space.axes}
    assert found == {
        "device": ("v100", "a100"),
        "host": ("default",),
        "fuse-epilogue": ("off", "on"),
        "cast-gemms": ("off", "bf16", "f16"),
        "B": (256, 512, 768, 1024, 1280, 1536),
    }
    assert space.passes == ("cast-gemms", "fuse-epilogue") and not space.left_out


def test_every_point_is_there_once_with_the_axes_that_take_part(space: SearchSpace) -> None:
    points = list(space.points())
    assert len({json.dumps(one) for one in points}) == len(points) == 6 * 2 * (1 + 3)
    assert all(("cast-gemms" in one) == (one["device"] == "a100") for one in points)
    assert space.most == 2 * 1 * 2 * 3 * 6


def test_it_explains_itself() -> None:
    text = small(passes=["cast-gemms", "fuse-attention"], limits={"throughput": 5}).explain()
    assert "cast-gemms: off, bf16, f16, where device is a100" in text
    assert "2 of 2 calls tried give results of their own on this step" in text
    assert "fuse-attention: left out\n    none of 1 calls tried changes this step" in text
    assert "B: 256, 512, 768, 1024, 1280, 1536\n    given; 256 as captured" in text
    assert "limit: throughput at least 5.000 samples/s" in text


def test_figures_are_those_of_predictions(space: SearchSpace) -> None:
    points = random.Random(1).sample(list(space.points()), 6)
    for one, found in zip(points, space.figures(points), strict=True):
        graph = irgraph.with_dims(space.variant(one), {"B": one["B"]})
        alone = irgraph.predict(graph, device=one["device"], measured=False)
        assert found.values["step.time"] == alone.step_time
        assert found.values["gpu.active"] == alone.timeline.active_time
        assert found.values["throughput"] == one["B"] / alone.step_time * 1e6
        facts = irgraph.device(one["device"])
        needed = irgraph.peak_memory(graph).needs(facts.architecture)
        assert found.values["memory.peak"] == needed
        assert found.excess["memory.peak"] == needed / facts.memory_bytes - 1
        assert found.excess["step.time"] == alone.step_time / 1000 - 1
        assert found.feasible == (alone.step_time <= 1000)


def test_a_script_makes_the_variant_that_was_priced(space: SearchSpace, tmp_path: Path) -> None:
    one = {**point(device="a100", B=1024), "cast-gemms": "f16", "fuse-epilogue": "on"}
    (figures,) = space.figures([one])
    text = space.script(one, "the best\nof all")
    assert text.splitlines() == [
        "# the best",
        "# of all",
        "# irgraph opt -s THIS_FILE --device a100 --host default MODEL",
        "apply cast-gemms(narrow = f16)",
        "apply fuse-epilogue",
        "resize B = 1024",
    ]
    made = irgraph.run_script(GRAPH, text).graph
    assert irgraph.predict(made, device="a100").step_time == figures.values["step.time"]


def test_a_script_that_changes_nothing_runs() -> None:
    space = small(dims={}, devices=["v100"], when={})
    one = {"device": "v100", "host": "default", "cast-gemms": "off", "fuse-epilogue": "off"}
    assert irgraph.run_script(GRAPH, space.script(one)).graph == GRAPH


def test_each_structure_is_made_once(space: SearchSpace) -> None:
    fresh = small()
    fresh.figures(list(fresh.points()))
    (pricing,) = fresh._pricing_cache
    # f16 and bf16 alone, each before the fusion, and the fusion alone
    assert pricing.structures.pass_runs == 5


def test_a_space_is_kept_as_json(space: SearchSpace) -> None:
    again = SearchSpace.from_json(space.to_json(), GRAPH)
    assert again.axes == space.axes and again.fingerprint == space.fingerprint
    assert again.limits == space.limits and list(again.points()) == list(space.points())
    one = point(device="a100", cast_gemms="off")
    assert again.figures([one])[0].values == space.figures([one])[0].values
    with pytest.raises(IrgraphError, match="of another model"):
        SearchSpace.from_json(space.to_json(), irgraph.with_dims(GRAPH, {"B": 8}))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "axes": 3}'], ids=repr
)
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(IrgraphError, match="not a search space"):
        SearchSpace.from_json(text, GRAPH)


def test_any_search_may_ask(space: SearchSpace) -> None:
    draw = random.Random(3)
    asked = [space.ask(lambda axis: draw.choice(axis.choices)) for _ in range(20)]
    assert {one["device"] for one in asked} == {"v100", "a100"}
    assert all(("cast-gemms" in one) == (one["device"] == "a100") for one in asked)
    with pytest.raises(IrgraphError, match="device cannot be 7"):
        space.ask(lambda _: 7)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (point(device="h100"), "device cannot be 'h100'"),
        (point(B=300), "B cannot be 300"),
        (point(B="256"), "B cannot be '256'"),
        (point(cast_gemms="f16"), "cast-gemms takes part only where device is a100"),
        (point(C=3), "there is no axis 'C'"),
        ({"device": "v100"}, "it lacks a choice of host"),
    ],
)
def test_what_is_no_point_is_refused(
    space: SearchSpace, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(IrgraphError, match=message) as caught:
        space.figures([wrong])
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"passes": ["fuse-epilog"]}, "did you mean 'fuse-epilogue'"),
        ({"values": {"fuse": {}}}, "values: there is no 'fuse' here"),
        (
            {"passes": ["cast-gemms"], "values": {"cast-gemms": {"to": ["f16"]}}},
            "values.cast-gemms: there is no 'to' here",
        ),
        (
            {"passes": ["cast-gemms"], "values": {"cast-gemms": {"narrow": ["f 16"]}}},
            "narrow is of type dtype, not 'f 16'",
        ),
        ({"devices": ["v1000"]}, "v1000"),
        ({"passes": "cast-gemms"}, "passes: give a list of names"),
        ({"devices": []}, "devices: give a list of names"),
        ({"devices": "v100"}, "devices: give a list of names"),
        ({"devices": ["v100", "v100"], "when": {}}, "devices: one is given twice"),
        ({"hosts": ["nowhere"]}, "nowhere"),
        ({"ranks": ["2y8"]}, "2y8"),
        ({"dims": {"C": [1]}}, "no dimension 'C'"),
        ({"dims": {"B": []}}, "give sizes of B"),
        ({"dims": {"B": [0, 1]}}, "at least 1, not 0"),
        ({"dims": {"B": [1, "two"]}}, "at least 1, not 'two'"),
        ({"when": {"cast-gemm": {}}}, "when: there is no 'cast-gemm' here"),
        ({"when": {"B": {"devise": ["v100"]}}}, "when.B: there is no axis 'devise'"),
        ({"when": {"B": {"device": ["h100"]}}}, "when.B: device cannot be 'h100'"),
        ({"when": {"B": {"device": []}}}, "when.B: give choices of device"),
        ({"when": {"B": {"host": ["default"]}, "host": {"B": [256]}}}, "wait for each other"),
        ({"limits": {"memory": 3}}, "unknown figure 'memory'"),
        ({"limits": {"memory.peak": 3}}, "not a size"),
        ({"limits": {"step.time": "3"}}, "not a time"),
        ({"limits": {"throughput": -3}}, "give a number above 0"),
        ({"limits": {"price": 1}}, "prices: there is none of v100, a100"),
        ({"prices": {"v100": 1}}, "prices: there is none of a100"),
        ({"prices": {"v100": 1, "t4": 1}}, "prices: there is no 't4' here"),
        ({"samples": "C"}, "samples: there is no 'C' here"),
        (
            {"options": irgraph.PredictOptions(device="a100")},
            "options: device, dims and ranks are axes",
        ),
    ],
    ids=str,
)
def test_what_is_no_space_is_refused(changes: dict[str, Any], message: str) -> None:
    changes = {"passes": [], "values": {}, "when": {}, **changes}
    with pytest.raises(IrgraphError, match=message):
        small(**changes)


def test_parameters_that_vary_freely_are_axes_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "widen.irg").write_text(WIDEN)
    given = {"widen": {"factor": [1, 2], "more": [0, 64]}}
    space = small(passes=["widen"], values=given, when={}, dims={}, pass_path=[str(tmp_path)])
    factor, more = (axis for axis in space.axes if axis.kind == "parameter")
    assert (factor.name, factor.choices, factor.when) == (
        "widen.factor",
        ("1", "2"),
        {"widen": ("on",)},
    )
    assert more.choices == ("0", "64")
    one = point(widen="on") | {"widen.factor": "2", "widen.more": "64"}
    del one["B"], one["fuse-epilogue"]
    assert space.variant(one).dims == {"B": 1088}
    assert "apply widen(factor = 2, more = 64)" in space.script(one)


def test_parameters_that_exclude_each_other_are_whole_calls(tmp_path: Path) -> None:
    (tmp_path / "widen.irg").write_text(WIDEN)
    given = {"widen": {"factor": [1, 2], "more": [0, 512]}}  # 1 * 512 + 512 = 2 * 512
    space = small(passes=["widen"], values=given, when={}, pass_path=[str(tmp_path)])
    (axis,) = (axis for axis in space.axes if axis.kind == "pass")
    assert axis.choices == (
        "off",
        "widen(factor = 1, more = 0)",
        "widen(factor = 1, more = 512)",
        "widen(factor = 2, more = 512)",
    )


def test_prices_and_ranks() -> None:
    prices = {"v100": 3.6, "a100": 7.2}
    space = small(passes=[], values={}, when={}, ranks=[1, "2x4"], prices=prices)
    one, eight = ({**point(), "ranks": ranks} for ranks in ("1", "2x4"))
    for each in (one, eight):
        del each["fuse-epilogue"]
    few, many = (found.values for found in space.figures([one, eight]))
    # there are no collectives: each of eight ranks has a batch of its own
    assert many["step.time"] == few["step.time"]
    assert many["throughput"] == 8 * few["throughput"]
    # 3.6 USD an hour are a thousandth of one a second
    assert few["price"] == pytest.approx(1e-3 / few["throughput"] * 1e6)
    assert many["price"] == pytest.approx(few["price"])
    assert "--ranks 2x4" in space.script(eight)


def test_a_variant_that_cannot_be_says_why(tmp_path: Path) -> None:
    (tmp_path / "half.irg").write_text(
        'pass half(by: int = 2)\n  "The step with half of its batch."\n{\n  resize B = 128\n'
        "  expect no irgraph.addmm_relu\n}\n"
    )
    space = small(passes=["fuse-epilogue", "half"], values={}, when={}, pass_path=[str(tmp_path)])
    both = {**point(fuse_epilogue="on"), "half": "on"}
    alone = {**both, "fuse-epilogue": "off"}
    refused, fine = space.figures([both, alone])
    assert refused.refused.startswith("half") and not refused.feasible and not refused.values
    assert fine.feasible
    with pytest.raises(IrgraphError, match="half"):
        space.variant(both)


def test_sizes_that_cannot_be_are_refused_one_by_one() -> None:
    large = 10**12
    space = small(passes=[], values={}, when={}, dims={"B": [256, 512]})
    axes = [irgraph.Axis("B", "size", (256, large)) if a.name == "B" else a for a in space.axes]
    from msgspec.structs import replace

    wide = replace(space, axes=tuple(axes), _pricing_cache=[])
    few, many = wide.figures(
        [{"device": "v100", "host": "default", "B": size} for size in (256, large)]
    )
    assert few.feasible and "1 PiB is the most" in many.refused


def test_objectives_need_their_figures() -> None:
    space = small(passes=[], values={}, when={})
    assert objective(space, "throughput") == "throughput"
    with pytest.raises(IrgraphError, match="price needs prices"):
        objective(space, "price")
    with pytest.raises(IrgraphError, match="unknown figure 'speed'"):
        objective(space, "speed")
