"""What a captured step would do on an accelerator and the capture does in another form."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from irgraph.capture.calls import Call, Item, handles_in
from irgraph.capture.identity import Handle, Identities
from irgraph.ir.tensor import DeviceRef

INDEXING = ("aten.index", "aten.index_put", "aten.index_put_", "aten._index_put_impl_")


def as_accelerator(calls: list[Call], identities: Identities) -> list[str]:
    """Change calls to the form they have on an accelerator; return a sentence for each change."""
    notes = []
    if _in_place_index_backward(calls):
        notes.append("IndexBackward0 adds in place on a device; the capture showed a copy")
    if _copy_host_indices(calls, identities):
        notes.append("copies of host indices to the device, which indexing makes, were added")
    if _take_sparse_gradients(calls):
        notes.append("AccumulateGrad takes sparse gradients over; the capture showed a clone")
    return notes


def _in_place_index_backward(calls: Sequence[Call]) -> bool:
    """Undo what a dispatch mode changes: torch then gives up writing into the fresh zeros."""
    changed: dict[int, Handle] = {}
    for call in _walk(calls):
        if call.name != "autograd.IndexBackward0":
            continue
        for inner in call.body:
            if inner.name == "aten.index_put" and len(inner.results) == 1:
                zeros = inner.operands[0]
                changed[id(inner.results[0])] = zeros
                _move(calls, inner.results[0].buffer, zeros.buffer)
                inner.name = "aten._index_put_impl_"
                inner.results = []
                inner.written = [zeros]
                inner.attributes["unsafe"] = True
    if changed:
        _substitute(calls, lambda handle: changed.get(id(handle), handle))
    return bool(changed)


def _take_sparse_gradients(calls: Sequence[Call]) -> bool:
    """Undo another change by the mode: it holds on to gradients, so torch would clone them."""
    found = False
    for call in _walk(calls):
        if call.name != "autograd.AccumulateGrad":
            continue
        parts = {inner.name: inner.results[0] for inner in call.body if inner.results}
        for inner in call.body:
            if inner.name == "aten.clone" and {"aten._indices", "aten._values"} <= parts.keys():
                shape = inner.results[0].shape
                inner.name = "aten._sparse_coo_tensor_unsafe"
                inner.operands = [parts["aten._indices"], parts["aten._values"]]
                inner.attributes = {"size": shape}
                found = True
    return found


def _copy_host_indices(calls: list[Call], identities: Identities) -> bool:
    """Put before each indexing of a device tensor the copies that its host indices need."""
    added = False
    for siblings in [calls, *(call.body for call in _walk(calls))]:
        for call in list(siblings):
            if call.name not in INDEXING or call.operands[0].device == "cpu":
                continue
            indices = call.operands[1] if len(call.operands) > 1 else ()
            copies: dict[int, Handle] = {}
            for index in handles_in(indices):
                if index.device == "cpu":
                    copy, copies[id(index)] = _copy(index, call, identities)
                    siblings.insert(_position(siblings, call), copy)
            if copies:
                moved = tuple(copies.get(id(index), index) for index in indices)
                call.operands = [call.operands[0], moved, *call.operands[2:]]
                added = True
    return added


def _copy(index: Handle, call: Call, identities: Identities) -> tuple[Call, Handle]:
    """Return the call that copies an index tensor beside ``call``'s tensor, and the copy."""
    device = call.operands[0].device
    identities.buffers += 1
    copy = Handle(index.dtype, index.shape, None, identities.buffers, 0, device)

    def made(name: str, body: list[Call]) -> Call:
        attributes: dict[str, Item] = {"device": DeviceRef(device)}
        return Call(
            name, [index], [copy], attributes, body=body,
            thread=call.thread, module=call.module, phase=call.phase, origin=call.origin,
        )  # fmt: skip

    return made("aten.to", [made("aten._to_copy", [])]), copy


def _position(siblings: Sequence[Call], call: Call) -> int:
    return next(i for i, other in enumerate(siblings) if other is call)


def _walk(calls: Sequence[Call]) -> Iterator[Call]:
    for call in calls:
        yield from call.walk()


def _move(calls: Sequence[Call], old: int, new: int) -> None:
    for call in _walk(calls):
        for handle in handles_in([*call.operands, *call.results, *call.attributes.values()]):
            if handle.buffer == old:
                handle.buffer = new


def _substitute(calls: Sequence[Call], change: Callable[[Handle], Handle]) -> None:
    def value(item: Item) -> Item:
        if isinstance(item, Handle):
            return change(item)
        return tuple(map(value, item)) if isinstance(item, (list, tuple)) else item

    for call in _walk(calls):
        call.operands = [value(item) for item in call.operands]
        call.results = [value(item) for item in call.results]
        call.attributes = {key: value(item) for key, item in call.attributes.items()}
        call.written = [change(handle) for handle in call.written]
