"""Changes calls that a capture records in another form than an accelerator runs them in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from irgraph.capture.common.calls import CapturedCall, Item, handles_in
from irgraph.capture.common.identity import Handle, Identities
from irgraph.ir.tensor import DeviceRef
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait

CPU_NOTES = (
    "captured on the CPU: tensors stand for the accelerator's, and copies between host and "
    "device are missing",
    "captured on the CPU: backward ran on the calling thread; it is shown on thread backward",
)
"""Notes on the differences between a program that ran on the CPU and one on an accelerator."""


def as_accelerator(calls: list[CapturedCall], identities: Identities) -> list[str]:
    """Change calls to the form they have on an accelerator; return a sentence for each change."""
    notes = []
    if _restore_in_place_index(calls):
        notes.append("IndexBackward0 adds in place on a device; the capture showed a copy")
    if _copy_host_indices(calls, identities):
        notes.append("copies of host indices to the device, which indexing makes, were added")
    if _steal_sparse_gradients(calls):
        notes.append("AccumulateGrad takes sparse gradients over; the capture showed a clone")
    return notes


def _restore_in_place_index(calls: Sequence[CapturedCall]) -> bool:
    """Undo an effect of the dispatch mode: torch then does not write into the fresh zeros.

    Return whether any call was changed.
    """
    operand_by_result: dict[Handle, Handle] = {}
    for scope in _walk(calls):
        if scope.name == "autograd.IndexBackward0":
            for call in scope.body:
                operand_by_result.update(_write_in_place(call, calls))
    if operand_by_result:
        _substitute(calls, lambda handle: operand_by_result.get(handle, handle))
    return bool(operand_by_result)


def _write_in_place(call: CapturedCall, calls: Sequence[CapturedCall]) -> dict[Handle, Handle]:
    """Change an ``index_put`` to write in place; return its operand by its former result."""
    if call.name != "aten.index_put" or len(call.results) != 1:
        return {}
    zeros, result = call.operands[0], call.results[0]
    _move_to_buffer(calls, result.buffer, zeros.buffer)
    call.name = "aten._index_put_impl_"
    call.results, call.written = [], [zeros]
    call.attributes["unsafe"] = True
    return {result: zeros}


def _steal_sparse_gradients(calls: Sequence[CapturedCall]) -> bool:
    """Undo another effect of the mode: it references gradients, so torch clones them.

    Return whether any call was changed.
    """
    changed = False
    for scope in _walk(calls):
        if scope.name == "autograd.AccumulateGrad":
            result_by_name = {call.name: call.results[0] for call in scope.body if call.results}
            for call in scope.body:
                changed = _share_sparse_parts(call, result_by_name) or changed
    return changed


def _share_sparse_parts(call: CapturedCall, result_by_name: Mapping[str, Handle]) -> bool:
    """Replace the clone of a sparse tensor by a new tensor over the same indices and values.

    Return whether ``call`` is such a clone.
    """
    if call.name != "aten.clone" or not {"aten._indices", "aten._values"} <= result_by_name.keys():
        return False
    call.name = "aten._sparse_coo_tensor_unsafe"
    call.operands = [result_by_name["aten._indices"], result_by_name["aten._values"]]
    call.attributes = {"size": call.results[0].shape}
    return True


def _copy_host_indices(calls: list[CapturedCall], identities: Identities) -> bool:
    """Insert copies of host indices before each indexing of a device tensor.

    Return whether any copy was inserted.
    """
    added = False
    indexing = names_with(Trait.INDEXED)
    for siblings in [calls, *(call.body for call in _walk(calls))]:
        for call in list(siblings):
            if call.name in indexing and call.operands[0].device != "cpu":
                added = _copy_indices(call, siblings, identities) or added
    return added


def _copy_indices(call: CapturedCall, siblings: list[CapturedCall], identities: Identities) -> bool:
    indices = call.operands[1] if len(call.operands) > 1 else ()
    copies: dict[Handle, Handle] = {}
    for index in handles_in(indices):
        if index.device == "cpu":
            copy, copies[index] = _copy(index, call, identities)
            position = next(i for i, other in enumerate(siblings) if other is call)
            siblings.insert(position, copy)
    if copies:
        device_indices = tuple(copies.get(index, index) for index in indices)
        call.operands = [call.operands[0], device_indices, *call.operands[2:]]
    return bool(copies)


def _copy(index: Handle, call: CapturedCall, identities: Identities) -> tuple[CapturedCall, Handle]:
    """Return the call that copies an index to the device of ``call``'s tensor, and the copy."""
    device = call.operands[0].device
    identities.buffers += 1
    copy = Handle(index.dtype, index.shape, None, identities.buffers, 0, device)

    def copy_call(name: str, body: list[CapturedCall]) -> CapturedCall:
        attributes: dict[str, Item] = {"device": DeviceRef(device)}
        return CapturedCall(
            name,
            [index],
            [copy],
            attributes,
            body=body,
            thread=call.thread,
            module=call.module,
            phase=call.phase,
            origin=call.origin,
        )

    return copy_call("aten.to", [copy_call("aten._to_copy", [])]), copy


def _walk(calls: Sequence[CapturedCall]) -> Iterator[CapturedCall]:
    for call in calls:
        yield from call.walk()


def _move_to_buffer(calls: Sequence[CapturedCall], old: int, new: int) -> None:
    for call in _walk(calls):
        for handle in handles_in([*call.operands, *call.results, *call.attributes.values()]):
            if handle.buffer == old:
                handle.buffer = new


def _substitute(calls: Sequence[CapturedCall], change: Callable[[Handle], Handle]) -> None:
    def value(item: Item) -> Item:
        if isinstance(item, Handle):
            return change(item)
        return tuple(map(value, item)) if isinstance(item, (list, tuple)) else item

    for call in _walk(calls):
        call.operands = [value(item) for item in call.operands]
        call.results = [value(item) for item in call.results]
        call.attributes = {key: value(item) for key, item in call.attributes.items()}
        call.written = [change(handle) for handle in call.written]
