"""Chakra traces of simulated steps, read by a reader of their own and run as others run them."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings

import irgraph
from irgraph.capture.lower import lower_file
from irgraph.exchange.chakra import chakra_trace
from irgraph.ir.cost import Priced
from irgraph.schedule.simulate import simulate
from tests.cli.conftest import Ran
from tests.exchange.chakra_reader import COLLECTIVE, COMP, METADATA, Task, finish, read, replay
from tests.schedule.graphs import FlatHost, steps

DATA = resources.files("costmodels.evaluate") / "data"
MODELS = ("dlrm_default.ir", "dlrm_mlperf.ir")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "chakra.md"
SHOWN = {"dlrm_default.ir": "DLRM_default, 2048", "dlrm_mlperf.ir": "DLRM_MLPerf, 2048"}

EXCHANGES = """model "m" { format = 1  ranks = 4  rank = 0  groups = "dp=0,2 tp=0-1" }

device @gpu0 "v100"
input %g : f32[1024] in $b1
input %h : f32[4096] in $b2

c10d.allreduce_([%g!], process_group = "world", reduce_op = "sum", sparse_indices = none)
c10d._allgather_base_(%h!, %g, process_group = "dp")
c10d._reduce_scatter_base_(%g!, %h, process_group = "tp", reduce_op = "sum")
c10d.broadcast_([%g!], process_group = "lost", root_rank = 0, root_tensor = 0)
c10d.barrier(%g, process_group = "world", device_ids = [0])
"""


def predicted(name: str) -> irgraph.Prediction:
    return irgraph.predict(irgraph.load(str(DATA / name)), device="v100", host="v100")


def tasks_of(nodes: list[Task]) -> list[Task]:
    return [node for node in nodes if node.type != METADATA]


@settings(max_examples=30)
@given(steps())
def test_the_dependencies_give_the_times_of_the_step(step: tuple[Priced, FlatHost]) -> None:
    """Every start is the end of what was waited for, whatever was rounded: nothing drifts."""
    timeline = simulate(*step)
    _, nodes = read(chakra_trace(timeline, step[0]))
    tasks = tasks_of(nodes)
    ends = {task.id: task.start + task.duration for task in tasks}
    for task, interval in zip(tasks, timeline.intervals, strict=True):
        assert task.start == max((ends[other] for other in task.data), default=0)
        assert task.start == pytest.approx(interval.start, abs=0.5000001)
        assert ends[task.id] == pytest.approx(interval.end, abs=0.5000001)
    assert finish(tasks) == pytest.approx(timeline.step_time, abs=0.5000001) if tasks else True


@pytest.mark.parametrize("name", MODELS)
def test_a_step_runs_as_astra_sim_runs_it(name: str) -> None:
    """One task at a time of CPU and GPU: delays that we do not count as work add a little."""
    prediction = predicted(name)
    _, nodes = read(chakra_trace(prediction.timeline, prediction.priced))
    assert finish(nodes) == round(prediction.step_time)
    assert 0 <= replay(nodes) / prediction.step_time - 1 < 0.02
    (row,) = (line for line in PAGE.read_text("utf-8").splitlines() if SHOWN[name] in line)
    shown = [float(cell.split()[0]) for cell in row.split("|")[2:5]]
    times = [prediction.step_time, finish(nodes), replay(nodes)]
    assert [time / 1e3 for time in times] == pytest.approx(shown, rel=0.005)


def test_nodes_say_what_they_are_of() -> None:
    prediction = predicted(MODELS[0])
    timeline, graph = prediction.timeline, prediction.priced.graph
    head, nodes = read(chakra_trace(timeline, prediction.priced))
    assert head["step_time_us"] == timeline.step_time
    assert head["resources"] == ["host main", "gpu0 default", *head["resources"][2:]]
    ops, tasks = [n for n in nodes if n.type == METADATA], tasks_of(nodes)
    assert [len(ops), len(tasks)] == [len(list(graph.walk())), len(timeline.columns)]
    assert [node.id for node in nodes] == list(range(1, len(nodes) + 1))
    assert all(caller < node.id for node in nodes for caller in node.ctrl)
    by_op = dict(zip(graph.walk(), ops, strict=True))
    for op in graph.walk():
        assert all(by_op[child].ctrl == [by_op[op].id] for child in op.body)
    for task, interval in zip(tasks, timeline.intervals, strict=True):
        assert task.ctrl == ([by_op[interval.op].id] if interval.op else [])
        assert task.attrs["is_cpu_op"] == timeline.on_host(interval)
        assert task.attrs["duration_us"] == interval.length
        where = task.attrs["tid" if task.attrs["is_cpu_op"] else "stream"]
        assert head["resources"][where] == str(timeline.resources[interval.resource])


def test_operands_are_written_as_torch_records_them(tmp_path: Path) -> None:
    """What irgraph itself reads from torch's traces, read from the first task of each op."""
    text = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[4, 8] in $a
param %w : f32[16, 8] in $w

