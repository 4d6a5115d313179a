"""What is read as an execution trace, and what is refused with which words."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from irgraph.capture.execution_trace.reader import decode_execution_trace, read_execution_trace
from irgraph.text import IrgraphError
from tests.capture.execution_trace.traces import node, tensor, trace

RELU = node(4, "aten::relu", [tensor(10, 11, 2)], [tensor(12, 13, 2)])


def refused(data: bytes) -> str:
    with pytest.raises(IrgraphError) as caught:
        decode_execution_trace(data, "et.json")
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.mark.parametrize("version", ["1.0.1", "1.0.3-chakra.0.0.4", "1.1.1-chakra.0.0.4"])
def test_versions_are_read_alike(version: str) -> None:
    read = decode_execution_trace(trace(RELU, version=version), "et.json")
    relu = read.nodes[-1]
    assert (relu.name, relu.parent, relu.inputs[0].shape) == ("aten::relu", 2, (2,))
    assert read.warnings == []


def test_unknown_version_is_a_warning() -> None:
    read = decode_execution_trace(trace(RELU, version="9.9.9"), "et.json")
    assert read.warnings == ["unknown execution trace version '9.9.9': read by the fields it has"]


def test_gzip_is_known_by_its_content(tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    file.write_bytes(gzip.compress(trace(RELU)))
    assert len(read_execution_trace(file).nodes) == 3


def test_unknown_element_type_is_a_warning() -> None:
    odd = {"value": [10, 11, 0, 2, 1, "cuda:0"], "shape": [2], "type": "Tensor(c10::qint8)"}
    read = decode_execution_trace(trace(node(4, "aten::relu", [odd], [])), "et.json")
    assert read.nodes[-1].inputs[0].dtype == "u8"
    assert read.warnings == [
        "element type 'c10::qint8' is unknown: taken for an integer of its size"
    ]


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="No such file or directory"):
        read_execution_trace(tmp_path / "none.json")


def test_empty_file() -> None:
    assert refused(b"  \n").startswith("et.json: error: the file is empty")


def test_html() -> None:
    assert "this is HTML or XML, not an execution trace" in refused(b"<!DOCTYPE html><html>")


def test_binary() -> None:
    assert "this is binary data, not an execution trace" in refused(b"\x89PNG\x00\x01")


def test_plain_words() -> None:
    assert "this is not JSON, not an execution trace" in refused(b"Not Found")


def test_cut_off_json_names_the_place() -> None:
    text = trace(RELU)
    message = refused(text[: len(text) // 2])
    assert "broken JSON: the file is cut off: its JSON ends early" in message
    assert message.startswith("et.json:1:")


def test_broken_json_names_the_place() -> None:
    assert refused(b'{"schema": "1.0.1",\n "nodes": [}').startswith(
        "et.json:2:12: error: broken JSON: invalid"
    )


def test_half_a_gzip_file() -> None:
    packed = gzip.compress(trace(RELU))
    assert "the gzip file is cut off after" in refused(packed[: len(packed) // 2])


@pytest.mark.parametrize("data", [b'{"traceEvents": []}', b'[{"ph": "X", "name": "aten::mm"}]'])
def test_kineto_trace_is_told_so(data: bytes) -> None:
    message = refused(data)
    assert "this is a Kineto trace, not an execution trace" in message
    assert "ExecutionTraceObserver" in message


def test_other_json() -> None:
    assert "not an execution trace: the file has no list of nodes" in refused(b'{"a": 1}')
    assert "not an execution trace: want object, got array" in refused(b"[1, 2]")


def test_no_nodes() -> None:
    assert "the execution trace is empty: it has no nodes" in refused(b'{"nodes": []}')


def test_wrong_field_is_named() -> None:
    message = refused(b'{"nodes": [{"id": "one", "name": "x"}]}')
    assert "want int, got str - at $.nodes[0].id" in message
