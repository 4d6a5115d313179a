"""Damaged execution traces: what is repaired says so, what is not gives one clear error."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from typing import Any

import pytest

from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import Source
from irgraph.capture.execution_trace import lower_execution_trace
from irgraph.capture.live import capture
from irgraph.cli.main import main
from irgraph.ir.op import Op
from irgraph.ops.rules.finding import Finding
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph
from irgraph.text.builder import MAX_DEPTH
from tests.capture.execution_trace import fuzz
from tests.capture.execution_trace.traces import BACKWARD, Row, literal, node, tensor, trace

X, Y, Z = tensor(10, 11, 2), tensor(12, 13, 2), tensor(14, 15, 2)
RELU = node(4, "aten::relu", [X], [Y])
AFTER = node(8, "aten::relu", [Y], [Z])


def lowered(data: bytes) -> Capture:
    captured = lower_execution_trace(data, name="et.json")
    assert verify(captured.graph) == []
    assert parse(print_graph(captured.graph)) == captured.graph
    return captured


def refused(data: bytes) -> str:
    with pytest.raises(IrgraphError) as caught:
        lower_execution_trace(data, name="et.json")
    assert caught.value.exit_code == 4
    return str(caught.value).removeprefix("et.json: error: ")


def changed(**fields: Any) -> bytes:
    return trace({**RELU, **fields}, AFTER, version="1.1.1")


def tensors(**changes: Any) -> bytes:
    return changed(inputs=[{**X, **changes}])


def test_the_sample_of_the_random_damages_is_sound() -> None:
    captured = lowered(trace(*fuzz.rows()))
    assert captured.notes == ()
    assert captured.graph.ops[0].name == "aten.to"


def test_three_hundred_random_damages() -> None:
    counts, failed = fuzz.fuzz(300)
    assert failed == {}
    assert min(counts["refused"], counts["noted"], counts["clean"]) > 20


def test_a_byte_that_is_no_utf8_is_read_as_a_mark() -> None:
    label = node(4, "loss", scope=7)
    captured = lowered(trace(label, AFTER).replace(b"loss", b"lo\xffs"))
    assert captured.graph.ops[0].name == "lo\ufffds"
    assert captured.notes == ("1 bytes are no UTF-8: read as \ufffd",)


@pytest.mark.parametrize("name", ['a"b', "a\\", 'x\n"y"', "tab\t"])
@pytest.mark.parametrize("version", ["1.0.1", "1.1.1"])
def test_names_that_torch_did_not_escape_are_read_as_they_are(name: str, version: str) -> None:
    text = trace(node(4, "NAME", scope=7), AFTER, version=version).decode()
    if version == "1.0.1":
        text = text.replace('"id": 4, "name": "NAME"', '"name": "NAME", "id": 4, "rf_id": 3')
    captured = lowered(text.replace("NAME", name).encode())
    assert captured.graph.ops[0].name == name
    note = "1 names hold characters that torch did not escape: read as they are"
    assert captured.notes == (note,)


def test_json_within_json_within_json() -> None:
    assert refused(b'{"x": ' + b"[" * 5000) == "broken JSON: it is nested too deeply"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"value": [2, 2, "x", 4, 4, "cuda:0"]}, "tensor's offset is 'x', not a whole number"),
        ({"value": [2, 2, 1.5, 4, 4, "cuda:0"]}, "tensor's offset is 1.5, not a whole number"),
        ({"value": [2, 2, -8, 4, 4, "cuda:0"]}, "tensor's offset is -8, less than 0"),
        ({"value": [2, 2, 2**62, 2, 4, "cuda:0"]}, "tensor's end does not fit into 64 bits"),
        ({"value": [2, 2, 0, 4, 4, None]}, "tensor's device is None"),
        ({"value": [2, 2, 0, 4, 4, ["cpu"]]}, "tensor's device is ['cpu']"),
        ({"value": [2, 2, 0, 4]}, "a tensor is [2, 2, 0, 4], not a list of five or six"),
        ({"value": 7}, "a tensor is 7, not a list of five or six"),
        ({"shape": [-2]}, "tensor's shape is -2, less than 0"),
        ({"shape": ["B"]}, "tensor's shape is 'B', not a whole number"),
        ({"shape": [True]}, "tensor's shape is True, not a whole number"),
        ({"shape": None}, "tensor's shape is None, not a list"),
        ({"type": "Tensr"}, "[10, 11, 0, 2, 4, 'cuda:0'] is no value of type 'Tensr'"),
        ({"value": {}, "type": "Int"}, "{} is no value of type 'Int'"),
        ({"value": 2**64, "type": "Int"}, f"the number {2**64} does not fit into 64 bits"),
    ],
)
def test_values_that_make_no_sense(changes: Row, reason: str) -> None:
    assert refused(tensors(**changes)) == f"node 4 ('aten::relu'): {reason}".replace(
        ": tensor's", ": its tensor's"
    )


def test_lists_nested_too_deeply() -> None:
    kind = "GenericList[" * 12 + "Int" + "]" * 12
    deep: Any = 1
    for _ in range(12):
        deep = [deep]
    message = refused(tensors(value=deep, type=kind))
    assert message == "node 4 ('aten::relu'): a value is nested too deeply"


def test_values_without_types() -> None:
    data = json.loads(changed())
    data["nodes"][2]["inputs"]["types"] = []
    message = refused(json.dumps(data).encode())
    assert message == "node 4 ('aten::relu'): it has 1 values, 1 shapes and 0 types"


@pytest.mark.parametrize("field", ["tid", "seq_id", "fw_parent", "scope"])
@pytest.mark.parametrize("value", ["abc", {}, None, 0.5])
def test_attributes_that_are_no_numbers(field: str, value: object) -> None:
    message = refused(changed(**{field: value}))
    assert message == f"node 4 ('aten::relu'): its {field} is {value!r}, not a whole number"


def test_a_schema_that_is_no_text() -> None:
    assert refused(changed(schema=5)) == "node 4 ('aten::relu'): its op_schema is 5, not a text"


def test_a_negative_id() -> None:
    assert refused(changed(id=-4)) == "node -4 ('aten::relu'): its id is -4, less than 0"


@pytest.mark.parametrize("schema", ["aten::neg(=) -> Tensor", "aten::neg(", "neg"])
def test_a_schema_that_cannot_be_read_makes_a_label(schema: str) -> None:
    captured = lowered(changed(schema=schema))
    assert captured.graph.ops[0].is_annotation
    assert "1 calls whose schema cannot be read: taken for labels" in captured.notes


def test_an_argument_too_few_is_noted() -> None:
    captured = lowered(changed(inputs=[]))
    assert captured.notes == ("1 calls have more or fewer arguments than their schema",)
    assert captured.graph.settings["operands"] == "as recorded"


def test_a_shape_and_a_type_that_contradict_the_tensor_are_noted() -> None:
    captured = lowered(tensors(shape=[3], type="Tensor(double)"))
    assert captured.graph.tensors[0].tensor.shape == (3,)
    assert captured.health == (
        "et.json: 1 tensors whose element size contradicts their type: type used",
        "et.json: 1 tensors whose number of elements contradicts their shape: shape used",
    )
    assert captured.exit_code == 3


def test_a_device_that_is_none_stays_a_literal() -> None:
    schema = "aten::to.device(Tensor(a) self, Device device) -> Tensor(a)"
    to = node(4, "aten::to", [X, literal("0.5 of", "Device")], [Y], schema=schema)
    captured = lowered(trace(to))
    assert captured.graph.ops[0].attributes == {"device": "0.5 of"}
    assert [device.name for device in captured.graph.devices] == ["gpu0"]


def test_a_step_number_of_five_thousand_digits_is_a_label() -> None:
    captured = lowered(trace(node(3, "ProfilerStep#" + "9" * 5000, scope=7), RELU))
    assert captured.graph.ops[0].is_annotation


def nested(depth: int) -> bytes:
    return trace(*(node(n, "range", [], [], n - 1, scope=7) for n in range(3, 3 + depth)))


def test_three_thousand_nested_calls() -> None:
    message = refused(nested(3000))
    assert message == f"node {2 + MAX_DEPTH} ('range'): too many calls lie around it"


def test_as_many_nested_calls_as_are_read() -> None:
    assert sum(1 for _ in lowered(nested(MAX_DEPTH - 1)).graph.walk()) == MAX_DEPTH - 1


def test_one_storage_on_two_devices_is_two_buffers() -> None:
    other = tensor(20, 11, 2, device="cuda:1")
    graph = lowered(trace(RELU, node(5, "aten::relu", [other], [tensor(22, 13, 2)]))).graph
    assert [d.tensor.device for d in graph.tensors] == ["gpu0", "gpu1"]
    assert len({d.tensor.buffer for d in graph.tensors}) == 2


def test_a_result_on_another_device_than_its_operand_is_no_view() -> None:
    graph = lowered(trace(node(4, "aten::relu", [X], [tensor(12, 11, 2, device="cpu")]))).graph
    assert graph.ops[0].outputs[0].buffer != graph.tensors[0].tensor.buffer


CIRCLE = (
    "{0} calls name a caller that began later, or that they called themselves",
    "{0} calls have no recorded caller: put where they began",
)


@pytest.mark.parametrize("callers", [{4: 8, 8: 4}, {4: 4}, {4: 8}])
def test_calls_in_a_circle_are_put_where_they_began(callers: dict[int, int]) -> None:
    rows = [{**row, "parent": callers.get(row["id"], 2)} for row in (RELU, AFTER)]
    captured = lowered(trace(*rows))
    assert [op.origin for op in captured.graph.ops] == ["et.json#4", "et.json#8"]
    assert captured.notes == tuple(line.format(len(callers)) for line in CIRCLE)


def test_a_node_that_is_there_twice_is_taken_once() -> None:
    captured = lowered(trace(RELU, RELU))
    assert len(captured.graph.ops) == 1
    assert captured.notes == ("1 duplicate nodes: used once",)


def test_two_nodes_of_one_id() -> None:
    message = refused(trace(RELU, {**AFTER, "id": 4}))
    assert message == "node 4 ('aten::relu'): 'aten::relu' has the same id"


def test_a_range_of_an_earlier_recording_is_left_out() -> None:
    rows = json.loads(trace({**AFTER, "name": "Optimizer.step#SGD.step"}, RELU, AFTER))
    for row, number in zip(rows["nodes"], (0, 0, 7, 20, 21), strict=True):
        row["rf_id"] = number
    captured = lowered(json.dumps(rows).encode())
    assert [op.name for op in captured.graph.ops] == ["aten.relu", "aten.relu"]
    assert captured.notes == ("1 ranges that began in an earlier recording: left out",)


def test_a_backward_call_that_names_an_operator_is_not_lost_in_it() -> None:
    name = "ReluBackward0"
    inner = node(11, name, [Z], [Z], 10, tid=2, fw_parent=4, scope=1)
    wrapper = node(10, f"autograd::engine::evaluate_function: {name}", parent=3, tid=2)
    graph = lowered(trace(BACKWARD, RELU, AFTER, wrapper, inner)).graph
    assert "autograd.ReluBackward0" in [op.name for op in graph.ops]


def test_a_call_that_names_what_it_called_is_in_no_circle() -> None:
    label = node(10, "label", parent=9, scope=7, fw_parent=12)
    inner = node(12, "inner", parent=10, scope=7)
    call = node(13, "aten::relu", [X], [Y], 12)
    assert [op.name for op in lowered(trace(label, inner, call)).graph.ops] == ["label"]


def test_a_step_that_holds_nothing() -> None:
    message = refused(trace(node(3, "ProfilerStep#4", scope=7)))
    assert message == "step 4 holds no operation"


def started(*after: Row) -> dict[str, list[str]]:
    """Return the origins by thread of a trace in which another thread runs first."""
    other = node(3, "[pytorch|profiler|execution_trace|thread]", parent=1, tid=7, scope=7)
    first = node(5, "aten::relu", [X], [Y], 3, tid=7)
    threads: dict[str, list[str]] = {}
    for op in lowered(trace(other, first, *after)).graph.walk():
        threads.setdefault(op.thread, []).append(op.origin.partition("#")[2])
    return threads


def test_main_is_the_thread_that_runs_the_optimizer() -> None:
    label = node(6, "Optimizer.step#SGD.step", scope=7)
    assert started(label)["main"] == ["6"]


def test_main_is_the_thread_that_waits_for_backward() -> None:
    label = node(6, "backward", scope=7)
    name = "ReluBackward0"
    scope = node(11, name, [Z], [Z], 9, tid=9, fw_parent=6, scope=1)
    thread = node(9, "[pytorch|profiler|execution_trace|thread]", parent=1, tid=9, scope=7)
    assert started(label, thread, scope) == {"thread3": ["5"], "main": ["6"], "backward": ["11"]}


def test_main_is_the_thread_with_the_forward_calls_of_backward() -> None:
    forward = node(6, "aten::relu", [X], [Y], seq_id=3)
    backward = node(7, "ReluBackward0", [Z], [Z], seq_id=3, scope=1)
    others = [node(n, "aten::relu", [X], [Y], 3, tid=7) for n in (8, 9)]
    assert started(forward, backward, *others) == {
        "thread2": ["5", "8", "9"],
        "main": ["6"],
        "backward": ["7"],
    }


def test_main_is_the_thread_with_most_operators() -> None:
    calls = [node(n, "aten::relu", [X], [Y]) for n in (6, 7)]
    assert started(*calls) == {"thread2": ["5"], "main": ["6", "7"]}


def test_a_graph_that_breaks_rules_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def finds(graph: Any) -> list[Finding]:
        op: Op = graph.ops[0]
        return [Finding("names", "%x is wrong", op)]

    monkeypatch.setattr(sys.modules["irgraph.capture.common.result"], "verify", finds)
    message = refused(changed())
    assert message.startswith("the trace gives an invalid model: 1 rule is broken\n")
    assert "aten.relu: %x is wrong (from et.json#4) [names]" in message


def test_lower_reads_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(trace(RELU))))
    assert main(["lower", "-"]) == 0
    assert parse(capsys.readouterr().out).name == "stdin"


@pytest.mark.parametrize("call", fuzz.STRUCTURAL, ids=lambda call: call.__name__)
def test_every_kind_of_damage_ends_well(call: Callable[..., None]) -> None:
    rng = fuzz.Rng(call.__name__)
    for _ in range(10):
        data = json.loads(trace(*fuzz.rows()))
        call(data, rng)
        assert fuzz.outcome(json.dumps(data).encode()) in ("refused", "noted", "clean")


def test_live_capture_of_names_that_torch_does_not_escape() -> None:
    import torch

    model = torch.nn.Sequential()
    model.add_module('a "b"\n', torch.nn.ReLU())
    x = torch.ones(2)

    def step() -> None:
        with torch.profiler.record_function('say "hi" \\ there'):
            model(x)

    graph = capture(step, device="cpu", model=model).graph
    assert [op.name for op in graph.ops] == ['say "hi" \\ there']
    assert [op.module for op in graph.leaves()] == ['a "b"\n']
    assert parse(print_graph(graph)) == graph


def test_an_unreadable_live_recording_names_no_temporary_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    monkeypatch.setattr(Source, "read", lambda _: b"{")
    with pytest.raises(IrgraphError, match=r"^relu:1:2: error: broken JSON"):
        capture(lambda: torch.ones(2).relu(), name="relu", device="cpu")


def test_numbered_records_that_are_gone_are_said() -> None:
    whole = json.loads(trace(RELU, AFTER))
    whole["nodes"][0]["rf_id"] = 0
    for number, record in enumerate(whole["nodes"][1:], 53):  # after other traces of the process
        record["rf_id"] = number
    assert lowered(json.dumps(whole).encode()).exit_code == 0
    del whole["nodes"][2]
    captured = lowered(json.dumps(whole).encode())
    assert captured.health == ("et.json: 1 of 3 numbered records are not in the file",)
    assert captured.exit_code == 3