%y = aten.linear(%x, %w) : f32[4, 16] in $y
%z = aten.sum(%y, [1], true) : f32[4, 1] in $z
"""
    prediction = irgraph.predict(irgraph.parse(text))
    _, nodes = read(chakra_trace(prediction.timeline, prediction.priced))
    first = {each.name.split()[-1]: each for each in reversed(nodes) if each.inputs.get(1)}
    assert first["aten::linear"].inputs == {
        1: "[[1, 1, 0, 32, 4, 'cuda:0'], [2, 2, 0, 128, 4, 'cuda:0'], '<None>']",
        2: "[[4, 8], [16, 8], []]",
        3: "['Tensor(float)', 'Tensor(float)', 'None']",
    }
    assert first["aten::sum"].inputs == {
        1: "[[3, 3, 0, 64, 4, 'cuda:0'], [1], True, '<None>']",
        2: "[[4, 16], [[]], [], []]",
        3: "['Tensor(float)', 'GenericList[Int]', 'Bool', 'None']",
    }
    assert first["aten::sum"].outputs[1] == "[[4, 4, 0, 4, 4, 'cuda:0']]"


@pytest.mark.parametrize("name", [*MODELS, "resnet50.ir.gz"])
def test_a_model_comes_back_exactly(name: str, tmp_path: Path) -> None:
    prediction = predicted(name)
    path = tmp_path / "step.0.et.gz"
    irgraph.write_chakra(prediction.timeline, prediction.priced, path)
    graph = irgraph.lower(path).graph
    assert irgraph.print_graph(graph) == irgraph.print_graph(prediction.priced.graph)


def test_collectives_have_their_kind_bytes_and_group(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    model = tmp_path / "m.ir"
    model.write_text(EXCHANGES)
    ran = run("ranks", *[model] * 4, "--fabric", "v100", "--chakra", tmp_path / "step", "--json")
    assert ran.code == 0, ran.err
    named: dict[str, list[int]] = {}
    for rank in range(4):
        head, nodes = read((tmp_path / f"step.{rank}.et").read_bytes())
        replay(nodes)
        groups = json.loads(nodes[0].inputs[1][2:-2])
        for group in groups:
            assert rank in group["ranks"]
            assert named.setdefault(group["pg_name"], group["ranks"]) == group["ranks"]
        number = {group["pg_desc"]: group["pg_name"] for group in groups}
        told = [
            (n.attrs["comm_type"], n.attrs["comm_size"], n.attrs.get("pg_name"))
            for n in nodes
            if n.type == COLLECTIVE
        ]
        # by hand: 1,024 floats to all, its part of a gather, all parts of a scatter
        assert told == [
            (0, 4096, None),
            (2, 4096, number["dp"]),
            (7, 16384, number["tp"]),
            (5, 4096, "1000000"),
            (0, 4096, None),
        ]
        assert head["irgraph_model"].startswith('model "m"')
    assert sorted(named.values()) == [[0, 1], [0, 2], [1, 3], [2, 3]]


def test_other_work_is_computation() -> None:
    found = predicted(MODELS[0])
    _, nodes = read(chakra_trace(found.timeline, found.priced))
    assert {node.type for node in nodes} == {METADATA, COMP}


def test_the_command_writes_what_the_library_writes(
    run: Callable[..., Ran], tmp_path: Path
) -> None:
    path = tmp_path / "step.0.et"
    options = ("--device", "v100", "--host", "v100", "--chakra", path)
    assert run("predict", DATA / MODELS[0], *options).code == 0
    prediction = predicted(MODELS[0])
    assert path.read_bytes() == chakra_trace(prediction.timeline, prediction.priced)
    ran = run("predict", DATA / MODELS[0], "--chakra", tmp_path / "none" / "x.et")
    assert (ran.code, "does not exist" in ran.err) == (4, True)
    ran = run("ranks", DATA / MODELS[0], "--chakra", tmp_path / "none" / "x")
    assert (ran.code, "does not exist" in ran.err) == (4, True)


def test_without_protobuf_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from irgraph.capture.chakra import schema

    schema.messages.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "google.protobuf", None)
    with pytest.raises(irgraph.IrgraphError, match="protobuf") as caught:
        schema.messages()
    assert (caught.value.exit_code, "irgraph[chakra]" in str(caught.value)) == (2, True)


def test_nodes_that_contradict_the_model_are_counted(tmp_path: Path) -> None:
    """An edited node is no silent copy of the model in the file's head."""
    prediction = predicted("dlrm_default.ir")
    path = tmp_path / "step.0.et"
    data = chakra_trace(prediction.timeline, prediction.priced)
    path.write_bytes(data)
    assert lower_file(str(path)).health == ()
    path.write_bytes(data.replace(b"aten::relu", b"aten::silu"))
    captured = lower_file(str(path))
    assert captured.exit_code == 3
    assert (
        "op nodes contradict the model in the trace's metadata, which is used"
        in (captured.health[0])
    )
