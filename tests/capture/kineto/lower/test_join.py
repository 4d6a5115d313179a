"""Execution traces joined with Kineto traces."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.capture.common.nodes import RecordedNode
from irgraph.capture.execution_trace.reader import Trace, read_execution_trace
from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import Tree, build_tree
from irgraph.capture.kineto.lower.join import Join, join, kind_of
from irgraph.capture.kineto.lower.measured import lower_with_times
from irgraph.diagnostics import IrgraphError
from irgraph.ir.quantity import Quantity
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph
from tests.capture.kineto.builder import ENGINE, EVALUATE, MAIN, Event, write

STEP = ("aten::linear", "aten::relu", EVALUATE, "aten::add_")


def recording(names: tuple[str, ...] = STEP, process: int = 1, first_record: int = 0) -> Trace:
    nodes = [
        RecordedNode(i + 10, name, thread=2 if name == EVALUATE else 1, backward=name == EVALUATE)
        for i, name in enumerate(names)
    ]
    for i, node in enumerate(nodes):
        node.record = first_record + i if first_record else 0
    return Trace("et.json", "1.1.1", nodes, [], process)


def tree(folder: Path, **options: object) -> Tree:
    return build_tree(read_kineto(write(folder, **options)))  # type: ignore[arg-type]


def test_by_order_in_every_iteration(tmp_path: Path) -> None:
    found = join(recording(STEP * 2), tree(tmp_path))
    assert found.method == "order"
    assert found.rate() == 1.0
    assert found.rates["aten"] == (6, 6)
    assert found.rates["autograd"] == (2, 2)


def test_by_ids_where_they_agree(tmp_path: Path) -> None:
    found = join(recording(first_record=11), tree(tmp_path))
    assert found.method == "ids"
    assert found.rate() == 1.0


def test_ids_that_name_other_calls_are_not_believed(tmp_path: Path) -> None:
    assert join(recording(first_record=12), tree(tmp_path)).method == "order"


def test_another_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="does not belong to the execution trace") as caught:
        join(recording(("aten::conv2d", "aten::gelu", "aten::addmm")), tree(tmp_path))
    assert caught.value.exit_code == 4
    assert "another model or version" in str(caught.value)
    assert "aten::conv2d" in str(caught.value)
    assert "best candidate" in str(caught.value)


def test_another_step_is_refused(tmp_path: Path) -> None:
    names = ("aten::add_", "aten::add_", "aten::add_", *STEP, "aten::relu", "aten::relu")
    with pytest.raises(IrgraphError, match="another order or number"):
        join(recording(names * 2), tree(tmp_path), min_rate=0.95)


def test_backward_on_the_programs_own_thread_beside_a_helper(tmp_path: Path) -> None:
    names = ("ProfilerStep#5", *STEP)
    nodes = [
        RecordedNode(i + 10, name, thread=1, backward=name == EVALUATE)
        for i, name in enumerate(names)
    ]
    nodes.insert(2, RecordedNode(5, "aten::empty", thread=9))

    def change(found: list[Event]) -> None:
        for event in found:
            event["tid"] = MAIN if event["tid"] == ENGINE else event["tid"]

    found = join(Trace("et.json", "1.1.1", nodes, [], 1), tree(tmp_path, change=change))
    assert found.rates["aten"] == (3, 4)
    assert found.rates["autograd"] == (1, 1)


def test_an_annotation_that_both_have_is_not_called_missing(tmp_path: Path) -> None:
    names = ("ProfilerStep#5", "aten::conv2d", "aten::gelu", "aten::addmm")
    with pytest.raises(IrgraphError, match="never calls aten::conv2d"):
        join(recording(names), tree(tmp_path))


def test_another_process_is_warned_of(tmp_path: Path) -> None:
    found = join(recording(process=77), tree(tmp_path))
    assert "another rank or run?" in found.warnings[0]
    assert "another rank or run?" in "\n".join(found.lines())


def test_annotations_join_by_name(tmp_path: Path) -> None:
    names = ("ProfilerStep#5", *STEP)
    assert join(recording(names), tree(tmp_path)).rates["annotations"] == (1, 1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("aten::add", "aten"),
        (EVALUATE, "autograd"),
        ("AddmmBackward0", "autograd"),
        ("torch::autograd::AccumulateGrad", "autograd"),
        ("Optimizer.step#SGD.step", "annotations"),
        ("fbgemm::permute", "others"),
    ],
)
def test_classes(name: str, kind: str) -> None:
    assert kind_of(name) == kind


def test_empty_join_has_full_rate() -> None:
    assert Join().rate() == 1.0


def test_kernels_launched_by_no_operator_are_left(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        found[1]["cat"] = "other"

    assert join(recording(), tree(tmp_path, change=change)).rate() == 1.0


# published pairs


def pair(data_dir: Path, folder: str, rank: str = "", other: str | None = None) -> tuple[str, str]:
    base = data_dir / "traces" / folder
    return str(base / f"et{rank}.json.gz"), str(
        base / f"kineto{rank if other is None else other}.json.gz"
    )


@pytest.mark.data
@pytest.mark.parametrize(
    ("folder", "rank", "least"),
    [
        *(("dlrm_8xV100", f"_rank{rank}", 0.995) for rank in range(8)),
        ("mlp_RTX2080Ti", "", 0.995),
        ("resnet18_RTX2080Ti", "", 0.98),
        ("simple_add_A100", "", 1.0),
    ],
)
def test_join_rates(data_dir: Path, folder: str, rank: str, least: float) -> None:
    recorded, kineto = pair(data_dir, folder, rank)
    found = join(read_execution_trace(recorded), build_tree(read_kineto(kineto)))
    assert found.rate("aten") >= least
    assert found.warnings == []


@pytest.mark.data
def test_another_rank_is_warned_of(data_dir: Path) -> None:
    recorded, kineto = pair(data_dir, "dlrm_8xV100", "_rank0", "_rank1")
    found = join(read_execution_trace(recorded), build_tree(read_kineto(kineto)))
    assert "another rank or run?" in found.warnings[0]


@pytest.mark.data
def test_other_models_are_refused(data_dir: Path) -> None:
    recorded, _ = pair(data_dir, "mlp_RTX2080Ti")
    _, kineto = pair(data_dir, "resnet18_RTX2080Ti")
    with pytest.raises(IrgraphError, match="another model or version"):
        join(read_execution_trace(recorded), build_tree(read_kineto(kineto)))


@pytest.mark.data
def test_measured_times_become_notes(data_dir: Path) -> None:
    captured, _ = lower_with_times(*pair(data_dir, "dlrm_8xV100", "_rank0"))
    graph = captured.graph
    assert verify(graph) == []
    times = [t for op in graph.walk() if isinstance(t := op.notes.get("time"), Quantity)]
    assert 6.6e3 < sum(time.value for time in times) < 7.0e3
    assert {op.notes["by"] for op in graph.walk() if "time" in op.notes} == {"measured"}
    assert {stream.name for stream in graph.streams} == {"stream22", "stream24", "stream84"}
    assert {op.thread for op in graph.walk()} >= {"main", "backward"}
    text = print_graph(graph)
    assert print_graph(parse(text)) == text


@pytest.mark.data
def test_times_of_many_iterations_have_a_spread(data_dir: Path) -> None:
    captured, joined = lower_with_times(*pair(data_dir, "mlp_RTX2080Ti"))
    assert {len(rows) for rows in joined.iteration_rows.values()} == {39}
    first = next(op for op in captured.graph.walk() if op.name == "aten.addmm")
    time = first.notes["time"]
    assert isinstance(time, Quantity) and time.value == 137.0 and time.spread > 0
