"""Take names, paths and hosts out of traces, so that they can be shared."""

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
"""Top-level fields of a trace that are kept where they are numbers."""

_DEVICE = frozenset((
    "id", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock",
    "maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor", "warpSize",
    "sharedMemPerBlock", "sharedMemPerMultiprocessor", "numSms", "sharedMemPerBlockOptin",
    "maxSharedMemoryPerMultiProcessor",
))  # fmt: skip
"""Properties of a device that are kept where they are numbers."""

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
_TIME = re.compile(r"-?\d{1,20}(?:\.\d{1,9})?", re.ASCII)
_NODE_NUMBERS = ("id", "parent", "ctrl_deps", "fw_parent", "seq_id", "scope", "tid", "fw_tid",
                 "rf_id")  # fmt: skip
_NODE_VALUES = ("inputs", "outputs", "input_shapes", "input_types", "output_shapes",
                "output_types")  # fmt: skip
_SIDE = ("values", "shapes", "types", "strides")
_DEVICE_KINDS = (EventKind.KERNEL, EventKind.MEMCPY, EventKind.MEMSET)
_CALL_KINDS = (EventKind.RUNTIME, EventKind.SYNC)


def anonymous_trace(trace: Json, renamed: Anonymiser, source: str = "") -> Json:
    """Return a Kineto or execution trace without anything that identifies the program.

    Raises ``IrgraphError`` where its events or nodes are no list of objects.
    """
    kept = _header(trace, renamed)
    if "nodes" in trace:
        pid = renamed.number(trace.get("pid", 0))
        nodes = [_node(node, renamed) for node in _objects(trace, "nodes", source)]
        return {**kept, "pid": pid, "nodes": nodes}
    events = [_event(event, renamed) for event in _objects(trace, "traceEvents", source)]
    return {**kept, "traceEvents": events}


def _objects(trace: Json, key: str, source: str) -> list[Json]:
    found = trace[key]
    if not isinstance(found, list):
        raise fail(f"not a trace: {key} is not a list", SourceSpan(source))
    return [item for item in found if isinstance(item, dict)]


def _header(trace: Json, renamed: Anonymiser) -> Json:
    """Return the known top-level fields beside the events."""
    kept = {key: number(trace[key]) for key in _NUMBERS if key in trace}
    schema = trace.get("schema")
    if isinstance(schema, str):
        kept["schema"] = schema if _VERSION.fullmatch(schema) else renamed.stand_in(schema)
    if trace.get("displayTimeUnit") in ("ms", "ns"):
        kept["displayTimeUnit"] = trace["displayTimeUnit"]
    devices = trace.get("deviceProperties")
    if isinstance(devices, list):
        known = (device for device in devices if isinstance(device, dict))
        kept["deviceProperties"] = [_device(device, renamed) for device in known]
    info = trace.get("distributedInfo")
    if isinstance(info, dict):
        keys = [key for key in ("backend", "rank", "world_size") if key in info]
        kept["distributedInfo"] = {key: renamed.value(info[key]) for key in keys}
    return kept


def _device(device: Json, renamed: Anonymiser) -> Json:
    kept = {key: number(value) for key, value in device.items() if key in _DEVICE}
    if isinstance(device.get("name"), str):
        kept["name"] = renamed.card(device["name"])
    return kept


def _event(event: Json, renamed: Anonymiser) -> Json:
    """Return the known fields of an event of a Kineto trace."""
    found: Json = {"ph": _one_of(event.get("ph"), PHASES)} if "ph" in event else {}
    cat = event.get("cat")
    kind = CATEGORIES.get(cat.lower(), EventKind.OTHER) if isinstance(cat, str) else EventKind.OTHER
    if isinstance(cat, str):
        known = cat.lower() in CATEGORIES or cat in _ARROWS
        found["cat"] = cat if known else renamed.stand_in(cat)
    found["name"] = _named(event, kind, renamed)
    for key in ("ts", "dur"):
        if key in event:
            found[key] = _time(event[key])
    for key in ("pid", "tid"):
        if key in event:
            # a device and its streams are numbers in both
            value = event[key]
            plain = kind in _DEVICE_KINDS and not isinstance(value, str)
            found[key] = number(value) if plain else renamed.number(value)
    if "id" in event:
        plain = not isinstance(event["id"], str)
        found["id"] = number(event["id"]) if plain else renamed.number(event["id"])
    for key, known_marks in (("bp", "e"), ("s", "gpt")):
        if key in event:
            found[key] = _one_of(event[key], known_marks)
    args = event.get("args")
    if isinstance(args, dict):
        found["args"] = _arguments(args, renamed)
    return found


