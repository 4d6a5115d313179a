"""Take names, paths and hosts out of traces, so that they can be shared."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from irgraph.anonymise.public_names import hashed, is_public_kernel, is_public_operator
from irgraph.capture.kineto.reading.container import blocks
from irgraph.capture.kineto.reading.health import Health
from irgraph.diagnostics import Place, fail
from irgraph.files import write_atomic

HEADER = ("schemaVersion", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds", "schema")
"""Top-level fields of a trace that are kept besides its events or nodes."""

ARGUMENTS = frozenset((
    "External id", "external id", "Record function id", "Sequence number", "Fwd thread id",
    "correlation", "stream", "device", "bytes", "Ev Idx", "cbid", "context", "queued",
    "Input Dims", "Input dims", "Input type", "Input Strides", "registers per thread",
    "shared memory", "blocks per SM", "warps per SM", "grid", "block", "Collective name",
    "In msg nelems", "Out msg nelems", "Group size", "dtype", "cuda_sync_kind", "wait_on_stream",
    "wait_on_cuda_event_record_corr_id", "wait_on_cuda_event_id", "memory bandwidth (GB/s)",
    "est. achieved occupancy %",
))  # fmt: skip
"""Arguments of events that do not identify the program; all others are dropped."""

_PUBLIC = re.compile(
    r"(?:aten|autograd|c10d|torch|prim|quantized|fbgemm|nccl|detach|profiler|torchvision)\b.*|"
    r"\w*Backward\d*|ProfilerStep#\d+|Optimizer\.(?:step|zero_grad)#\w+\.\w+|"
    r"enumerate\(DataLoader\)#\w+(?:\.__next__)?|(?:cuda|cu|hip)[A-Z]\w*|"
    r"\[pytorch\|profiler\|.*|Memcpy .*|Memset.*|record_param_comms|Activity Buffer Request|"
    r"(?:process|thread)_(?:name|labels|sort_index)|fwdbwd|ac2g|async|Iteration Start.*|"
    r"Record Window End|PyTorch Profiler.*"
)
_NODE = re.compile(r"(?:autograd\b.*|\w*Backward\d*)")
_NODE_KEYS = frozenset((
    "id", "name", "inputs", "outputs", "input_shapes", "input_types", "output_shapes",
    "output_types", "attrs", "parent", "ctrl_deps", "fw_parent", "seq_id", "scope", "tid",
    "fw_tid", "op_schema", "rf_id",
))  # fmt: skip
_DEVICE_KINDS = frozenset(("kernel", "Kernel", "gpu_memcpy", "gpu_memset", "Memcpy", "Memset"))
_TEXT = re.compile(r"(?:cuda|cpu|meta|hip|mps)(?::\d+)?|<None>|[A-Z][A-Za-z]*")


class Anonymiser:
    """Renames the same way in every file it is given, so that they still belong together.

    Attributes:
        names: new names of what was renamed.
        key: where given, kernels and operators outside public libraries are hashed with it.
    """

    def __init__(self, key: str = "") -> None:
        self.names: dict[str, str] = {}
        self.key = key
        self._numbers: dict[int | str, int] = {}

    def name(self, text: str) -> str:
        """Return a name with the words of torch, CUDA and its libraries, or a number."""
        evaluate = "autograd::engine::evaluate_function: "
        if text.startswith(evaluate):
            return evaluate + self.name(text.removeprefix(evaluate))
        if _PUBLIC.fullmatch(text) and "/" not in text and not self._hides(text):
            return text
        label = "nn.Module: " if text.startswith("nn.Module: ") else ""
        return label + self.names.setdefault(text, f"name{len(self.names) + 1}")

    def _hides(self, text: str) -> bool:
        """Return whether an autograd node that looks like torch's own is the program's."""
        return bool(self.key) and _NODE.fullmatch(text) is not None and not is_public_operator(text)

    def kernel(self, text: str) -> str:
        """Return a kernel's name, hashed where it is no public library's and there is a key."""
        if not self.key or is_public_kernel(text):
            return text
        return f"kernel_{hashed(text, self.key)}"

    def operator(self, text: str) -> str:
        """Return the dotted name of a model's operator, hashed likewise."""
        if not self.key or is_public_operator(text):
            return text
        root = "autograd" if text.startswith("autograd.") else "private"
        return f"{root}.op_{hashed(text, self.key)}"

    def number(self, value: Any) -> Any:  # noqa: ANN401
        """Return a process or thread number counted from 1; words of the format stay."""
        if isinstance(value, str) and not value.lstrip("-").isdecimal():
            return value if value.startswith("stream ") or value in ("Spans", "Traces") else "x"
        return self._numbers.setdefault(int(value), len(self._numbers) + 1) if value else value

    def trace(self, trace: dict[str, Any]) -> dict[str, Any]:
        """Return a Kineto or execution trace without anything that identifies the program."""
        kept = {key: trace[key] for key in HEADER if key in trace}
        if isinstance(trace.get("distributedInfo"), dict):
            info = trace["distributedInfo"]
            known = ("backend", "rank", "world_size")
            kept["distributedInfo"] = {key: info[key] for key in known if key in info}
        if isinstance(trace.get("nodes"), list):
            pid = self.number(trace.get("pid", 0))
            return {**kept, "pid": pid, "nodes": [self._node(n) for n in trace["nodes"]]}
        events = [self._event(e) for e in trace.get("traceEvents", ()) if isinstance(e, dict)]
        return {**kept, "traceEvents": events}

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        found = dict(event)
        if event.get("cat") not in _DEVICE_KINDS:
            found["name"] = self.name(str(event.get("name", "")))
            for key in ("pid", "tid"):
                if key in event:
                    found[key] = self.number(event[key])
        else:
            found["name"] = self.kernel(str(event.get("name", "")))
        args = event.get("args")
        if isinstance(args, dict):
            found["args"] = {k: v for k, v in args.items() if k in ARGUMENTS}
            module = args.get("Module Hierarchy")
            if module:
                found["args"]["Module Hierarchy"] = self.name(str(module))
        return found

    def _node(self, node: dict[str, Any]) -> dict[str, Any]:
        found = {key: value for key, value in node.items() if key in _NODE_KEYS}
        found["name"] = self.name(str(node.get("name", "")))
        for key in ("inputs", "outputs"):
            found[key] = self._values(found.get(key))
        found["attrs"] = [
            a for a in node.get("attrs", ()) if not _is_text(a) or a.get("name") == "op_schema"
        ]
        return found

    def _values(self, value: Any) -> Any:  # noqa: ANN401
        if isinstance(value, dict):
            return {key: self._values(v) if key == "values" else v for key, v in value.items()}
        if isinstance(value, list):
            return [self._values(v) for v in value]
        if isinstance(value, str) and not _TEXT.fullmatch(value):
            return self.names.setdefault(value, f"name{len(self.names) + 1}")
        return value


