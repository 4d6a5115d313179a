"""Joins what the dispatch mode recorded with the nodes of the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irgraph.capture.nodes import Node
from irgraph.capture.recorder import MARK, CallRecord, Recording

MODE = "PythonDispatchMode"


def join(nodes: Sequence[Node], recording: Recording) -> dict[int, CallRecord]:
    """Return each device call's record by its node's id, and take the mode's marks away.

    The mode shows as ``op > PythonDispatchMode > irgraph#7 > op``; with a label of the program's
    own it shows as ``PythonDispatchMode("label") > ...``, around what the label is around.
    """
    by_id = {node.id: node for node in nodes}
    records: dict[int, CallRecord] = {}
    for node in nodes:
        if node.name.startswith(MARK):
            owner = _owner(node, by_id, recording)
            if owner is not None:
                records[owner.id] = recording.calls[int(node.name[len(MARK) :])]
                owner.children.clear()
    for node in nodes:
        node.children = [kept for child in node.children for kept in _unmarked(child)]
    return records


def _owner(mark: Node, by_id: Mapping[int, Node], recording: Recording) -> Node | None:
    """Return the operator whose call a mark stands in, or ``None`` for a call of the mode's own."""
    mode = by_id.get(mark.parent)
    if mode is None or mode.name != MODE:
        return None
    name = recording.calls[int(mark.name[len(MARK) :])].name
    above = by_id.get(mode.parent)
    while above is not None and not above.schema and name.endswith("::" + above.name):
        above = by_id.get(above.parent)
    return above if above is not None and above.name == name else None


def _unmarked(node: Node) -> list[Node]:
    if node.name.startswith(MARK):
        return []
    if node.name != MODE:
        return [node]
    if node.inputs and isinstance(node.inputs[0], str) and not node.inputs[0].startswith("<"):
        node.name = node.inputs[0]
        node.inputs = []
        node.children = [child for child in node.children if child.name != node.name]
        return [node]
    return [kept for child in node.children for kept in _unmarked(child)]
