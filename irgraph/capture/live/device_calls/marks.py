"""Joins the dispatch mode's recording with the nodes of the trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from irgraph.capture.common.nodes import MISSING_CALLER, RecordedNode, TraceTensor, saved_copies
from irgraph.capture.common.resolve import tensors_in
from irgraph.capture.emulate.cuda import WRAPPER_CONVERSION
from irgraph.capture.emulate.flex.trace_score import ASIDE
from irgraph.capture.live.device_calls.recorder import MARK, WRAPPER_MARK, CallRecord, Recording

MODE = "PythonDispatchMode"


def join(nodes: Sequence[RecordedNode], recording: Recording) -> dict[int, CallRecord]:
    """Return each device call's record by the id of its node, without the calls of its kernel.

    As children remain the calls that autograd makes before: copies that the call's backward reads,
    or that the call itself reads (of operands whose conjugation or negation was only a flag), and
    hooks of saved operands. Hooks of saved results become the call's ``followers``.
    The mode appears as ``op > PythonDispatchMode > irgraph#7 > op``.
    """
    by_id = {node.id: node for node in nodes}
    records: dict[int, CallRecord] = {}
    mark_ids: dict[int, int] = {}
    for node in nodes:
        if node.name.startswith(MARK):
            record = recording.calls[int(node.name[len(MARK) :])]
            owner = _owner(node, by_id, record)
            if owner is not None:
                records[owner.id] = record
                owner.schema = record.schema
                mark_ids[owner.id] = node.id
    for owner_id, mark_id in reversed(mark_ids.items()):
        _separate(by_id[owner_id], mark_id, records)
    return records


def _separate(owner: RecordedNode, mark_id: int, records: Mapping[int, CallRecord]) -> None:
    """Reduce a call's children to the recorded calls before its kernel and after it."""
    saved = {node.id for node in saved_copies(owner)}
    children = owner.children
    owner.children = []
    for child in children:
        inner = list(child.walk())
        if any(node.id == mark_id for node in inner):
            continue  # the kernel
        if child.id in saved or (child.id < mark_id and _has_record(inner, records)):
            owner.children.append(child)
        elif _has_record(inner, records):
            owner.followers.append(child)


def _has_record(nodes: Sequence[RecordedNode], records: Mapping[int, CallRecord]) -> bool:
    return any(node.id in records for node in nodes)


def _owner(
    mark: RecordedNode, by_id: Mapping[int, RecordedNode], record: CallRecord
) -> RecordedNode | None:
    """Return the operator whose call encloses a mark, ``None`` for a call by the mode itself."""
    mode = by_id.get(mark.parent)
    if mode is None or mode.name != MODE:
        return None
    if mode.parent == MISSING_CALLER:
        mode.name, mode.schema = record.name, record.schema
        return mode
    caller = by_id.get(mode.parent)
    while caller is not None and not caller.schema and record.name.endswith("::" + caller.name):
        caller = by_id.get(caller.parent)
    return caller if caller is not None and caller.name == record.name else None


def unwrap_calls(
    nodes: Sequence[RecordedNode], records: Mapping[int, CallRecord]
) -> list[RecordedNode]:
    """Return nodes with calls on tensors that wrap others replaced by the calls inside them.

    A nested tensor has no own memory: its computations are calls on the tensors that it wraps.
    """
    return [inner for node in nodes for inner in _unwrap(node, records)[0]]


def _unwrap(
    node: RecordedNode, records: Mapping[int, CallRecord]
) -> tuple[list[RecordedNode], bool]:
    """Return a node's replacements, and whether it is a call on tensors that wrap others."""
    unwrapped = [_unwrap(child, records) for child in node.children if child.name != WRAPPER_MARK]
    is_wrapper = len(unwrapped) < len(node.children)
    node.children = [child for children, _ in unwrapped for child in children]
    if node.schema and node.id not in records:
        is_wrapper = is_wrapper or any(wraps for _, wraps in unwrapped) or _has_wrapper(node)
    if not is_wrapper:
        return [node], False
    if node.children and node.children[-1].sequence < 0:
        node.children[-1].sequence = node.sequence  # its backward call refers to this number
    return node.children, True


def _has_wrapper(node: RecordedNode) -> bool:
    tensors = tensors_in([*node.inputs, *node.outputs])
    return any(isinstance(tensor, TraceTensor) and not tensor.storage for tensor in tensors)


def remove_marks(nodes: Sequence[RecordedNode]) -> list[RecordedNode]:
    """Return nodes without the marks that the mode adds at every level.

    A label of the program appears as ``PythonDispatchMode("label") > ...`` around the labelled
    calls.
    """
    return [inner for node in nodes for inner in _unmark(node)]


def _unmark(node: RecordedNode) -> list[RecordedNode]:
    if WRAPPER_CONVERSION in (node.name, *node.inputs[:1]):
        # a call without others inside it did nothing
        return remove_marks([child for child in node.children if child.children])
    if node.name.startswith(MARK) or (node.name == MODE and node.inputs[:1] == [ASIDE]):
        return []
    node.children = remove_marks(node.children)
    if node.name != MODE:
        return [node, *remove_marks(node.followers)]
    if is_label(node):
        node.name = node.inputs[0]
        node.inputs = []
        node.children = [child for child in node.children if child.name != node.name]
        return [node]
    return node.children


def is_label(node: RecordedNode) -> bool:
    """Return whether a dispatch mode's range is a label of the program."""
    return bool(node.inputs) and isinstance(node.inputs[0], str) and node.inputs[0][:1] != "<"
