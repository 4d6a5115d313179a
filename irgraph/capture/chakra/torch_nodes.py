"""Restores the JSON of a PyTorch execution trace from the nodes that Chakra's converter wrote.

``src/converter/pytorch_converter.py`` of github.com/mlcommons/chakra writes each host operator as
a node with the caller in ``ctrl_deps``, torch's numbers as attributes, and the values, shapes and
types of operands and results as Python lists printed as text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from irgraph.capture.chakra.schema import Message, attributes
from irgraph.capture.common.forest import BOOKKEEPING
from irgraph.diagnostics import SourceSpan, fail

TENSOR = "Tensor("
"""Prefix of the type of a tensor operand."""

COPIED_ATTRIBUTES = ("rf_id", "fw_parent", "seq_id", "scope", "tid", "fw_tid", "op_schema")
"""Attributes of an execution trace's nodes that the converter copies."""

MAX_LIST_CHARACTERS = 1 << 20
"""Maximum characters of a printed list: the converter writes no longer ones."""


def execution_trace(facts: Mapping[str, Any], nodes: Iterable[Message], source: str) -> bytes:
    """Return the execution trace of the host's nodes as JSON.

    ``facts`` are the file's attributes, ``source`` is its name in messages. Raises
    ``IrgraphError`` with the node whose lists cannot be read, or whose caller is missing.
    """
    host = [(node, values) for node in nodes if (values := attributes(node)).get("is_cpu_op", True)]
    _check_callers([node for node, _ in host], source)
    rows = [_row(node, node_values, source) for node, node_values in host]
    file = {"schema": str(facts.get("schema", "")), "pid": facts.get("pid", 0), "nodes": rows}
    return msgspec.json.encode(file)


def _check_callers(nodes: Sequence[Message], source: str) -> None:
    """Refuse operators without their callers: inner ones would be counted again as outer ones.

    Torch writes a node when its call ends, the converter names a caller only if it came before,
    and it writes nodes by their number: the nesting of calls is lost then.
    """
    orphans = [n for n in nodes if not n.ctrl_deps and not n.name.startswith(BOOKKEEPING)]
    if not orphans:
        return
    count = f"{len(orphans)} of {len(nodes)} host nodes"
    first = f"node {orphans[0].id} ({orphans[0].name[:60]!r}) is the first"
    raise fail(
        f"{count} have no caller in the Chakra trace, so their nesting is unknown: {first}",
        SourceSpan(source),
        hint="sort the nodes of the PyTorch trace before chakra_converter reads it (jq '.nodes |= "
        "sort_by(.id)'), or lower that trace itself",
    )


def _row(node: Message, values: Mapping[str, Any], source: str) -> dict[str, Any]:
    place = f"node {node.id} ({node.name[:60]!r})"
    attrs = [{"name": name, "value": values[name]} for name in COPIED_ATTRIBUTES if name in values]
    return {
        "id": node.id,
        "name": node.name,
        "ctrl_deps": node.ctrl_deps[0] if node.ctrl_deps else 0,
        "inputs": _side(node.inputs, f"{place}: inputs", source),
        "outputs": _side(node.outputs, f"{place}: outputs", source),
        "attrs": attrs,
    }


def _side(side: Message, place: str, source: str) -> dict[str, msgspec.Raw]:
    texts = {"values": side.values, "shapes": side.shapes, "types": side.types}
    return {name: _json_list(text, f"{place}, {name}", source) for name, text in texts.items()}


def _json_list(text: str, place: str, source: str) -> msgspec.Raw:
    """Convert a printed Python list to JSON; only literals are parsed, and no code is run."""
    try:
        parsed = ast.literal_eval(text or "[]") if len(text) <= MAX_LIST_CHARACTERS else None
        if isinstance(parsed, list):
            return msgspec.Raw(msgspec.json.encode(parsed))
    except (ValueError, TypeError, SyntaxError, ArithmeticError, MemoryError, RecursionError):
        pass  # reported below
    message = f"{place}: this is no list of plain values as Python prints it: {text[:60]!r}"
    raise fail(message, SourceSpan(source))
