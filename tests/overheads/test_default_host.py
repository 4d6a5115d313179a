"""The host of a step for which none is named: by the release of torch, in every command."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

import irgraph
from irgraph.cli.main import main
from irgraph.diagnostics import IrgraphError
from irgraph.overheads.default_host import (
    RECENT_TABLE,
    default_host_note,
    default_table,
    host_of_step,
    table_name,
)
from irgraph.overheads.table import load_host
from irgraph.predict.options import PredictOptions
from irgraph.predict.tables import figure_rows
from irgraph.predict.variants import predict_variants
from irgraph.text import parse, print_graph
from irgraph.tuning.build import search_space

STEP = """model "step" { format = 1  dims = {B = 64} }

device @gpu0 "v100"
input %x : f32[B, 64] in $x
param %w : f32[64, 64] in $w

%y = aten.mm(%x, %w) : f32[B, 64] in $y
%z = aten.relu(%y) : f32[B, 64] in $z
"""
NOTE = "no host is named: host times are those of h100-torch-2.11"


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "step.ir"
    path.write_text(STEP)
    return str(path)


@pytest.mark.parametrize("device", ["v100", "a100", "h100", "rtx-4090", "mi300x"])
def test_the_default_is_of_todays_torch_on_every_card(device: str) -> None:
    prediction = irgraph.predict(parse(STEP), device)
    named = irgraph.predict(parse(STEP), device, host="h100-torch-2.11")
    assert prediction.host.name == "h100-torch-2.11"
    assert prediction.step_time == named.step_time
    assert any(NOTE in text for text in prediction.warnings)
    assert not any(NOTE in text for text in named.warnings)


def test_torch_1_has_the_host_of_its_time() -> None:
    graph = parse(STEP)
    old = replace(graph, settings={"torch": "1.13.1+cu117"})
    assert default_table(graph, "torch-1.10-cuda-11.3") == "v100"
    assert default_table(old, "torch-2") == "v100"
    assert default_table(replace(graph, settings={"torch": "2.13.0"}), "torch-2") != "v100"


def test_a_default_can_be_scaled() -> None:
    graph = parse(STEP)
    assert table_name("default@1.5x", graph, "torch-2") == "h100-torch-2.11@1.5x"
    assert host_of_step("default@1.5x", graph, "torch-2").speeds["T1"] == 1.5


def test_the_interval_of_a_default_host_includes_other_machines() -> None:
    """The step is bound by the host: means vary by 17 % by programs alone, 60 % with machines."""
    graph = parse(STEP.replace("aten.mm(%x, %w)", "aten.relu(%x)"))
    hosts = ("default", "default@3.4us", "h100-torch-2.11")
    default, by_launch, named = (
        irgraph.predict(graph, "h100", host=host).steady_samples.std() for host in hosts
    )
    assert default > 1.5 * by_launch > 1.5 * 1.3 * named


def test_a_launch_time_decides_before_the_release() -> None:
    graph = replace(parse(STEP), settings={"torch": "1.13.1"})
    assert table_name("default@6us", graph, "torch-2") == "h100-torch-2.11@6us"
    assert "scaled by the time of a kernel's launch" in default_host_note(
        host_of_step("default@6us", graph, "torch-2")
    )
    assert default_host_note(host_of_step("h100-torch-2.11@6us", graph, "torch-2")) == ""


def test_a_difference_has_warnings() -> None:
    graph = parse(STEP)
    difference = irgraph.diff(graph, graph, device="h100")
    assert any(NOTE in text for text in difference.warnings)
    assert difference.summary()["warnings"] == list(difference.warnings)


def test_two_releases_are_compared_on_one_host() -> None:
    graph = parse(STEP)
    old = replace(graph, settings={"torch": "1.13.1"})
    assert irgraph.diff(old, graph, device="v100").step_time_change == 0.0


def test_variants_and_spaces_have_the_default() -> None:
    graph = parse(STEP)
    variants = predict_variants(graph, ["h100"], [{"B": 64}], PredictOptions())
    assert variants.step_time[0, 0] == irgraph.predict(graph, "h100").step_time
    assert any(NOTE in text for text in variants.warnings)
    space = search_space(graph, dims={"B": [64, 128]}, devices=["h100"])
    assert NOTE in space.explain()


COMMANDS = [
    ["predict", "MODEL", "--device", "h100"],
    ["diff", "MODEL", "MODEL", "--device", "h100"],
    ["opt", "MODEL", "--pass", "remove-dead", "--device", "h100"],
    ["ranks", "MODEL", "MODEL", "--device", "h100"],
    ["sweep", "MODEL", "--dim", "B=64,128", "--device", "h100", "-o", "OUT"],
    ["bisect", "MODEL", "--pass", "remove-dead", "--limit", "step.time=1s"],
]


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_says_which_host_it_took(
    command: list[str], model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    places = {"MODEL": model, "OUT": str(tmp_path / "out")}
    main([places.get(word, word) for word in command])
    text = re.sub(r"[\s│]+", " ", "".join(capfd.readouterr()))
    assert "no host is named" in text, text


@pytest.mark.parametrize(
    ("name", "suggested"),
    [("h100", "h100-torch-2.11"), ("v10", "v100"), ("defualt", "default")],
)
def test_an_unknown_host_suggests_its_own_machine(name: str, suggested: str) -> None:
    with pytest.raises(IrgraphError) as error:
        irgraph.predict(parse(STEP), "v100", host=name)
    assert f"did you mean {suggested!r}?" in str(error.value)


@pytest.mark.parametrize("name", ["h200", "b200", "t4", "l40s"])
def test_a_card_without_a_table_suggests_no_other_card(name: str) -> None:
    with pytest.raises(IrgraphError) as error:
        irgraph.predict(parse(STEP), "v100", host=name)
    assert "did you mean" not in str(error.value)


def test_the_canonical_text_is_the_same() -> None:
    """The default is resolved per step: nothing of it is written into a model."""
    assert "h100" not in print_graph(parse(STEP))


def test_operations_of_an_inference_record_no_graph() -> None:
    """Without a backward pass, calls take less; T1 and launches do not change."""
    graph = parse(STEP)
    training = replace(graph, ops=(*graph.ops, replace(graph.ops[-1], phase="backward")))
    without, with_graph = (
        host_of_step("default", step, "torch-2").overheads(graph.ops[-1], 2)
        for step in (graph, training)
    )
    ratio = load_host(RECENT_TABLE).file.no_graph_ratio
    assert ratio < 1.0
    assert without.t2 == pytest.approx(ratio * with_graph.t2)
    assert (without.t1, without.t4) == (with_graph.t1, with_graph.t4)


def test_the_ratio_of_an_inference_is_printed() -> None:
    graph = parse(STEP)
    training = replace(graph, ops=(*graph.ops, replace(graph.ops[-1], phase="backward")))
    ratio = load_host(RECENT_TABLE).file.no_graph_ratio
    inference = irgraph.predict(graph, "h100").summary()
    assert inference["no_graph_ratio"] == ratio
    assert f"x{ratio:g}" in dict(figure_rows(inference))["host overheads of ops"]
    assert irgraph.predict(training, "h100").summary()["no_graph_ratio"] == 1.0
    warning = "only one of the steps records a graph"
    assert warning in irgraph.diff(training, graph, device="h100").warnings[-1]
    assert not any(warning in line for line in irgraph.diff(graph, graph, device="h100").warnings)


def test_an_impossible_ratio_is_refused(tmp_path: Path) -> None:
    """Recording a graph takes time: no call is slower without one."""
    path = tmp_path / "host.json"
    file = load_host("v100").file
    path.write_bytes(msgspec.json.encode(replace(file, no_graph_ratio=1.5)))
    with pytest.raises(IrgraphError, match=r"no_graph_ratio is 1\.5"):
        load_host(str(path))
