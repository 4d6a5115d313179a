"""PyTorch execution traces of any schema version, decoded by the fields that are present."""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from irgraph.capture.nodes import LOST, Json, Node, Recorded, unknown_types, values
from irgraph.text.diagnostics import IrgraphError, Place, fail, place_at

KNOWN_SCHEMAS = ("1.0.1", "1.0.2", "1.0.3", "1.0.4", "1.1.0", "1.1.1")
"""Schema versions that were seen; others are read the same way, with a warning."""

_GZIP = b"\x1f\x8b"


class _Side(msgspec.Struct):
    """Inputs or outputs of a node since version 1.0.3."""

    values: list[Any] = []
    shapes: list[Any] = []
    types: list[str] = []
    strides: list[Any] = []


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _Node(msgspec.Struct):
    """A node of any version: flat fields up to 1.0.2, attributes since."""

    id: int
    name: str
    inputs: _Side | list[Any] = []
    outputs: _Side | list[Any] = []
    attrs: list[_Attribute] = []
    parent: int | None = None
    ctrl_deps: int | None = None
    input_shapes: list[Any] = []
    input_types: list[str] = []
    output_shapes: list[Any] = []
    output_types: list[str] = []
    fw_parent: int = 0
    seq_id: int = -1
    scope: int = 0
    tid: int = 0
    op_schema: str = ""
    rf_id: int = 0


class _File(msgspec.Struct):
    nodes: list[_Node] | None = None
    schema: str = ""
    pid: int = 0
    traceEvents: msgspec.Raw = msgspec.Raw()  # noqa: N815  (the name in Kineto traces)


class Trace(msgspec.Struct):
    """A decoded execution trace.

    Attributes:
        source: the file, for messages.
        schema: its version, as it says.
        nodes: all nodes in order of starts, children attached.
        warnings: one sentence for each oddity.
        process: number of the recorded process, 0 where the file does not say.
    """

    source: str
    schema: str
    nodes: list[Node]
    warnings: list[str]
    process: int = 0


def read_execution_trace(path: str | Path) -> Trace:
    """Read a PyTorch execution trace, plain or gzipped, of any schema version.

    Raises:
        IrgraphError: the file cannot be read, or holds no execution trace (exit code 4).
    """
    source = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise fail(f"cannot read the file: {error.strerror}", Place(source)) from None
    return decode_execution_trace(data, source)


def decode_execution_trace(data: bytes, source: str) -> Trace:
    """Decode the bytes of an execution trace; ``source`` names them in messages.

    Raises:
        IrgraphError: they hold no execution trace (exit code 4).
    """
    data = _unpack(data, source)
    _refuse_other_kinds(data, source)
    try:
        file = msgspec.json.decode(data, type=_File)
    except msgspec.ValidationError as error:
        if data[:1] == b"[" and b'"ph"' in data[:10_000]:
            raise _is_kineto(source) from None
        raise fail(f"not an execution trace: {_plain(error)}", Place(source)) from None
    except msgspec.DecodeError as error:
        raise _broken_json(data, source, error) from None
    if bytes(file.traceEvents):
        raise _is_kineto(source)
    if file.nodes is None:
        raise fail("no execution trace: the file has no list of nodes", Place(source))
    if not file.nodes:
        raise fail("the execution trace is empty: it has no nodes", Place(source))
    return Trace(source, file.schema, _attach(file.nodes), _warnings(file), file.pid)


def _is_kineto(source: str) -> IrgraphError:
    return fail(
        "this is a Kineto trace, not an execution trace",
        Place(source),
        hint="a Kineto trace has times but no tensors; record the same step with "
        "torch.profiler.ExecutionTraceObserver and pass that file",
    )


def _unpack(data: bytes, source: str) -> bytes:
    if data[:2] != _GZIP:
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, OSError, zlib.error) as error:
        raise fail(
            f"the gzip data is damaged or cut off ({str(error).rstrip('.')})",
            Place(source),
            hint="copy or record the file again",
        ) from None


def _refuse_other_kinds(data: bytes, source: str) -> None:
    start = data[:512].lstrip()
    if not start:
        raise fail("the file is empty", Place(source))
    if start[:1] == b"<":
        raise fail(
            "this is HTML or XML, not an execution trace",
            Place(source),
            hint="a download may have saved an error page instead of the file",
        )
    if start[:1] not in b"{[":
        kind = "binary data" if b"\x00" in start else "no JSON"
        raise fail(f"this is {kind}, not an execution trace", Place(source))


def _plain(error: Exception) -> str:
    return str(error).replace("`", "").replace("Object ", "an object ").replace("Expected", "want")


def _broken_json(data: bytes, source: str, error: Exception) -> IrgraphError:
    found = re.search(r"byte (\d+)", str(error))
    offset = int(found.group(1)) if found else len(data)
    place = place_at(data[:offset].decode("utf-8", "replace"), source, offset)
    message = str(error).partition(" (byte")[0].removeprefix("JSON is malformed: ")
    if "truncated" in message:
        message = "the file ends in the midst of its JSON: it is cut off"
    # the line itself may be the whole file, so only its number is shown
    return fail(f"broken JSON: {message}", Place(source, "", place.line, place.column))


def _warnings(file: _File) -> list[str]:
    warnings = []
    if file.schema.partition("-")[0] not in KNOWN_SCHEMAS:
        shown = repr(file.schema) if file.schema else "(none)"
        warnings.append(f"unknown execution trace version {shown}: read by the fields it has")
    kinds = {kind for node in file.nodes or () for kind in _kinds(node)}
    warnings += [
        f"element type {kind!r} is unknown: taken for an integer of its size"
        for kind in unknown_types(kinds)
    ]
    return warnings


def _kinds(node: _Node) -> Iterator[str]:
    for side, flat in ((node.inputs, node.input_types), (node.outputs, node.output_types)):
        yield from side.types if isinstance(side, _Side) else flat


def _attach(raw: list[_Node]) -> list[Node]:
    nodes = sorted(map(_node, raw), key=lambda node: node.id)
    by_id = {node.id: node for node in nodes}
    for node in nodes:
        parent = by_id.get(node.parent)
        if parent is not None and parent is not node and node.parent < node.id:
            parent.children.append(node)
        else:
            node.parent = LOST if parent is None and node.parent else 0
    return nodes


def _node(raw: _Node) -> Node:
    attributes = {attribute.name: attribute.value for attribute in raw.attrs}
    parent = raw.parent if raw.parent is not None else raw.ctrl_deps
    return Node(
        raw.id,
        raw.name,
        str(attributes.get("op_schema", raw.op_schema) or ""),
        _side(raw.inputs, raw.input_shapes, raw.input_types),
        _side(raw.outputs, raw.output_shapes, raw.output_types),
        int(attributes.get("seq_id", raw.seq_id)),
        int(attributes.get("fw_parent", raw.fw_parent)),
        int(attributes.get("tid", raw.tid)),
        int(attributes.get("scope", raw.scope)) == 1,
        parent or 0,
        record=int(attributes.get("rf_id", raw.rf_id)),
    )


def _side(side: _Side | list[Json], shapes: list[Json], types: list[str]) -> list[Recorded]:
    if isinstance(side, _Side):
        return values(side.values, side.shapes, side.types, side.strides)
    return values(side, shapes, types, [])