def _named(event: Json, kind: int, renamed: Anonymiser) -> str:
    name = str(event.get("name", ""))
    if kind in _DEVICE_KINDS:
        return renamed.kernel(name, kind)
    return renamed.call(name) if kind in _CALL_KINDS else renamed.name(name)


def _arguments(args: Json, renamed: Anonymiser) -> Json:
    found = {key: renamed.value(value) for key, value in args.items() if key in ARGUMENTS}
    if isinstance(args.get("cuda_sync_kind"), str):
        found["cuda_sync_kind"] = renamed.call(args["cuda_sync_kind"])
    module = args.get("Module Hierarchy")
    if module:
        found["Module Hierarchy"] = renamed.stand_in(str(module))
    return found


def _one_of(value: object, known: str) -> str:
    return value if isinstance(value, str) and len(value) == 1 and value in known else "?"


def _time(value: object) -> Any:  # noqa: ANN401
    if isinstance(value, str):
        return value if _TIME.fullmatch(value) else None
    return number(value)


def _node(node: Json, renamed: Anonymiser) -> Json:
    """Return the known fields of a node of an execution trace."""
    found: Json = {key: number(node[key]) for key in _NODE_NUMBERS if key in node}
    found["name"] = renamed.name(str(node.get("name", "")))
    for key in _NODE_VALUES:
        if key in node:
            found[key] = _side(node[key], renamed)
    if isinstance(node.get("op_schema"), str):
        found["op_schema"] = renamed.schema(node["op_schema"])
    given = node.get("attrs")
    if isinstance(given, list):
        found["attrs"] = [kept for item in given for kept in _attribute(item, renamed)]
    return found


def _side(value: object, renamed: Anonymiser) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: renamed.value(value[key]) for key in _SIDE if key in value}
    return renamed.value(value)


def _attribute(item: object, renamed: Anonymiser) -> list[Json]:
    """Return a known attribute of a node, as a list of one or none."""
    name = item.get("name") if isinstance(item, dict) else None
    value = item.get("value") if isinstance(item, dict) else None
    if name == "op_schema" and isinstance(value, str):
        return [{"name": name, "type": "string", "value": renamed.schema(value)}]
    if name in _NODE_NUMBERS:
        return [{"name": name, "type": "uint64", "value": number(value)}]
    return []


def anonymise(paths: list[str], folder: str | Path, *, key: str = "") -> list[Path]:
    """Write anonymised copies of traces to a folder: ``et1.json.gz``, ``kineto1.json.gz``, …, each.

    With a ``key``, what stands for a name is the same in all runs with that key.

    Raises:
        IrgraphError: a file cannot be read, or is no whole JSON trace (exit code 4).
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(f"cannot make the folder: {error.strerror}", SourceSpan(str(place))) from None
    renamed = Anonymiser(key)
    counts: dict[str, int] = {}
    written = []
    for path in paths:
        found = _anonymous(path, renamed)
        kind = "et" if "nodes" in found else "kineto"
        counts[kind] = counts.get(kind, 0) + 1
        target = place / f"{kind}{counts[kind]}.json.gz"
        write_atomic(target, gzip.compress(_encode(found), 6, mtime=0))
        written.append(target)
    return written


def _anonymous(path: str, renamed: Anonymiser) -> Json:
    trace = _load(path)
    try:
        return anonymous_trace(trace, renamed, path)
    except RecursionError:
        raise _deep(path) from None


def _deep(path: str) -> IrgraphError:
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
        raise _deep(path) from None
    except ValueError:
        raise fail("broken JSON: a number has thousands of digits", SourceSpan(path)) from None
    trace = {"traceEvents": value} if isinstance(value, list) else value
    if not isinstance(trace, dict) or not {"traceEvents", "nodes"} & trace.keys():
        raise fail("neither a Kineto trace nor an execution trace", SourceSpan(path))
    return trace
