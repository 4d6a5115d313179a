"""Small execution traces, written by hand in the layouts of several schema versions."""

from __future__ import annotations

import json
from typing import Any

Row = dict[str, Any]

SCHEMAS = {
    "aten::relu": "aten::relu(Tensor self) -> Tensor",
    "aten::relu_": "aten::relu_(Tensor(a!) self) -> Tensor(a!)",
    "aten::add_": (
        "aten::add_.Tensor(Tensor(a!) self, Tensor other, *, Scalar alpha=1) -> Tensor(a!)"
    ),
    "aten::t": "aten::t(Tensor(a) self) -> Tensor(a)",
    "aten::mm": "aten::mm(Tensor self, Tensor mat2) -> Tensor",
    "aten::linear": "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor",
    "aten::addmm": (
        "aten::addmm(Tensor self, Tensor mat1, Tensor mat2, *, Scalar beta=1, Scalar alpha=1)"
        " -> Tensor"
    ),
}


def tensor(
    identity: int, storage: int, *shape: int, offset: int = 0, device: str = "cuda:0"
) -> Row:
    """Return a float tensor as a trace describes it: its value, shape and type."""
    count = 1
    for size in shape:
        count *= size
    value = [identity, storage, offset, count, 4, device]
    return {"value": value, "shape": list(shape), "type": "Tensor(float)"}


def literal(value: object, kind: str) -> Row:
    """Return an argument that is no tensor."""
    return {"value": value, "shape": [], "type": kind}


def node(
    number: int, name: str, inputs: Any = (), outputs: Any = (), parent: int = 2, **fields: Any
) -> Row:
    """Return a node; ``fields`` are ``tid``, ``seq_id``, ``fw_parent``, ``scope``, ``schema``."""
    return {
        "id": number,
        "name": name,
        "parent": parent,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "schema": fields.pop("schema", SCHEMAS.get(name, "")),
        "tid": fields.pop("tid", 1),
        "seq_id": fields.pop("seq_id", -1),
        "fw_parent": fields.pop("fw_parent", 0),
        "scope": fields.pop("scope", 0),
    }


FRAME = (
    node(1, "[pytorch|profiler|execution_trace|process]", parent=1, tid=0, scope=7),
    node(2, "[pytorch|profiler|execution_trace|thread]", parent=1, scope=7),
)
BACKWARD = node(3, "[pytorch|profiler|execution_trace|thread]", parent=1, tid=2, scope=7)


def trace(*nodes: Row, version: str = "1.0.1") -> bytes:
    """Return a trace of the nodes in the layout of a schema version."""
    write = _flat if version < "1.0.3" else _nested
    return json.dumps({"schema": version, "nodes": [write(n) for n in (*FRAME, *nodes)]}).encode()


def _flat(row: Row) -> Row:
    found = {k: row[k] for k in ("id", "name", "parent", "tid", "seq_id", "fw_parent", "scope")}
    found["op_schema"] = row["schema"]
    for side in ("input", "output"):
        rows = row[f"{side}s"]
        found[f"{side}s"] = [r["value"] for r in rows]
        found[f"{side}_shapes"] = [r["shape"] for r in rows]
        found[f"{side}_types"] = [r["type"] for r in rows]
    return found


def _nested(row: Row) -> Row:
    found = {"id": row["id"], "name": row["name"], "ctrl_deps": row["parent"]}
    for side in ("inputs", "outputs"):
        rows = row[side]
        found[side] = {
            "values": [r["value"] for r in rows],
            "shapes": [r["shape"] for r in rows],
            "types": [r["type"] for r in rows],
        }
    named = {k: row[k] for k in ("tid", "seq_id", "fw_parent", "scope")}
    named["op_schema"] = row["schema"]
    found["attrs"] = [{"name": k, "type": "", "value": v} for k, v in named.items()]
    return found
