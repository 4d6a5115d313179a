"""Lowering execution traces: identities, nesting, threads, steps."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from irgraph.capture.common.result import Capture
from irgraph.capture.execution_trace import lower_execution_trace
from irgraph.ir.dependence import dependences
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph
from tests.capture.execution_trace.traces import BACKWARD, literal, node, tensor, trace


def lowered(*nodes: dict[str, object], **options: int) -> Capture:
    captured = lower_execution_trace(trace(*nodes), name="et.json", **options)
    assert verify(captured.graph) == []
    assert parse(print_graph(captured.graph)) == captured.graph
    return captured


def names(graph: Graph) -> list[str]:
    return [op.name for op in graph.ops]


def edges(graph: Graph) -> list[tuple[int, int, str]]:
    return [(d.before, d.after, d.kind) for d in dependences(graph.ops)]


def relu(number: int, source: dict[str, object], result: dict[str, object]) -> dict[str, object]:
    return node(number, "aten::relu", [source], [result])


def test_a_reused_tensor_and_storage_id_is_another_tensor() -> None:
    x, y, z = tensor(10, 11, 8), tensor(12, 13, 8), tensor(14, 15, 8)
    # the third call's result takes the ids that the first one's had
    graph = lowered(relu(4, x, y), relu(5, y, z), relu(6, x, y), relu(7, y, z)).graph
    assert edges(graph) == [(0, 1, "def"), (0, 1, "raw"), (2, 3, "def"), (2, 3, "raw")]
    assert len({tensor.buffer for op in graph.ops for tensor in op.outputs}) == 4


def test_a_number_of_the_program_in_reused_memory_is_no_view() -> None:
    number = {"value": [20, 13, 0, 1, 8, "cpu"], "shape": [], "type": "Tensor(double)"}
    x, y = tensor(10, 11, 8, device="cpu"), tensor(12, 13, 8, device="cpu")
    add = node(6, "aten::add_", [x, number, literal(1, "Int")], [x])
    graph = lowered(relu(4, x, y), add).graph
    assert [kind for *_, kind in edges(graph)] == ["war"]


def test_an_in_place_call_has_no_result() -> None:
    x = tensor(10, 11, 8)
    graph = lowered(node(4, "aten::relu_", [x], [x])).graph
    op = graph.ops[0]
    assert op.results == ()
    assert op.written == {graph.tensors[0].tensor.name}


def test_a_view_lies_in_its_source() -> None:
    x, v = tensor(10, 11, 2, 4), tensor(12, 11, 4, 2)
    graph = lowered(node(4, "aten::t", [x], [v])).graph
    view = graph.ops[0].outputs[0]
    assert view.buffer == graph.tensors[0].tensor.buffer
    assert view.strides == (1, 4)


def test_undefined_arguments_are_absent() -> None:
    x, w, y = tensor(10, 11, 2, 4), tensor(12, 13, 3, 4), tensor(14, 15, 2, 3)
    missing = {"value": [9, 0, 0, 0, 0, ""], "shape": [], "type": "Tensor(nullptr (uninitialized))"}
    graph = lowered(node(4, "aten::linear", [x, w, missing], [y])).graph
    assert len(graph.ops[0].operands) == 2


def test_a_sparse_tensor_has_a_buffer_of_its_own() -> None:
    w, g = tensor(10, 11, 50, 4), tensor(20, 0, 50, 4, device="")
    h = tensor(21, 0, 50, 4, device="")
    add = [node(n, "aten::add_", [w, s, literal(1, "Int")], [w]) for n, s in ((4, g), (5, h))]
    graph = lowered(*add).graph
    first, second = (op.inputs[1] for op in graph.ops)
    assert first.buffer != second.buffer
    assert first.strides == (0, 0)


def linear_nodes() -> list[dict[str, object]]:
    x, w, b = tensor(10, 11, 2, 4), tensor(12, 13, 3, 4), tensor(14, 15, 3)
    t, y, inner = tensor(16, 13, 4, 3), tensor(18, 19, 2, 3), tensor(30, 31, 6)
    return [
        node(4, "aten::linear", [x, w, b], [y], seq_id=7),
        node(5, "aten::t", [w], [t], parent=4, seq_id=7),
        node(6, "aten::addmm", [b, x, t], [y], parent=4, seq_id=8),
        node(7, "aten::relu", [inner], [inner], parent=6),
    ]


def test_composites_keep_what_they_called_and_device_calls_do_not() -> None:
    graph = lowered(*linear_nodes()).graph
    linear = graph.ops[0]
    assert [op.name for op in linear.body] == ["aten.t", "aten.addmm"]
    assert linear.body[1].body == ()
    assert linear.results == linear.body[1].results


def test_a_composite_whose_body_hides_the_result_stands_alone() -> None:
    captured = lowered(*linear_nodes()[:2])
    assert captured.graph.ops[0].body == ()
    assert any("body does not show their result" in note for note in captured.notes)


def backward_nodes(forward: int) -> list[dict[str, object]]:
    g, d = tensor(40, 41, 2, 3), tensor(42, 43, 2, 3)
    name = "AddmmBackward0"
    return [
        BACKWARD,
        node(10, f"autograd::engine::evaluate_function: {name}", parent=3, tid=2),
        node(11, name, [g], parent=10, tid=2, seq_id=8, fw_parent=forward, scope=1),
        node(12, "aten::relu", [g], [d], parent=11, tid=2),
        node(13, "aten::relu", [d], [g], parent=10, tid=2),
    ]


def test_autograd_wrappers_collapse_onto_the_backward_thread() -> None:
    captured = lowered(*linear_nodes(), *backward_nodes(2))
    scope = captured.graph.ops[1]
    assert (scope.name, scope.thread, scope.phase) == (
        "autograd.AddmmBackward0",
        "backward",
        "backward",
    )
    assert [op.origin for op in scope.body] == ["et.json#12", "et.json#13"]
    assert captured.links == (("et.json#11", "et.json#6"),)


def test_backward_goes_into_the_range_that_waited_for_it() -> None:
    label = node(9, "## backward ##", scope=7)
    after = node(20, "aten::relu", [tensor(50, 51, 2)], [tensor(52, 53, 2)])
    graph = lowered(*linear_nodes(), label, *backward_nodes(9), after).graph
    assert names(graph) == ["aten.linear", "## backward ##", "aten.relu"]
    assert graph.ops[1].body[0].name == "autograd.AddmmBackward0"


def test_what_the_optimizer_writes_is_a_parameter() -> None:
    w, g, y = tensor(10, 11, 4), tensor(12, 13, 4), tensor(14, 15, 4)
    label = node(5, "Optimizer.step#SGD.step", scope=7)
    update = node(6, "aten::add_", [w, g, literal(-0.1, "Double")], [w], parent=5)
    graph = lowered(relu(4, w, y), label, update).graph
    assert [d.role for d in graph.tensors] == ["param", "input"]
    assert graph.ops[1].body[0].attributes == {"alpha": -0.1}
    assert graph.ops[1].body[0].phase == "optimizer"


def test_a_call_without_its_caller_goes_where_it_began() -> None:
    label = node(4, "## forward ##", scope=7)
    first = node(5, "aten::relu", [tensor(10, 11, 2)], [tensor(12, 13, 2)], parent=4)
    torn = node(7, "aten::relu", [tensor(12, 13, 2)], [tensor(14, 15, 2)], parent=6)
    last = node(8, "aten::relu", [tensor(14, 15, 2)], [tensor(16, 17, 2)], parent=4)
    captured = lowered(label, first, torn, last)
    assert [op.origin for op in captured.graph.ops[0].body] == [
        "et.json#5",
        "et.json#7",
        "et.json#8",
    ]
    assert captured.notes == ("1 calls have no recorded caller: put where they began",)


def test_unknown_operators_bring_their_schema() -> None:
    schema = "my::op(Tensor x, int n=1) -> Tensor"
    x, y = tensor(10, 11, 4), tensor(12, 13, 4)
    call = node(4, "my::op", [x, literal(3, "Int")], [y], schema=schema)
    graph = lowered(call).graph
    assert graph.schemas == (schema,)
    assert graph.ops[0].attributes == {"n": 3}


def test_a_label_that_looks_like_a_call_is_marked() -> None:
    graph = lowered(node(4, "DistributedDataParallel.forward", scope=7), *linear_nodes()[2:3]).graph
    assert names(graph)[0] == "label DistributedDataParallel.forward"


def stepped(*sizes: int) -> list[dict[str, object]]:
    """Return steps that make so many calls each."""
    rows, number = [], 10
    for i, size in enumerate(sizes):
        step = number
        rows.append(node(step, f"ProfilerStep#{i + 4}", scope=7))
        for _ in range(size):
            number += 1
            rows.append(
                node(number, "aten::relu", [tensor(1, 2, i + 1)], [tensor(3, 4, i + 1)], step)
            )
        number += 1
    return rows


def test_the_last_complete_step_is_taken_and_named() -> None:
    captured = lowered(*stepped(5, 5, 2))
    assert captured.graph.ops[0].outputs[0].shape == (2,)
    assert captured.notes == ("took step 5 of 4, 5, 6: the last complete one",)


def test_a_step_can_be_named() -> None:
    assert lowered(*stepped(5, 5), step=4).graph.ops[0].outputs[0].shape == (1,)


def test_a_step_that_is_not_there() -> None:
    with pytest.raises(IrgraphError, match="no step 9: the trace has steps 4, 5"):
        lowered(*stepped(5, 5), step=9)


def test_no_steps_at_all() -> None:
    with pytest.raises(IrgraphError, match="no step 1: the trace marks no steps"):
        lowered(*linear_nodes(), step=1)


def test_no_operation() -> None:
    with pytest.raises(IrgraphError, match="the execution trace holds no operation"):
        lowered()


TRACES = {
    "dlrm_8xV100/et_rank0.json.gz": (492, 36),
    "formats/et_1.0.3_resnet50_1gpu.json.gz": (1062, 181),
    "formats/et_1.1.0_resnet50_2gpu.json.gz": (1062, 181),
    "formats/et_1.1.1_resnet50_1gpu.json.gz": (1062, 181),
    "formats/et_1.1.1_torch_compile.json.gz": (2, 0),
    "mlp_RTX2080Ti/et.json.gz": (196, 66),
    "resnet18_RTX2080Ti/et.json.gz": (242, 72),
    "simple_add_A100/et.json.gz": (10, 0),
}
"""Real traces with their top-level calls and their links from backward to forward."""


@pytest.mark.data
@pytest.mark.parametrize("file", TRACES)
def test_real_traces_lower_soundly(file: str, data_dir: Path) -> None:
    captured = lower_execution_trace(data_dir / "traces" / file)
    graph = captured.graph
    assert verify(graph) == []
    text = print_graph(graph)
    assert parse(text) == graph
    assert print_graph(parse(text)) == text
    assert (sum(1 for _ in graph.top_level()), len(captured.links)) == TRACES[file]


@pytest.mark.data
def test_parameters_of_a_real_trace(data_dir: Path) -> None:
    graph = lower_execution_trace(data_dir / "traces/mlp_RTX2080Ti/et.json.gz").graph
    roles = [d.role for d in graph.tensors]
    # 21 linear layers: weights and biases, as many gradients, the features and the classes
    assert (roles.count("param"), roles.count("state"), roles.count("input")) == (42, 42, 2)


@pytest.mark.data
def test_forward_of_a_real_trace_flows_from_layer_to_layer(data_dir: Path) -> None:
    graph = lower_execution_trace(data_dir / "traces/mlp_RTX2080Ti/et.json.gz").graph
    layers: list[Op] = [op for op in graph.ops if op.name in ("aten.linear", "aten.relu")]
    for before, after in pairwise(layers):
        assert after.operands[0] is before.results[0]


def test_a_call_that_autocast_wraps_is_the_call_on_the_casted_tensors() -> None:
    """Autocast shows as ``mm`` around casts and the ``mm`` of what they give."""
    x, w = tensor(1, 11, 4, 4), tensor(2, 12, 4, 4)
    cast, product = tensor(3, 13, 4, 4), tensor(4, 14, 4, 4)
    graph = lower_execution_trace(
        trace(
            node(10, "aten::mm", [x, w], [product]),
            node(11, "aten::to", [x], [cast], 10, schema="aten::to(Tensor(a) self) -> Tensor(a)"),
            node(12, "aten::mm", [cast, w], [product], 10),
        )
    ).graph
    assert [op.name for op in graph.ops] == ["aten.to", "aten.mm"]
    assert graph.ops[1].operands[0] is graph.ops[0].results[0]
