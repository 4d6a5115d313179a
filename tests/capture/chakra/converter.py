"""Chakra files as the converter of github.com/mlcommons/chakra makes them, without protobuf.

``src/converter/pytorch_converter.py``: a node for each one of a PyTorch execution trace, with the
caller in ``ctrl_deps`` where it has been converted, ``str`` of the lists of operands and results,
and torch's numbers as attributes; the schema is an attribute of the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

STRING, BOOL, INT64 = 29, 27, 9


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def attribute(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        found = text(STRING, value)
    else:
        found = number(BOOL if isinstance(value, bool) else INT64, value)
    return text(1, name) + found


def side(given: dict[str, Any]) -> bytes:
    return b"".join(
        text(at, str(given[name])) for at, name in enumerate(("values", "shapes", "types"), 1)
    )


def file(metadata: bytes, nodes: Iterable[bytes]) -> bytes:
    return b"".join(varint(len(part)) + part for part in (metadata, *nodes))


def node(row: dict[str, Any], seen: set[int]) -> bytes:
    seen.add(row["id"])
    known = {each["name"]: each["value"] for each in row["attrs"]}
    names = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid")
    attributes = {name: known.get(name, 0) for name in names}
    attributes |= {"op_schema": known.get("op_schema", ""), "is_cpu_op": True}
    return b"".join(
        [
            number(1, row["id"]),
            text(2, row["name"]),
            number(3, 4),
            text(4, varint(row["ctrl_deps"])) if row["ctrl_deps"] in seen - {row["id"]} else b"",
            text(8, side(row["inputs"])),
            text(9, side(row["outputs"])),
            *(text(10, attribute(name, value)) for name, value in attributes.items()),
        ]
    )


def kernel(identity: int, duration: int) -> bytes:
    """Return a node of the device: its times alone, and the lists of none."""
    none = side({"values": [], "shapes": [], "types": []})
    return b"".join(
        [
            number(1, identity),
            text(2, "gemm_kernel"),
            number(3, 4),
            number(7, duration),
            text(8, none),
            text(9, none),
            text(10, attribute("is_cpu_op", False)),
            text(10, attribute("stream", 7)),
        ]
    )


def converted(trace: bytes, kernels: int = 0) -> bytes:
    """Return an execution trace (schema 1.0.3 or newer) as a Chakra file."""
    given = json.loads(trace)
    seen: set[int] = set()
    nodes = [node(row, seen) for row in given["nodes"]]
    nodes += [kernel(1000 + at, 10 + at) for at in range(kernels)]
    facts = {"schema": given["schema"] + "-chakra.0.0.4", "pid": 1, "time": "now"}
    return file(b"".join(text(2, attribute(k, v)) for k, v in facts.items()), nodes)
