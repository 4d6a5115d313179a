"""Removes the calls of a recording that never reached the device.

A dispatch mode of the program above the recorder (a checkpoint that saves results, a cache) may
answer a call, and a call on tensors that wrap others may do nothing. An execution trace has such
calls, but the recorder has no record of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from irgraph.capture.common.lowering import call_below_autograd
from irgraph.capture.common.nodes import RecordedNode, TraceTensor
from irgraph.capture.common.resolve import tensors_in
from irgraph.capture.live.device_calls.marks import MODE, is_label
from irgraph.capture.live.device_calls.recorder import WRAPPER_MARK, CallRecord


def answered_calls(
    nodes: Sequence[RecordedNode], records: Mapping[int, CallRecord]
) -> AbstractSet[int]:
    """Return the ids of operators that reached a dispatch mode, but not the recorder below it.

    Calls that torch makes with dispatch modes off, such as the allocation of a literal, are not
    among them: they ran. Nor are composites, which the recorder expands under inference mode.
    """
    return {
        node.id
        for node in nodes
        if node.schema and node.id not in records and any(map(_is_answer, node.children))
        if not _is_composite(node)
    }


def _is_answer(node: RecordedNode) -> bool:
    """Return whether a range is a dispatch mode's, and the recorder left it no mark."""
    is_mode = node.name == MODE and not is_label(node)
    return is_mode and not any(child.name == WRAPPER_MARK for child in node.children)


def remove_unexecuted(
    nodes: Sequence[RecordedNode],
    records: Mapping[int, CallRecord],
    answered_ids: AbstractSet[int],
) -> list[RecordedNode]:
    """Return nodes without the operators that did not run on the device.

    The calls inside them remain. A composite operator without a device call, such as a conversion
    to the same type, costs time of the host: it remains if it returns operands of recorded calls.
    """
    recorded_tensors = {
        tensor
        for node in nodes
        for inner in node.walk()
        if inner.id in records
        for tensor in tensors_in([*inner.inputs, *inner.outputs])
    }
    calls = _ExecutedCalls(records, answered_ids, recorded_tensors)
    return [part for node in nodes for part in calls.replacements(node)[0]]


@dataclass(slots=True)
class _ExecutedCalls:
    """Properties by which executed calls are distinguished."""

    records: Mapping[int, CallRecord]
    answered_ids: AbstractSet[int]
    recorded_tensors: set[TraceTensor]

    def replacements(self, node: RecordedNode) -> tuple[list[RecordedNode], bool]:
        """Return a node's replacements, and whether it is, or has, a call that did not run."""
        if node.id in self.records or call_below_autograd(node, self.records) is not node:
            return [node], False
        parts = [self.replacements(child) for child in node.children]
        node.children = [child for children, _ in parts for child in children]
        if not node.schema:
            return [node], False
        is_incomplete = any(incomplete for _, incomplete in parts)
        if is_incomplete or node.id in self.answered_ids:
            _pass_on_sequence(node)
            return node.children, True
        is_idle = not node.children and _is_composite(node)
        return ([] if is_idle and not self._returns_operands(node) else [node]), False

    def _returns_operands(self, node: RecordedNode) -> bool:
        """Return whether an operator's results are operands, and recorded calls have them all."""
        operands = set(tensors_in(node.inputs))
        return operands.issuperset(tensors_in(node.outputs)) and operands <= self.recorded_tensors


def _is_composite(node: RecordedNode) -> bool:
    import torch

    name = node.schema.partition("(")[0]
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, "CompositeImplicitAutograd"))


def _pass_on_sequence(node: RecordedNode) -> None:
    """Copy a removed call's autograd number, which its backward call names, to its last call."""
    if node.children and node.children[-1].sequence < 0:
        node.children[-1].sequence = node.sequence
