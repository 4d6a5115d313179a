"""The library's face: names stay functions, however often and in whatever order they are used."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

import irgraph
from irgraph.execute import execute

DLRM = str(resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir")


def test_everything_can_be_called_twice() -> None:
    graph = irgraph.load(DLRM)
    first = irgraph.predict(graph).step_time
    fused = irgraph.rewrite(graph, "fuse-embedding").graph
    assert irgraph.predict(fused).step_time < first == irgraph.predict(graph).step_time
    assert irgraph.parse(irgraph.print_graph(fused)) == fused


def test_a_step_is_predicted_at_other_sizes() -> None:
    graph = irgraph.load(DLRM)
    small = irgraph.predict(graph, dims={"B": 256})
    assert small.priced.graph.dims["B"] == 256
    assert small.step_time < irgraph.predict(graph).step_time


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        ({"b": 4}, "dims: the model has no dimension 'b'"),
        *(
            ({"B": size}, f"dims: the dimension B must be a whole number of at least 1, not {said}")
            for size, said in (
                (0, "0"),
                ("64", "'64'"),
                (None, "None"),
                (1.5, "1.5"),
                (True, "True"),
            )
        ),
    ],
    ids=["unknown", "size", "text", "none", "fraction", "truth"],
)
@pytest.mark.parametrize("call", ["predict", "execute"])
def test_sizes_that_cannot_be(call: str, dims: dict[str, Any], message: str) -> None:
    if call == "execute":
        message = message.removeprefix("dims: ")
    run = irgraph.predict if call == "predict" else execute
    with pytest.raises(irgraph.IrgraphError, match=message):
        run(irgraph.load(DLRM), dims=dims)


def test_a_size_may_be_of_another_integer_type() -> None:
    import numpy

    graph = irgraph.load(DLRM)
    small = irgraph.predict(graph, dims={"B": numpy.int64(256)})
    assert small.step_time == irgraph.predict(graph, dims={"B": 256}).step_time


def test_names_survive_the_import_of_modules_that_bear_them() -> None:
    import irgraph.capture.live
    import irgraph.predict.prediction

    for name in ("capture", "predict"):
        assert callable(getattr(irgraph, name)), name
        assert "graph" in inspect.signature(irgraph.predict).parameters
    for name in irgraph.__all__:
        assert getattr(irgraph, name) is getattr(irgraph, name), name


def test_a_package_can_be_called_and_its_modules_used() -> None:
    import torch

    import irgraph.capture.live
    import irgraph.predict.prediction

    x = torch.empty(4, device="meta")

    def step() -> None:
        torch.relu(x)

    captured = irgraph.capture(step)
    assert [op.name for op in captured.graph.ops] == ["aten.relu"]
    assert irgraph.capture.live.capture(step).graph == captured.graph
    prediction = irgraph.predict(captured.graph, device="v100")
    again = irgraph.predict.prediction.predict(captured.graph, device="v100")
    assert prediction.step_time == again.step_time > 0


def test_importing_stays_light() -> None:
    program = (
        "import sys, irgraph; print([m for m in ('torch', 'numpy', 'lark') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


def test_passes_and_statements_have_a_function_each() -> None:
    graph = irgraph.load(DLRM)
    assert irgraph.run_script(graph, "resize B = 4096").graph.dims["B"] == 4096
    with pytest.raises(irgraph.IrgraphError, match=r"^pipeline:1:8: ") as raised:
        irgraph.rewrite(graph, "resize B = 4096")
    assert "hint: statements, as in 'resize B = 4096', are for run_script" in str(raised.value)


@pytest.mark.parametrize(
    ("call", "text", "place"),
    [
        (irgraph.rewrite, "no-such-pass", "pipeline:1:1:"),
        (irgraph.rewrite, "fuse-embedding(lest = 1)", "pipeline:1:23:"),
        (irgraph.run_script, "remove aten.relu", "script:1:"),
        (irgraph.run_script, "expect no aten.relu", "script:1:"),
    ],
    ids=["pass", "parameter", "statement", "expectation"],
)
def test_errors_of_a_rewrite_name_the_argument(
    call: Callable[[irgraph.Graph, str], irgraph.Outcome], text: str, place: str
) -> None:
    with pytest.raises(irgraph.IrgraphError) as caught:
        call(irgraph.load(DLRM), text)
    assert str(caught.value).startswith(place)


def test_a_script_may_be_an_object_and_a_pipeline_a_list_of_calls() -> None:
    graph = irgraph.load(DLRM)
    (instance,) = irgraph.space("fuse-embedding", graph).instances
    once = irgraph.rewrite(graph, [instance]).graph
    assert once == irgraph.rewrite(graph, [instance.call]).graph == instance.graph
    script = irgraph.load_script(f"apply {instance}")
    assert irgraph.run_script(graph, script).graph == once


def test_a_script_may_ask_for_times_on_a_device() -> None:
    graph = irgraph.load(DLRM)
    script = "expect 1 aten.bmm where op.time > 80us"
    irgraph.run_script(graph, script, device="v100")
    with pytest.raises(irgraph.IrgraphError, match=r"expected 1 aten\.bmm, found 0"):
        irgraph.run_script(graph, script, device=irgraph.PredictOptions(device="h100"))


def test_two_predictions_are_subtracted() -> None:
    graph = irgraph.load(DLRM)
    fused = irgraph.rewrite(graph, "fuse-embedding").graph
    found = irgraph.diff(graph, fused, device="a100", step_times=(20_000.0, 18_000.0))
    assert found.step_time_change == found.after.step_time - found.before.step_time < 0
    low, high = found.interval
    assert low < found.step_time_change < high
    assert {change.kind for change in found.changes} == {"removed", "added"}
    assert found.summary()["validation"]["measured_change_us"] == -2000.0


def test_ranks_are_predicted_together() -> None:
    graph = irgraph.rewrite(irgraph.load(DLRM), "overlap-allreduce").graph
    found = irgraph.predict_ranks([graph, graph], device="v100", starts=(0.0, 500.0))
    assert len(found.steps) == 2
    assert found.straggler == 1
    assert found.waiting[0] > found.waiting[1] == 0.0


def test_devices_hosts_and_passes_are_listed() -> None:
    names = [device.name for device in irgraph.devices()]
    assert irgraph.device("v100").name in names
    assert irgraph.device("a100").memory_bytes == 40 * 2**30
    assert "v100" in [host.name for host in irgraph.hosts()]
    assert "fuse-embedding" in [known.name for known in irgraph.passes()]


@pytest.mark.data
def test_traces_are_analysed_and_replayed(data_dir: Path) -> None:
    trace = data_dir / "traces" / "dlrm_8xV100" / "kineto_rank0.json.gz"
    found = irgraph.analyze_traces(trace)
    steps = irgraph.replay_trace(trace)
    assert [step.step for step in steps] == [figures.step for figures in found.steps]
    assert all(abs(step.error) < 0.05 for step in steps)
    exact = irgraph.replay_trace(trace, means=False)
    assert max(abs(step.error) for step in exact) <= max(abs(step.error) for step in steps)


def test_a_trace_without_device_events_has_no_replay(tmp_path: Path) -> None:
    path = tmp_path / "cpu.json"
    event = {"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    path.write_text(json.dumps({"traceEvents": [event]}))
    with pytest.raises(irgraph.IrgraphError, match="no device events to replay"):
        irgraph.replay_trace(path)


def test_the_face_tells_type_checkers_what_it_imports() -> None:
    """Names are listed three times: for type checkers, for readers, with their homes."""
    tree = ast.parse(Path(irgraph.__file__).read_text(encoding="utf-8"))
    (block,) = (n for n in tree.body if isinstance(n, ast.If))
    named = {
        (alias.asname or alias.name): (statement.module, alias.name)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert named == irgraph._ORIGINS
    assert sorted(irgraph.__all__) == sorted([*named, "__version__"])


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'preditc'"):
        irgraph.preditc  # type: ignore[attr-defined]  # noqa: B018


def test_the_version_is_that_of_the_package() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "irgraph.__version__"}
    assert irgraph.__version__.count(".") == 2


def test_errors_of_a_command_name_its_options() -> None:
    from irgraph.cli.pipeline import STEP_SOURCES
    from irgraph.manage.stage import PipelineStep, stages

    for name, text in (("pass_", "a,"), ("text", "fuze")):
        kind, option = STEP_SOURCES[name]
        with pytest.raises(irgraph.IrgraphError, match=f"^{option}:1:"):
            stages([PipelineStep(kind, text, option)])


@pytest.mark.parametrize(("old", "new"), irgraph.RENAMED.items())
def test_old_names_work_and_warn(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"irgraph.{old} is now irgraph.{new}"):
        assert getattr(irgraph, old) is getattr(irgraph, new)
