"""Joins what the dispatch mode recorded with the nodes of the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irgraph.capture.common.nodes import MISSING_CALLER, RecordedNode, TraceTensor, saved_copies
from irgraph.capture.common.resolve import tensors_in
from irgraph.capture.emulate.flex.trace_score import ASIDE
from irgraph.capture.live.recorder import HOLLOW, MARK, CallRecord, Recording

MODE = "PythonDispatchMode"


def join(nodes: Sequence[RecordedNode], recording: Recording) -> dict[int, CallRecord]:
    """Return each device call's record by the id of its node, which then stands for all below it.

    Only the copies stay that its backward reads, and those that the call itself reads: of operands
    that are conjugated or negated no further than by a mark.
    The mode shows as ``op > PythonDispatchMode > irgraph#7 > op``.
    """
    by_id = {node.id: node for node in nodes}
    records: dict[int, CallRecord] = {}
    for node in nodes:
        if node.name.startswith(MARK):
            record = recording.calls[int(node.name[len(MARK) :])]
            owner = _owner(node, by_id, record)
            if owner is not None:
                records[owner.id] = record
                owner.schema = record.schema
                owner.children = _copies(owner, records)
    return records


def _copies(owner: RecordedNode, records: Mapping[int, CallRecord]) -> list[RecordedNode]:
    saved = {node.id for node in saved_copies(owner)}
    return [
        child
        for child in owner.children
        if child.id in saved or (child.id in records and child.name == "aten::clone")
    ]


def _owner(
    mark: RecordedNode, by_id: Mapping[int, RecordedNode], record: CallRecord
) -> RecordedNode | None:
    """Return the operator whose call a mark stands in, or ``None`` for a call of the mode's own."""
    mode = by_id.get(mark.parent)
    if mode is None or mode.name != MODE:
        return None
    if mode.parent == MISSING_CALLER:
        mode.name, mode.schema = record.name, record.schema
        return mode
    above = by_id.get(mode.parent)
    while above is not None and not above.schema and record.name.endswith("::" + above.name):
        above = by_id.get(above.parent)
    return above if above is not None and above.name == record.name else None


def opened(nodes: Sequence[RecordedNode], records: Mapping[int, CallRecord]) -> list[RecordedNode]:
    """Return nodes with the calls on tensors that wrap others replaced by what those called.

    A nested tensor has no memory of its own: what is computed are calls on what it holds.
    """
    return [kept for node in nodes for kept in _opened(node, records)[0]]


def _opened(
    node: RecordedNode, records: Mapping[int, CallRecord]
) -> tuple[list[RecordedNode], bool]:
    """Return what stands for a node, and whether it is a call on tensors that wrap others."""
    parts = [_opened(child, records) for child in node.children if child.name != HOLLOW]
    hollow = len(parts) < len(node.children)
    node.children = [kept for found, _ in parts for kept in found]
    if node.schema and node.id not in records:
        hollow = hollow or any(inside for _, inside in parts) or _has_hollow(node)
    if not hollow:
        return [node], False
    if node.children and node.children[-1].sequence < 0:
        node.children[-1].sequence = node.sequence  # by which its backward call finds it
    return node.children, True


def _has_hollow(node: RecordedNode) -> bool:
    tensors = tensors_in([*node.inputs, *node.outputs])
    return any(isinstance(tensor, TraceTensor) and not tensor.storage for tensor in tensors)


def unmarked(nodes: Sequence[RecordedNode]) -> list[RecordedNode]:
    """Return nodes with the marks taken away that the mode leaves at every level.

    A label of the program's own shows as ``PythonDispatchMode("label") > ...``, around what the
    label is around.
    """
    return [kept for node in nodes for kept in _unmarked(node)]


def _unmarked(node: RecordedNode) -> list[RecordedNode]:
    if node.name.startswith(MARK) or (node.name == MODE and node.inputs[:1] == [ASIDE]):
        return []
    node.children = unmarked(node.children)
    if node.name != MODE:
        return [node]
    if node.inputs and isinstance(node.inputs[0], str) and not node.inputs[0].startswith("<"):
        node.name = node.inputs[0]
        node.inputs = []
        node.children = [child for child in node.children if child.name != node.name]
        return [node]
    return node.children


LOADER = "enumerate(DataLoader)"
"""What the labels of a loader's fetches begin with."""


def without_loading(nodes: list[RecordedNode]) -> list[str]:
    """Take away what loaders call to make a batch; return a sentence if there was anything.

    It differs by batch size, and is the work of other processes where a loader has workers.
    """
    count = _unloaded(nodes)
    note = "the loader makes batches beside the step, as one with workers does: left out"
    return [f"{note} ({count} calls)"] if count else []


def _unloaded(nodes: list[RecordedNode]) -> int:
    loading = [node for node in nodes if node.name.startswith(LOADER)]
    nodes[:] = [node for node in nodes if not node.name.startswith(LOADER)]
    return sum(len(node.children) for node in loading) + sum(_unloaded(n.children) for n in nodes)