def _is_text(attribute: dict[str, Any]) -> bool:
    return isinstance(attribute.get("value"), str) and bool(attribute.get("value"))


def anonymise(paths: list[str], folder: str | Path, *, key: str = "") -> list[Path]:
    """Write anonymised copies of traces to a folder: ``et1.json.gz``, ``kineto1.json.gz``, …, each.

    With a ``key``, names of kernels and autograd nodes outside public libraries are hashed.

    Raises:
        IrgraphError: a file cannot be read, or is no whole JSON trace (exit code 4).
    """
    place = Path(folder)
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise fail(f"cannot make the folder: {error.strerror}", Place(str(place))) from None
    anonymiser = Anonymiser(key)
    counts: dict[str, int] = {}
    written = []
    for path in paths:
        found = anonymiser.trace(_load(path))
        kind = "et" if "nodes" in found else "kineto"
        counts[kind] = counts.get(kind, 0) + 1
        target = place / f"{kind}{counts[kind]}.json.gz"
        write_atomic(target, gzip.compress(_encode(found), 6, mtime=0))
        written.append(target)
    return written


def _encode(trace: dict[str, Any]) -> bytes:
    return json.dumps(trace, separators=(",", ":")).encode()


def _load(path: str) -> dict[str, Any]:
    loads: Callable[[str], Any] = json.JSONDecoder(strict=False).decode
    text = b"".join(blocks(path, Health(path), any_trace=True)).decode("utf-8", "replace")
    try:
        value = loads(text)
    except json.JSONDecodeError as error:
        message = f"broken JSON: {error.msg}"
        hint = "only whole traces are anonymised: what is broken might hide a name"
        raise fail(message, Place(path, "", error.lineno, error.colno), hint=hint) from None
    trace = {"traceEvents": value} if isinstance(value, list) else value
    if not isinstance(trace, dict) or not {"traceEvents", "nodes"} & trace.keys():
        raise fail("neither a Kineto trace nor an execution trace", Place(path))
    return trace
