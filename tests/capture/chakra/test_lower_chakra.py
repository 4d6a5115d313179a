"""Chakra traces that others wrote: lowered as far as they carry tensors, else refused."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import irgraph
from irgraph.capture.chakra.stream import decode
from irgraph.capture.execution_trace import lower_execution_trace
from irgraph.diagnostics import IrgraphError
from irgraph.ops.verify import verify
from tests.capture.chakra.converter import attribute, converted, file, number, side, text
from tests.capture.execution_trace.fuzz import rows
from tests.capture.execution_trace.traces import trace

TRACE = trace(*rows(), version="1.1.0")
CONVERTED = converted(TRACE, kernels=2)


def lowered(path: Path, data: bytes) -> irgraph.Capture:
    path.write_bytes(data)
    return irgraph.lower(path)


def refused(path: Path, data: bytes) -> str:
    with pytest.raises(IrgraphError) as caught:
        lowered(path, data)
    assert caught.value.exit_code == 4
    return str(caught.value)


def test_a_converted_trace_is_lowered_as_the_trace_that_it_was_made_from(tmp_path: Path) -> None:
    found = lowered(tmp_path / "step.0.et", CONVERTED)
    direct = lower_execution_trace(TRACE, name="step.0")
    assert len(list(found.graph.walk())) > 10
    assert replace(found.graph, settings={}) == replace(direct.graph, settings={})
    assert "the durations of 2 nodes of the device are left out: no card is named" in found.notes


@pytest.mark.long
def test_what_torch_records_comes_back(tmp_path: Path) -> None:
    """A step of torch's own; its observer writes callers after what they called."""
    import torch
    from torch.profiler import ExecutionTraceObserver

    layers = (
        torch.nn.Conv2d(3, 8, 3),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(288, 4),
    )
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters())
    recorded = tmp_path / "et.json"
    observer = ExecutionTraceObserver().register_callback(str(recorded))
    observer.start()
    model(torch.randn(2, 3, 8, 8)).sum().backward()
    optimizer.step()
    observer.stop()
    observer.unregister_callback()
    trace = json.loads(recorded.read_text())
    assert "have no caller" in refused(tmp_path / "t.et", converted(json.dumps(trace).encode()))
    trace["nodes"].sort(key=lambda node: node["id"])
    data = json.dumps(trace).encode()
    found = lowered(tmp_path / "t.et", converted(data)).graph
    direct = lower_execution_trace(data, name="t").graph
    assert [op.name for op in found.walk()] == [op.name for op in direct.walk()]
    assert [t.shape for op in found.walk() for t in (*op.inputs, *op.outputs)] == [
        t.shape for op in direct.walk() for t in (*op.inputs, *op.outputs)
    ]
    assert irgraph.predict(found).step_time == pytest.approx(irgraph.predict(direct).step_time)


def test_a_step_of_it_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "t.et"
    path.write_bytes(CONVERTED)
    assert irgraph.lower(path, step=1, name="n").graph.name == "n"
    with pytest.raises(IrgraphError, match="no step 7"):
        irgraph.lower(path, step=7)


def test_durations_alone_make_no_model(tmp_path: Path) -> None:
    plain = number(1, 1) + text(2, "COMP_NODE_x") + number(3, 4) + number(7, 20)
    exchange = number(1, 2) + text(2, "all") + number(3, 7)
    said = refused(tmp_path / "g.0.et", file(text(1, "0.0.4"), [plain, plain, exchange]))
    assert "carries no tensors" in said
    assert "nodes: 2 x COMP_NODE, 1 x COMM_COLL_NODE" in said
    assert "chakra_converter" in said


@pytest.mark.parametrize(
    "values",
    ["[[1,", "__import__('os').abort()", "{1: 2}", "[1e999, {3}]", "[b'x', 1j]", "9" * 5000],
)
def test_lists_are_read_as_literals_and_nothing_is_run(values: str, tmp_path: Path) -> None:
    given = {"values": values, "shapes": [[]], "types": ["Tensor(float)"]}
    row = number(1, 5) + text(2, "aten::relu") + text(4, b"\x01") + text(8, side(given))
    said = refused(tmp_path / "t.et", file(text(1, "x"), [row]))
    assert "node 5 ('aten::relu')" in said


def test_who_takes_one_for_a_model_is_told_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "t.et"
    path.write_bytes(CONVERTED)
    with pytest.raises(IrgraphError, match=r"this is a Chakra trace, not model\.ir") as caught:
        irgraph.load(path)
    assert f"irgraph lower {path}" in str(caught.value)
    path.write_bytes(b"\xff" * 99)
    with pytest.raises(IrgraphError, match="not a text file"):
        irgraph.load(path)


def test_a_planted_model_is_checked_like_any_other(tmp_path: Path) -> None:
    for model, why in (("model", "error"), ('model "m" { format = 9 }\n', "9")):
        head = text(2, attribute("irgraph_model", model))
        assert why in refused(tmp_path / "t.et", file(head, [number(1, 1)]))


@pytest.mark.long
def test_damage_is_told(tmp_path: Path) -> None:
    """Files that are cut off, or have other bytes, give a sound graph or one clear error."""
    rng = random.Random(5)
    path = tmp_path / "t.et"
    for turn in range(300):
        data = bytearray(CONVERTED)
        if turn % 2:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            assert not verify(lowered(path, bytes(data)).graph)
        except IrgraphError as error:
            assert error.diagnostics
    assert "cut off in message 1 (Node)" in refused(path, CONVERTED[:60])


def printed(data: bytes) -> str:
    """Return a file as Chakra's jsonizer prints it: each message after the other, as JSON."""
    from google.protobuf.json_format import MessageToJson

    metadata, nodes = decode(data, "t.et")
    return "".join(map(MessageToJson, (metadata, *nodes)))


def test_a_trace_printed_as_json_is_lowered_as_the_file_that_it_was_printed_from(
    tmp_path: Path,
) -> None:
    text = printed(CONVERTED)
    found = lowered(tmp_path / "step.0.et.json", text.encode())
    direct = lowered(tmp_path / "step.0.et", CONVERTED)
    assert replace(found.graph, name="", settings={}) == replace(direct.graph, name="", settings={})
    assert found.notes == direct.notes
    cut = refused(tmp_path / "t.json", text[: len(text) // 2].encode())
    assert "cut off or damaged in message" in cut
    wrong = re.sub(r'"id": "\d+"', '"id": "x"', text, count=1)
    assert "damaged in message 1 (Node)" in refused(tmp_path / "t.json", wrong.encode())


def test_the_json_of_the_feeder_is_refused(tmp_path: Path) -> None:
    row = {"Id": 216, "Name": "aten::mm", "NodeType": 4, "runtime": 318, "is_cpu_op": True}
    data = json.dumps({"workload_graph": [row]}).encode()
    assert "carries no tensors" in refused(tmp_path / "chakra.0.json", data)
