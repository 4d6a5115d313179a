"""Reads PyTorch execution traces of any schema version, by the fields that are present."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from irgraph.capture.common.damage import (
    DamagedError,
    as_utf8,
    escape_names,
    require_int,
    restore_bytes,
    short_repr,
)
from irgraph.capture.common.forest import attach_to_callers, first_too_deep
from irgraph.capture.common.interrupted import close_interrupted
from irgraph.capture.common.nodes import Json, Recorded, RecordedNode, decode_values, unknown_types
from irgraph.capture.common.source import Source, refuse_other_formats
from irgraph.capture.execution_trace.device_inference import infer_devices
from irgraph.diagnostics import IrgraphError, SourceSpan, fail, place_at
from irgraph.diagnostics.json_keys import refuse_duplicate_keys
from irgraph.files import unpack

KNOWN_SCHEMAS = ("1.0.0", "1.0.1", "1.0.2", "1.0.3", "1.0.4", "1.1.0", "1.1.1")
"""Schema versions seen so far; other versions are read the same way, with a warning."""


class _Side(msgspec.Struct):
    """Inputs or outputs of a node since version 1.0.3."""

    values: Sequence[Any] = ()
    shapes: Sequence[Any] = ()
    types: Sequence[str] = ()
    strides: Sequence[Any] = ()


class _Attribute(msgspec.Struct):
    name: str
    value: Any = None


class _Node(msgspec.Struct):
    """A node of any version: flat fields up to 1.0.2, attributes since.

    Absent lists share one tuple, as separate lists would use half a kilobyte per node.
    """

    id: int
    name: str
    inputs: _Side | Sequence[Any] = ()
    outputs: _Side | Sequence[Any] = ()
    attrs: Sequence[_Attribute] = ()
    parent: int | None = None
    ctrl_deps: int | None = None
    input_shapes: Sequence[Any] = ()
    input_types: Sequence[str] = ()
    output_shapes: Sequence[Any] = ()
    output_types: Sequence[str] = ()
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
        schema: schema version stated in the file.
        nodes: all nodes in order of starts, children attached.
        warnings: one sentence for each irregularity.
        process: number of the recorded process, 0 if the file does not state it.
        contradictions: the entries of ``warnings`` about contradictory figures.
    """

    source: str
    schema: str
    nodes: list[RecordedNode]
    warnings: list[str]
    process: int = 0
    contradictions: tuple[str, ...] = ()


def read_execution_trace(path: str | Path | Source, source: str = "") -> Trace:
    """Read a PyTorch execution trace, plain or gzipped, of any schema version.

    Args:
        path: a file, ``-`` for standard input.
        source: name of the file in messages; by default its own name.

    Raises:
        IrgraphError: the file cannot be read, or is not an execution trace (exit code 4).
    """
    with Source.open_once(path) as file:
        return decode_execution_trace(file.read(), source or file.name)


def decode_execution_trace(data: bytes, source: str) -> Trace:
    """Decode the bytes of an execution trace; ``source`` is its name in messages.

    Damage is repaired if possible, and reported in ``warnings``.

    Raises:
        IrgraphError: the bytes are not an execution trace, or an invalid one (exit code 4).
    """
    data = unpack(data, source)
    refuse_other_formats(data[:4096], "an execution trace", source)
    data, repaired = as_utf8(restore_bytes(data))
    file, names = _decode_tolerantly(data, source)
    if bytes(file.traceEvents):
        raise _kineto_error(source)
    if file.nodes is None:
        raise fail("not an execution trace: the file has no list of nodes", SourceSpan(source))
    if not file.nodes:
        raise fail("the execution trace is empty: it has no nodes", SourceSpan(source))
    repairs: Counter[str] = Counter()
    raw = _without_duplicates(file.nodes, source, repairs)
    nodes = sorted(
        (_recorded_node(node, source, repairs) for node in raw), key=lambda node: node.id
    )
    close_interrupted(nodes)
    attach_to_callers(nodes, repairs)
    too_deep = first_too_deep(nodes)
    if too_deep is not None:
        raise _error(too_deep, "too many calls lie around it", source)
    inferred = infer_devices(nodes)
    if inferred:
        repairs["tensors are recorded without their device: it was inferred from the calls"] += (
            inferred
        )
    repair_notes = [f"{count} {sentence}" for sentence, count in sorted(repairs.items())]
    warnings = [*_warnings(file), *repaired, *names, *repair_notes]
    contradictions = tuple(note for note in repair_notes if "contradict" in note)
    return Trace(source, file.schema, nodes, warnings, file.pid, contradictions)


def missing_records_note(trace: Trace) -> tuple[str, ...]:
    """Return a sentence on missing records, if there are gaps in their numbers (``rf_id``).

    A process continues the numbers from one trace to the next, so the first number is arbitrary.
    """
    numbers = {node.record for node in trace.nodes if node.record}
    expected = max(numbers) + 1 - min(numbers) if numbers else 0
    count = expected - len(numbers)
    if not count:
        return ()
    return (f"{trace.source}: {count} of {expected} numbered records are not in the file",)


def _decode_tolerantly(data: bytes, source: str) -> tuple[_File, list[str]]:
    """Decode JSON, or else JSON with its names escaped; return it with notes on those names."""
    try:
        return _decode(data, source), []
    except IrgraphError:
        repaired, names = escape_names(data)
        if not names:
            raise
    return _decode(repaired, source), names


