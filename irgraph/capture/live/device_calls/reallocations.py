"""Memory whose size the program changes: ``tensor.untyped_storage().resize_(0)``.

Fully sharded training frees the memory below the tensors of its gathered weights, and allocates it
again for the next use. Each allocation opens a new buffer of the model. The recorder calls
``aten.empty`` for it; here the tensors in that memory become its result, or views of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from unittest import mock

from irgraph.capture.common.calls import CapturedCall, Item, handles_in
from irgraph.capture.common.identity import Exact, Handle, Identities
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.capture.live.device_calls.recorder import Recording
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.tensor import DType, row_major


@contextlib.contextmanager
def recorded_reallocations(recording: Recording, known_values: KnownValues) -> Iterator[None]:
    """Record, within the context, allocations by changes of a storage's size."""
    import torch

    original = torch.UntypedStorage.resize_

    def resize(storage: Torch, size: int) -> Torch:
        was_empty = not storage.nbytes()
        result = original(storage, size)
        known_values.forget(storage)
        memory = None
        if was_empty and size:
            memory = torch.empty(size, dtype=torch.uint8, device=storage.device)
        recording.note_resize(storage, memory)
        return result

    with mock.patch.object(torch.UntypedStorage, "resize_", resize, create=True):
        yield


def define_reallocated(
    calls: list[CapturedCall], reallocations: Sequence[Exact], identities: Identities
) -> None:
    """Define the tensors in reallocated memory by its allocation, or by views of it."""
    handles = (identities.find_exact(exact) for exact in reallocations)
    buffers = {handle.buffer for handle in handles if handle is not None}
    if buffers:
        _Definitions(buffers).add_to(calls)


class _Definitions:
    """Tensors in reallocated memory that calls have defined."""

    def __init__(self, buffers: set[int]) -> None:
        self._buffers = buffers
        self._defined: set[Handle] = set()
        self._allocations: dict[int, CapturedCall] = {}
        self._flat_tensors: dict[tuple[int, str], Handle] = {}

    def add_to(self, calls: list[CapturedCall]) -> None:
        """Insert views before each call with an undefined operand."""
        for call in list(calls):
            views: list[CapturedCall] = []
            for handle in handles_in([*call.operands, *call.attributes.values()]):
                if handle.buffer in self._allocations and handle not in self._defined:
                    views += self._definition(handle, call)
            index = next(i for i, other in enumerate(calls) if other is call)
            calls[index:index] = views
            self.add_to(call.body)
            self._note_results(call)

    def _note_results(self, call: CapturedCall) -> None:
        results = list(handles_in(call.results))
        self._defined.update(results)
        if call.name == "aten.empty" and results[0].buffer in self._buffers:
            self._allocations.setdefault(results[0].buffer, call)

    def _definition(self, handle: Handle, user: CapturedCall) -> list[CapturedCall]:
        """Return the views that define a tensor, none if its memory's allocation returns it."""
        views: list[CapturedCall] = []
        self._defined.add(handle)
        flat = self._flat_tensors.get((handle.buffer, handle.dtype))
        if flat is None:
            flat, views = self._flat_tensor(handle, user)
        if flat is not handle:
            layout = {
                "size": handle.shape,
                "stride": handle.strides or row_major(handle.shape),
                "storage_offset": handle.offset // ITEMSIZE[handle.dtype],
            }
            views.append(_call(user, "aten.as_strided", flat, handle, layout))
        return views

    def _flat_tensor(self, handle: Handle, user: CapturedCall) -> tuple[Handle, list[CapturedCall]]:
        """Return all memory below a tensor as a tensor of its type, and the call that views it."""
        allocation = self._allocations[handle.buffer]
        (memory,) = allocation.results
        shape = (memory.shape[0] * ITEMSIZE[memory.dtype] // ITEMSIZE[handle.dtype],)
        flat = handle
        if (handle.offset, handle.shape, handle.strides) != (0, shape, None):
            flat = Handle(handle.dtype, shape, None, handle.buffer, 0, handle.device)
        self._flat_tensors[handle.buffer, handle.dtype] = flat
        is_first = sum(buffer == handle.buffer for buffer, _ in self._flat_tensors) == 1
        dtype: dict[str, Item] = {"dtype": DType(handle.dtype)}
        if not is_first:
            return flat, [_call(user, "aten.view", memory, flat, dtype)]
        allocation.results = [flat]
        allocation.attributes |= {"size": shape, **dtype}
        return flat, []


def _call(
    user: CapturedCall, name: str, operand: Handle, result: Handle, attributes: dict[str, Item]
) -> CapturedCall:
    """Return a call before another one, in the same place of the program."""
    return CapturedCall(
        name,
        [operand],
        [result],
        attributes,
        thread=user.thread,
        stream=user.stream,
        module=user.module,
        phase=user.phase,
        origin=user.origin,
    )
