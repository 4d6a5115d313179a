"""Removes names, paths and hosts from traces, so that they can be shared."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from irgraph.anonymise.renaming import Anonymiser, number
from irgraph.capture.kineto.reading.collect import CATEGORIES
from irgraph.capture.kineto.reading.container import blocks
from irgraph.capture.kineto.reading.decoders import PHASES
from irgraph.capture.kineto.reading.health import Health
from irgraph.capture.kineto.reading.trace import EventKind
from irgraph.diagnostics import IrgraphError, SourceSpan, fail
from irgraph.files import write_atomic

Json = dict[str, Any]

_NUMBERS = ("schemaVersion", "baseTimeNanoseconds", "cuda_runtime_version", "cuda_driver_version",
            "cupti_version", "record_shapes", "start_ts", "finish_ts")  # fmt: skip
"""Top-level fields of a trace that are retained if they are numbers."""

_DEVICE = frozenset((
    "id", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock",
    "maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor", "warpSize",
    "sharedMemPerBlock", "sharedMemPerMultiprocessor", "numSms", "sharedMemPerBlockOptin",
    "maxSharedMemoryPerMultiProcessor",
))  # fmt: skip
"""Properties of a device that are retained if they are numbers."""

ARGUMENTS = frozenset((
    "External id", "external id", "Record function id", "Sequence number", "Fwd thread id",
    "correlation", "stream", "device", "bytes", "Ev Idx", "cbid", "context", "queued",
    "Input Dims", "Input dims", "Input type", "Input Strides", "registers per thread",
    "shared memory", "blocks per SM", "warps per SM", "grid", "block", "Collective name",
    "In msg nelems", "Out msg nelems", "Group size", "Process Group Name",
    "Process Group Ranks", "dtype", "cuda_sync_kind", "wait_on_stream",
    "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id", "memory bandwidth (GB/s)",
    "est. achieved occupancy %",
))  # fmt: skip
"""Arguments of events that do not identify the program; all others are dropped."""

_ARROWS = ("ac2g", "async", "async_gpu", "async_cpu", "fwdbwd", "None")
_VERSION = re.compile(r"\d{1,3}(?:\.\d{1,3}){0,3}(?:-chakra(?:\.\d{1,3}){0,3})?", re.ASCII)
_PLAIN_VALUE = re.compile(r"True|False|\[?[-+.,\de ]{0,200}\]?", re.ASCII)
_TIME = re.compile(r"-?\d{1,20}(?:\.\d{1,9})?", re.ASCII)
_NODE_NUMBERS = ("id", "parent", "ctrl_deps", "fw_parent", "seq_id", "scope", "tid", "fw_tid",
                 "rf_id")  # fmt: skip
_NODE_VALUES = ("inputs", "outputs", "input_shapes", "input_types", "output_shapes",
                "output_types")  # fmt: skip
_VALUE_FIELDS = ("values", "shapes", "types", "strides")
_DEVICE_KINDS = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)
_CALL_KINDS = (EventKind.RUNTIME, EventKind.SYNC)


def anonymous_trace(trace: Json, anonymiser: Anonymiser, source: str = "") -> Json:
    """Return a Kineto or execution trace without data that identify the program.

    Raises ``IrgraphError`` if its events or nodes are not a list.
    """
    header = _header(trace, anonymiser)
    if "nodes" in trace:
        pid = anonymiser.number(trace.get("pid", 0))
        nodes = [_node(node, anonymiser) for node in _objects(trace, "nodes", source)]
        return {**header, "pid": pid, "nodes": nodes}
    events = [_event(event, anonymiser) for event in _objects(trace, "traceEvents", source)]
    return {**header, "traceEvents": events}


def _objects(trace: Json, key: str, source: str) -> list[Json]:
    items = trace[key]
    if not isinstance(items, list):
        raise fail(f"not a trace: {key} is not a list", SourceSpan(source))
    return [item for item in items if isinstance(item, dict)]


def _header(trace: Json, anonymiser: Anonymiser) -> Json:
    """Return the known top-level fields except the events."""
    header = {key: number(trace[key]) for key in _NUMBERS if key in trace}
    schema = trace.get("schema")
    if isinstance(schema, str):
        header["schema"] = schema if _VERSION.fullmatch(schema) else anonymiser.pseudonym(schema)
    if trace.get("displayTimeUnit") in ("ms", "ns"):
        header["displayTimeUnit"] = trace["displayTimeUnit"]
    devices = trace.get("deviceProperties")
    if isinstance(devices, list):
        device_objects = (device for device in devices if isinstance(device, dict))
        header["deviceProperties"] = [_device(device, anonymiser) for device in device_objects]
    info = trace.get("distributedInfo")
    if isinstance(info, dict):
        keys = [key for key in ("backend", "rank", "world_size") if key in info]
        header["distributedInfo"] = {key: anonymiser.value(info[key]) for key in keys}
    return header


def _device(device: Json, anonymiser: Anonymiser) -> Json:
    properties = {key: number(value) for key, value in device.items() if key in _DEVICE}
    if isinstance(device.get("name"), str):
        properties["name"] = anonymiser.card(device["name"])
    return properties


def _event(event: Json, anonymiser: Anonymiser) -> Json:
    """Return the known fields of an event of a Kineto trace."""
    result: Json = {"ph": _known_character(event.get("ph"), PHASES)} if "ph" in event else {}
    cat = event.get("cat")
    kind = CATEGORIES.get(cat.lower(), EventKind.OTHER) if isinstance(cat, str) else EventKind.OTHER
    if isinstance(cat, str):
        is_known = cat.lower() in CATEGORIES or cat in _ARROWS
        result["cat"] = cat if is_known else anonymiser.pseudonym(cat)
    result["name"] = _event_name(event, kind, anonymiser)
    for key in ("ts", "dur"):
        if key in event:
            result[key] = _time(event[key])
    for key in ("pid", "tid"):
        if key in event:
            # a device and its streams are numbers in both
            value = event[key]
            is_number = kind in _DEVICE_KINDS and not isinstance(value, str)
            result[key] = number(value) if is_number else anonymiser.number(value)
    if "id" in event:
        is_number = not isinstance(event["id"], str)
        result["id"] = number(event["id"]) if is_number else anonymiser.number(event["id"])
    for key, characters in (("bp", "e"), ("s", "gpt")):
        if key in event:
            result[key] = _known_character(event[key], characters)
    args = event.get("args")
    if isinstance(args, dict):
        result["args"] = _arguments(args, anonymiser)
    return result


def _event_name(event: Json, kind: int, anonymiser: Anonymiser) -> str:
    name = str(event.get("name", ""))
    if kind in _DEVICE_KINDS:
        return anonymiser.kernel(name, kind)
    return anonymiser.call(name) if kind in _CALL_KINDS else anonymiser.name(name)


def _arguments(args: Json, anonymiser: Anonymiser) -> Json:
    arguments = {key: anonymiser.value(value) for key, value in args.items() if key in ARGUMENTS}
    if isinstance(args.get("cuda_sync_kind"), str):
        arguments["cuda_sync_kind"] = anonymiser.call(args["cuda_sync_kind"])
    values = args.get("Concrete Inputs")
    if isinstance(values, list):
        arguments["Concrete Inputs"] = [_plain_value(value) for value in values]
    module = args.get("Module Hierarchy")
    if module:
        arguments["Module Hierarchy"] = anonymiser.pseudonym(str(module))
    return arguments


def _plain_value(value: object) -> str:
    """Return a recorded number, truth value or list of numbers, ``""`` for any other text."""
    return value if isinstance(value, str) and _PLAIN_VALUE.fullmatch(value) else ""


def _known_character(value: object, characters: str) -> str:
    return value if isinstance(value, str) and len(value) == 1 and value in characters else "?"


def _time(value: object) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value if _TIME.fullmatch(value) else None
    return number(value)


def _node(node: Json, anonymiser: Anonymiser) -> Json:
    """Return the known fields of a node of an execution trace."""
    result: Json = {key: number(node[key]) for key in _NODE_NUMBERS if key in node}
    result["name"] = anonymiser.name(str(node.get("name", "")))
    for key in _NODE_VALUES:
        if key in node:
            result[key] = _values(node[key], anonymiser)
    if isinstance(node.get("op_schema"), str):
        result["op_schema"] = anonymiser.schema(node["op_schema"])
    attributes = node.get("attrs")
    if isinstance(attributes, list):
        result["attrs"] = [
            attribute for item in attributes for attribute in _attribute(item, anonymiser)
        ]
    return result


def _values(value: object, anonymiser: Anonymiser) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: anonymiser.value(value[key]) for key in _VALUE_FIELDS if key in value}
    return anonymiser.value(value)


def _attribute(item: object, anonymiser: Anonymiser) -> list[Json]:
    """Return a known attribute of a node, as a list of one or none."""
    name = item.get("name") if isinstance(item, dict) else None
    value = item.get("value") if isinstance(item, dict) else None
    if name == "op_schema" and isinstance(value, str):
        return [{"name": name, "type": "string", "value": anonymiser.schema(value)}]
    if name in _NODE_NUMBERS:
        return [{"name": name, "type": "uint64", "value": number(value)}]
    return []


def anonymise(paths: list[str], folder: str | Path, *, key: str = "") -> list[Path]:
    """Write anonymised traces to a folder as ``et1.json.gz``, ``kineto1.json.gz``, …; return paths.

    With a ``key``, a name has the same pseudonym in all runs with that key.

    Raises:
        IrgraphError: a file cannot be read, or is not a complete JSON trace (exit code 4).
    """
    target_folder = Path(folder)
    try:
        target_folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(
            f"cannot make the folder: {error.strerror}", SourceSpan(str(target_folder))
        ) from None
    anonymiser = Anonymiser(key)
    counts: dict[str, int] = {}
    targets = []
    for path in paths:
        trace = _anonymous_file(path, anonymiser)
        kind = "et" if "nodes" in trace else "kineto"
        counts[kind] = counts.get(kind, 0) + 1
        target = target_folder / f"{kind}{counts[kind]}.json.gz"
        write_atomic(target, gzip.compress(_encode(trace), 6, mtime=0))
        targets.append(target)
    return targets


def _anonymous_file(path: str, anonymiser: Anonymiser) -> Json:
    trace = _load(path)
    try:
        return anonymous_trace(trace, anonymiser, path)
    except RecursionError:
        raise _nesting_error(path) from None


def _nesting_error(path: str) -> IrgraphError:
    return fail("broken JSON: it is nested too deeply", SourceSpan(path))


def _encode(trace: Json) -> bytes:
    return json.dumps(trace, separators=(",", ":")).encode()


def _load(path: str) -> Json:
    loads: Callable[[str], Any] = json.JSONDecoder(strict=False).decode
    text = b"".join(blocks(path, Health(path), any_trace=True)).decode("utf-8", "replace")
    try:
        value = loads(text)
    except json.JSONDecodeError as error:
        message = f"broken JSON: {error.msg}"
        hint = "only whole traces are anonymised: what is broken might hide a name"
        raise fail(message, SourceSpan(path, "", error.lineno, error.colno), hint=hint) from None
    except RecursionError:
        raise _nesting_error(path) from None
    except ValueError:
        raise fail("broken JSON: a number has thousands of digits", SourceSpan(path)) from None
    trace = {"traceEvents": value} if isinstance(value, list) else value
    if not isinstance(trace, dict) or not {"traceEvents", "nodes"} & trace.keys():
        raise fail("neither a Kineto trace nor an execution trace", SourceSpan(path))
    return trace