def _decode(data: bytes, source: str) -> _File:
    try:
        file = msgspec.json.decode(data, type=_File)
        refuse_duplicate_keys(data)
        return file
    except msgspec.ValidationError as error:
        if data[:1] == b"[" and b'"ph"' in data[:10_000]:
            raise _kineto_error(source) from None
        raise fail(f"not an execution trace: {_plain_message(error)}", SourceSpan(source)) from None
    except msgspec.DecodeError as error:
        raise _broken_json(data, source, error) from None
    except ValueError as error:
        raise fail(f"broken JSON: {error}", SourceSpan(source)) from None
    except RecursionError:
        raise fail("broken JSON: it is nested too deeply", SourceSpan(source)) from None


def _kineto_error(source: str) -> IrgraphError:
    return fail(
        "this is a Kineto trace, not an execution trace",
        SourceSpan(source),
        hint="a Kineto trace has times but no tensors; record the same step with "
        "torch.profiler.ExecutionTraceObserver and pass that file",
    )


def _plain_message(error: Exception) -> str:
    return str(error).replace("`", "").replace("Object ", "an object ").replace("Expected", "want")


def _broken_json(data: bytes, source: str, error: Exception) -> IrgraphError:
    match = re.search(r"byte (\d+)", str(error))
    offset = int(match.group(1)) if match else len(data)
    place = place_at(data[:offset].decode("utf-8", "replace"), source, offset)
    message = str(error).partition(" (byte")[0].removeprefix("JSON is malformed: ")
    if "truncated" in message:
        message = "the file is cut off: its JSON ends early"
    # the line itself may be the whole file, so only its number is shown
    return fail(f"broken JSON: {message}", SourceSpan(source, "", place.line, place.column))


def _warnings(file: _File) -> list[str]:
    warnings = []
    if file.schema.partition("-")[0] not in KNOWN_SCHEMAS:
        version = repr(file.schema) if file.schema else "(none)"
        warnings.append(f"unknown execution trace version {version}: read by the fields it has")
    kinds = {kind for node in file.nodes or () for kind in _kinds(node)}
    warnings += [
        f"element type {kind!r} is unknown: taken for an integer of its size"
        for kind in unknown_types(kinds)
    ]
    return warnings


def _kinds(node: _Node) -> Iterator[str]:
    for side, flat in ((node.inputs, node.input_types), (node.outputs, node.output_types)):
        yield from side.types if isinstance(side, _Side) else flat


def _without_duplicates(nodes: list[_Node], source: str, repairs: Counter[str]) -> list[_Node]:
    """Return nodes without duplicates, and without ranges that began in an earlier recording.

    The observer writes such a range when it ends, with its number from that recording.
    """
    node_by_id: dict[int, _Node] = {}
    copies = 0
    for node in nodes:
        other = node_by_id.setdefault(node.id, node)
        copies += other == node and other is not node
        if other == node:
            continue
        older, newer = sorted((other, node), key=_record)
        if _record(older) >= _first_record(nodes, node.id):
            raise _error(node, f"{short_repr(other.name)} has the same id", source)
        node_by_id[node.id] = newer
        repairs["ranges that began in an earlier recording: left out"] += 1
    if copies:
        repairs["duplicate nodes: used once"] = copies
    return list(node_by_id.values())


def _first_record(nodes: Sequence[_Node], end: int) -> int:
    """Return the first number of the records with ids below ``end``, 0 if there are none."""
    return min((record for n in nodes if n.id < end and (record := _record(n))), default=0)


def _record(node: _Node) -> int:
    """Return the number of a node's record, 0 if it has none."""
    numbers = (a.value for a in node.attrs if a.name == "rf_id" and isinstance(a.value, int))
    return next(numbers, node.rf_id)


def _error(node: _Node | RecordedNode, reason: str, source: str) -> IrgraphError:
    return fail(f"node {node.id} ({short_repr(node.name)}): {reason}", SourceSpan(source))


def _recorded_node(raw: _Node, source: str, repairs: Counter[str]) -> RecordedNode:
    try:
        return _convert_node(raw, repairs)
    except DamagedError as error:
        raise _error(raw, str(error), source) from None


def _convert_node(raw: _Node, repairs: Counter[str]) -> RecordedNode:
    attributes = {attribute.name: attribute.value for attribute in raw.attrs}
    parent = raw.parent if raw.parent is not None else raw.ctrl_deps
    schema = attributes.get("op_schema", raw.op_schema)
    if not isinstance(schema, str):
        raise DamagedError(f"its op_schema is {short_repr(schema)}, not a text")

    def number(name: str) -> int:
        return require_int(attributes.get(name, getattr(raw, name)), name)

    return RecordedNode(
        require_int(raw.id, "id", 0),
        raw.name,
        schema,
        _side(raw.inputs, raw.input_shapes, raw.input_types, repairs),
        _side(raw.outputs, raw.output_shapes, raw.output_types, repairs),
        number("seq_id"),
        number("fw_parent"),
        number("tid"),
        number("scope") == 1,
        parent or 0,
        record=number("rf_id"),
    )


def _side(
    side: _Side | Sequence[Json],
    shapes: Sequence[Json],
    types: Sequence[str],
    repairs: Counter[str],
) -> list[Recorded]:
    if isinstance(side, _Side):
        return decode_values(side.values, side.shapes, side.types, side.strides, repairs)
    return decode_values(side, shapes, types, [], repairs)
