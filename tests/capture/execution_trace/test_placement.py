"""Devices of tensors that a trace does not record, held against traces that do."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from irgraph.capture.common.nodes import TraceTensor
from irgraph.capture.common.resolve import tensors_in
from irgraph.capture.execution_trace.lower import lower_execution_trace
from irgraph.capture.execution_trace.reader import read_execution_trace
from tests.capture.execution_trace.traces import literal, node, tensor, trace


def bare(row: dict[str, Any]) -> dict[str, Any]:
    """Return a tensor of schema 1.0.0: without its device."""
    return {**row, "value": row["value"][:5]}


def test_a_trace_of_schema_1_0_0_is_lowered(tmp_path: Path) -> None:
    x, made, weight, y, z = (bare(tensor(i, i + 10, 4, 4)) for i in range(1, 6))
    zero = bare(tensor(9, 19))
    rows = [
        node(3, "aten::_to_copy", [x, literal("cuda:0", "Device")], [made]),
        node(4, "aten::mm", [made, weight], [y]),
        node(5, "aten::add_", [y, zero], [y]),
        node(6, "aten::copy_", [z, y], [z]),
    ]
    path = tmp_path / "old.json"
    path.write_bytes(trace(*rows, version="1.0.0"))
    found = read_execution_trace(path)
    by_id = {t.id: t.device for n in found.nodes for t in tensors_in([*n.inputs, *n.outputs])}
    cuda = {2, 3, 4}
    assert by_id == {i: "cuda:0" if i in cuda else "cpu" for i in (1, 2, 3, 4, 5, 9)}
    assert any("without their device" in warning for warning in found.warnings)


def stripped(value: Any) -> Any:
    """Return a trace's JSON with every tensor cut to five fields."""
    if isinstance(value, list):
        if len(value) == 6 and isinstance(value[5], str) and all(map(_is_whole, value[:5])):
            return value[:5]
        return [stripped(item) for item in value]
    return {k: stripped(v) for k, v in value.items()} if isinstance(value, dict) else value


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@pytest.mark.data
@pytest.mark.parametrize(
    "name",
    [
        "formats/et_1.0.3_resnet50_1gpu",
        "formats/et_1.1.1_resnet50_1gpu",
        "dlrm_8xV100/et_rank0",
        "mlp_RTX2080Ti/et",
        "resnet18_RTX2080Ti/et",
    ],
)
@pytest.mark.slow
def test_devices_are_those_that_were_recorded(name: str, data_dir: Path, tmp_path: Path) -> None:
    path = data_dir / f"traces/{name}.json.gz"
    old = tmp_path / "old.json"
    old.write_text(json.dumps(stripped(json.loads(gzip.decompress(path.read_bytes())))))
    wrong: Counter[str] = Counter()
    total = 0
    for said, found in zip(_tensors(path), _tensors(old), strict=True):
        total += 1
        if said.shape and said.device:
            wrong[f"{said.device} taken for {found.device}"] += said.device != found.device
    assert sum(wrong.values()) <= 0.01 * total, (wrong, total)
    assert lower_execution_trace(read_execution_trace(old)).graph.ops


def _tensors(path: Path) -> list[TraceTensor]:
    nodes = read_execution_trace(path).nodes
    return [t for n in nodes for t in tensors_in([*n.inputs, *n.outputs])]
