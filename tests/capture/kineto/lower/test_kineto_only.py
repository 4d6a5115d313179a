"""Lowering a Kineto trace that nothing goes with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from irgraph.capture.kineto import read_kineto
from irgraph.capture.kineto.events.tree import build_tree
from irgraph.capture.kineto.lower.kineto_only import lower_kineto
from irgraph.capture.lower import lower_file
from irgraph.diagnostics import IrgraphError
from irgraph.ir.dependence import dependences
from irgraph.ir.measured_times import label_time
from irgraph.ir.quantity import Quantity
from irgraph.predict.prediction import predict
from irgraph.text import parse, print_graph
from tests.capture.kineto.builder import START, STEP_US, Event, write


def test_ops_have_shapes_times_and_threads(tmp_path: Path) -> None:
    graph = lower_kineto(write(tmp_path)).graph
    assert [op.name for op in graph.ops] == [
        "aten.linear",
        "aten.relu",
        "autograd.AddmmBackward0",
        "aten.add_",
    ]
    linear, _, backward, _ = graph.ops
    assert [(t.dtype, t.shape) for t in linear.inputs] == [("f32", (8, 16)), ("f32", (16, 4))]
    assert linear.notes["time"] == Quantity(100.0, "us", 0.0)
    assert (linear.notes["by"], linear.notes["kernels"]) == ("measured", 1)
    assert (backward.thread, backward.phase) == ("backward", "backward")


def test_the_text_form_is_read_back(tmp_path: Path) -> None:
    graph = lower_kineto(write(tmp_path)).graph
    assert parse(print_graph(graph)) == graph


def test_every_op_depends_on_the_one_before(tmp_path: Path) -> None:
    graph = lower_kineto(write(tmp_path)).graph
    leaves = [op for op in graph.ops if not op.is_scope]
    pairs = {(d.before, d.after) for d in dependences(leaves)}
    assert {(0, 1), (1, 2)} <= pairs


def test_no_tensor_is_taken_for_another(tmp_path: Path) -> None:
    graph = lower_kineto(write(tmp_path)).graph
    names = [tensor.name for op in graph.walk() for tensor in op.inputs]
    assert len(names) == len(set(names))


def test_what_cannot_be_known_is_said(tmp_path: Path) -> None:
    notes = lower_kineto(write(tmp_path)).notes
    assert "took step 7 of 5, 6, 7" in notes[0]
    assert any("does not tell tensors apart" in note for note in notes)
    assert lower_kineto(write(tmp_path)).graph.settings["operands"] == "by shape"


def test_a_step_can_be_chosen(tmp_path: Path) -> None:
    assert "took step 5 of" in lower_kineto(write(tmp_path), step=5).notes[0]
    with pytest.raises(IrgraphError, match="no step 3: the trace has steps 5, 6, 7"):
        lower_kineto(write(tmp_path), step=3)


def without_operators(*steps: int) -> Callable[[list[Event]], list[Event]]:
    """Return a change that leaves nothing but the mark of some steps."""

    def change(found: list[Event]) -> list[Event]:
        starts = [START + (step - 5) * (STEP_US + 10) for step in steps]

        def stays(event: Event) -> bool:
            marked = event["name"].startswith("ProfilerStep#")
            return marked or not any(at <= event["ts"] < at + STEP_US for at in starts)

        return [event for event in found if stays(event)]

    return change


def test_a_last_step_without_operators_is_passed_over(tmp_path: Path) -> None:
    captured = lower_kineto(write(tmp_path, without_operators(7)))
    assert len(captured.graph.ops) == 4
    assert "took step 6 of 5, 6, 7" in captured.notes[0]
    assert captured.notes[0].endswith("the last complete one with operators and device work")


def test_a_last_step_without_device_work_is_passed_over(tmp_path: Path) -> None:
    def change(found: list[Event]) -> list[Event]:
        last = START + 2 * (STEP_US + 10)
        return [e for e in found if e["cat"] in ("user_annotation", "cpu_op") or e["ts"] < last]

    assert "took step 6 of" in lower_kineto(write(tmp_path, change)).notes[0]


def test_a_step_without_operators_makes_no_model(tmp_path: Path) -> None:
    path = write(tmp_path, without_operators(7))
    with pytest.raises(IrgraphError, match="step 7 has no operator on the thread") as error:
        lower_kineto(path, step=7)
    assert error.value.exit_code == 4


def test_operators_of_another_thread_than_the_steps_make_no_model(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        for event in found:
            if event["cat"] in ("cpu_op", "cuda_runtime"):
                event["tid"] = 200
                event["args"].pop("Fwd thread id", None)

    def renamed(found: list[Event]) -> list[Event]:
        change(found)
        return [e for e in found if not e["name"].startswith("autograd::")]

    with pytest.raises(IrgraphError, match="no complete step has an operator on the thread"):
        lower_kineto(write(tmp_path, renamed))


def test_work_of_another_stream_says_so(tmp_path: Path) -> None:
    def moved(found: list[Event]) -> None:
        for event in found:
            if event["cat"] == "kernel" and "relu" in event["name"]:
                event["args"]["stream"] = 9

    graph = lower_kineto(write(tmp_path, moved)).graph  # type: ignore[arg-type]
    assert [op.stream for op in graph.ops][:2] == ["", "stream9"]


def test_calls_say_that_they_launched_nothing_but_not_where_the_trace_lost_it(
    tmp_path: Path,
) -> None:
    def changed(found: list[Event]) -> None:
        relu = [e for e in found if "relu" in e["name"] and e["cat"] == "kernel"]
        adds = [
            e["args"]["correlation"] for e in found if "add_" in e["name"] and "kernel" in e["cat"]
        ]
        gone = [e for e in found if e["args"].get("correlation") in adds]
        for event in (*relu, *gone):
            found.remove(event)

    graph = lower_kineto(write(tmp_path, changed)).graph
    _, relu, _, add = graph.ops
    assert add.notes == {"time": Quantity(0.0, "us"), "by": "measured", "kernels": 0}
    assert relu.notes == {}


def test_a_model_names_the_card_that_its_times_come_from(tmp_path: Path) -> None:
    path = write(tmp_path, deviceProperties=[{"id": 0, "name": "Tesla V100-SXM2-16GB"}])
    graph = lower_kineto(path).graph
    assert graph.settings["measured_on"] == "Tesla V100-SXM2-16GB"
    assert predict(graph).summary()["coverage"] == {"measured": 1.0}


def test_without_shapes_there_is_no_model(tmp_path: Path) -> None:
    def bare(found: list[Event]) -> None:
        for event in found:
            event["args"].pop("Input Dims", None)

    with pytest.raises(IrgraphError, match="no operand shapes"):
        lower_kineto(write(tmp_path, bare))  # type: ignore[arg-type]


def test_files_are_told_apart_by_content(tmp_path: Path) -> None:
    assert "measured" in print_graph(lower_file(write(tmp_path)).graph)


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    [f"dlrm_8xV100/kineto_rank{rank}" for rank in range(8)]
    + ["resnet50_V100/kineto_workers0", "resnet50_V100/kineto_workers4"],
)
def test_published_traces_keep_all_device_time(data_dir: Path, name: str) -> None:
    path = data_dir / "traces" / f"{name}.json.gz"
    graph = lower_kineto(path).graph
    assert parse(print_graph(graph)) == graph
    tree = build_tree(read_kineto(path))
    last = max(i for i, step in enumerate(tree.steps) if step.complete)
    on_device = tree.trace.on_device & (tree.step == last) & (tree.op >= 0)
    measured = float(tree.trace.columns["duration"][on_device].sum()) / 1000
    times = [
        note.value for op in graph.walk() if isinstance(note := op.notes.get("time"), Quantity)
    ]
    assert sum(times) == pytest.approx(measured, rel=0.001)
    priced = sum(kernel.time for kernel in predict(graph).kernels() if kernel.by == "measured")
    assert priced + label_time(graph) == pytest.approx(measured, rel=0.001)


def renamed(old: str, new: str) -> Callable[[list[Event]], None]:
    def change(found: list[Event]) -> None:
        for event in found:
            if event["name"] == old:
                event["name"] = new

    return change


def test_results_of_pointwise_ops_and_copies_follow_from_their_operands(tmp_path: Path) -> None:
    def change(found: list[Event]) -> None:
        renamed("aten::relu", "aten::clone")(found)
        renamed("aten::add_", "aten::mul")(found)
        for event in found:
            if event["name"] == "aten::mul":
                event["args"]["Input Dims"] = [[8, 16], [1]]

    captured = lower_kineto(write(tmp_path, change))
    copied, multiplied = (op for op in captured.graph.ops if op.name in ("aten.clone", "aten.mul"))
    assert [t.shape for t in multiplied.outputs] == [(8, 16)]
    assert copied.outputs == ()  # its operands are two matrices, which do not broadcast
    assert any("of their operand's type" in note for note in captured.notes)
    assert "aten.clone" in [op.name for op in predict(captured.graph).priced.unknown]


def with_call(name: str, dims: list[list[int]], types: list[str], values: list[str]) -> Any:
    """Return a change that makes every linear layer another call with recorded values."""

    def change(found: list[Event]) -> None:
        for event in found:
            if event["name"] == "aten::linear":
                event["name"] = name
                event["args"] |= {
                    "Input Dims": dims,
                    "Input type": types,
                    "Concrete Inputs": values,
                }

    return change


HEADS = [2, 4, 64, 16]


@pytest.mark.parametrize(
    ("name", "dims", "types", "values", "tensors", "attributes"),
    [
        (
            "aten::conv2d",
            [[2, 3, 8, 8], [4, 3, 3, 3], [], [], [], [], []],
            ["float", "float", "", "ScalarList", "ScalarList", "ScalarList", "Scalar"],
            ["", "", "", "[2, 2]", "[1, 1]", "[1, 1]", "1"],
            2,
            {"stride": (2, 2), "padding": (1, 1)},
        ),
        (
            "aten::scaled_dot_product_attention",
            [HEADS, HEADS, HEADS, [], [], [], [], []],
            ["c10::Half"] * 3 + ["", "Scalar", "Scalar", "", "Scalar"],
            ["", "", "", "", "0.", "True", "", "False"],
            3,
            {"is_causal": True},
        ),
        ("aten::sum", [[8, 16], [], [], []], ["float", "ScalarList", "Scalar", ""],
         ["", "[1]", "True", ""], 1, {"dim": (1,), "keepdim": True}),
    ],
)  # fmt: skip
def test_recorded_arguments_are_attributes(
    tmp_path: Path,
    name: str,
    dims: list[list[int]],
    types: list[str],
    values: list[str],
    tensors: int,
    attributes: dict[str, Any],
) -> None:
    graph = lower_kineto(write(tmp_path, with_call(name, dims, types, values))).graph
    call = graph.ops[0]
    assert call.name == name.replace("::", ".")
    assert len(call.inputs) == tensors
    assert dict(call.attributes) == attributes
    assert parse(print_graph(graph)) == graph


def test_values_that_fit_no_overload_leave_the_tensors(tmp_path: Path) -> None:
    change = with_call(
        "aten::sum", [[8, 16], [], []], ["float", "ScalarList", "x"], ["", "[1]", "7"]
    )
    call = lower_kineto(write(tmp_path, change)).graph.ops[0]
    assert ([t.shape for t in call.inputs], dict(call.attributes)) == ([(8, 16)], {})
