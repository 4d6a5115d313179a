"""Identity of recorded tensors: equal descriptions of one tensor, and tensors that share memory.

A recording's tensor and storage ids are used again after a free. Therefore each definition opens a
new handle and each allocation a new buffer; an id denotes the handle or buffer that was bound to it
last, as long as the description still fits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct

from irgraph.capture.common.nodes import Recorded, TraceTensor
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.tensor import canonical_strides


@dataclass(slots=True, eq=False)
class Handle:
    """A tensor before it has a name.

    Attributes:
        dtype, shape, device: as the IR has them; strides are ``None`` if contiguous.
        buffer: number of its allocation.
        offset: bytes from the start of the buffer.
        guessed: whether its memory is known only from a trace (which may be corrected once).
        hint: a role and a label, if the front end knows them.
        value: the elements of a constant in row-major order.
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    buffer: int
    offset: int
    device: str
    guessed: bool = False
    hint: tuple[str, str] = ("", "")
    value: tuple[Any, ...] | None = None

    @property
    def geometry(self) -> tuple[object, ...]:
        """Key that is equal for two views of one buffer if they have the same bytes and order."""
        return (self.buffer, self.offset, self.shape, self.strides, self.dtype)


class Exact(Struct, frozen=True):
    """A tensor as a running program shows it: ``impl`` is its number, ``storage`` an address.

    Storages stay alive while they are recorded, so their addresses are not used again.
    """

    impl: int
    storage: int
    offset: int
    device: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None
    hint: tuple[str, str] = ("", "")


class Identities:
    """The tensors known so far, by every kind of reference that a recording has to them."""

    def __init__(self, shared_storage: Sequence[str] = ()) -> None:
        self.buffers = 0
        self.devices: dict[str, str] = {}
        self._shared = tuple(shared_storage)
        self._ids: dict[int, Handle] = {}
        self._storages: dict[int, int] = {}
        self._allocated: dict[int, tuple[str, int]] = {}
        self._homes: dict[int, str] = {}
        self._addresses: dict[int, int] = {}
        self._impls: dict[int, Handle] = {}
        self._geometries: dict[tuple[object, ...], Handle] = {}

    def device(self, name: str) -> str:
        """Return the IR's name of a torch device: ``cpu``, or ``gpu0`` and on as they appear."""
        if name in self.devices:
            return self.devices[name]
        if not name:
            return "gpu0" if self.devices else "cpu"
        kind, _, number = name.partition(":")
        if kind == "cpu":
            return "cpu"
        same_kind = [device for device in self.devices if device.partition(":")[0] == kind]
        if same_kind and (not number or same_kind == [kind]):
            ir_name = self.devices[same_kind[0]]  # "cuda" means the one card in use
        else:
            ir_name = f"gpu{len(set(self.devices.values()))}"
        self.devices[name] = ir_name
        return ir_name

    def find(self, tensor: TraceTensor) -> Handle | None:
        """Return the known tensor that a trace describes, or ``None``."""
        handle = self._ids.get(tensor.id)
        if handle is not None and self._fits(tensor, handle):
            return handle
        buffer = self._known_buffer(tensor)
        if buffer is None or self._is_storage_unknown(tensor):
            return None
        offset = tensor.offset * ITEMSIZE[tensor.dtype]
        return self._geometries.get(
            (
                buffer,
                offset,
                tensor.shape,
                canonical_strides(tensor.shape, tensor.strides),
                tensor.dtype,
            )
        )

    def use(self, tensor: TraceTensor) -> Handle:
        """Return the tensor that a trace describes; an unknown one exists since before the step."""
        handle = self.find(tensor)
        if handle is None:
            if not self._may_view(tensor):
                self._storages.pop(tensor.storage, None)
            handle = self._open(tensor, self._buffer_of(tensor), tensor.strides)
        self.bind(tensor, handle)
        return handle

    def _may_view(self, tensor: TraceTensor) -> bool:
        """Return whether an unknown tensor may be in the buffer that its storage id denotes.

        Otherwise the id was used again: for a single host scalar (a number of the program), for
        another element type, or for more elements than were allocated.
        """
        if tensor.device.startswith("cpu") and not tensor.shape:
            return False
        dtype, elements = self._allocated.get(self._known_buffer(tensor) or 0, ("", 0))
        last = tensor.offset + (math.prod(tensor.shape) if tensor.strides is None else 1)
        return dtype == tensor.dtype and last <= elements

    def define(
        self,
        tensor: TraceTensor,
        inputs: Sequence[TraceTensor],
        strides: tuple[int, ...] | None = None,
    ) -> Handle:
        """Open a new tensor for a result, in an input's buffer if they share a storage."""
        shares_storage = not self._is_storage_unknown(tensor) and any(
            source.storage == tensor.storage for source in inputs
        )
        if not shares_storage:
            self._storages.pop(tensor.storage, None)
        handle = self._open(tensor, self._buffer_of(tensor), tensor.strides or strides)
        self.bind(tensor, handle)
        return handle

    def bind(self, tensor: Recorded, handle: Handle | None) -> None:
        """Bind a trace's ids to a tensor, until they are bound again."""
        if isinstance(tensor, TraceTensor) and handle is not None:
            self._ids[tensor.id] = handle
            if not self._is_storage_unknown(tensor):
                self._storages[tensor.storage] = handle.buffer

    def use_exact(self, exact: Exact, description: Recorded) -> Handle:
        """Return the tensor that a program showed; ``description`` is the trace's value for it."""
        handle = self.find_exact(exact)
        if handle is None:
            handle = self._adopt(exact, description) or self._open_exact(exact)
        self._impls[exact.impl] = handle
        self.bind(description, handle)
        return handle

    def define_exact(self, exact: Exact, description: Recorded) -> Handle:
        """Open a new tensor for a result that a program showed."""
        handle = self._open_exact(exact)
        self._impls[exact.impl] = handle
        self.bind(description, handle)
        return handle

    def has_storage_of(self, exact: Exact) -> bool:
        """Return whether the memory of a tensor that a program showed is known."""
        return exact.storage in self._addresses

    def find_exact(self, exact: Exact) -> Handle | None:
        """Return the tensor that a program showed, if it is known."""
        buffer = self._addresses.get(exact.storage)
        if buffer is None:
            return None
        geometry = (buffer, exact.offset, exact.shape, exact.strides, exact.dtype)
        handle = self._impls.get(exact.impl)
        if handle is not None and handle.geometry == geometry:
            return handle
        return self._geometries.get(geometry)

    def _adopt(self, exact: Exact, description: Recorded) -> Handle | None:
        """Correct the memory of a tensor known only from the trace, and return it, or ``None``."""
        if not isinstance(description, TraceTensor) or exact.storage in self._addresses:
            return None
        handle = self._ids.get(description.id)
        if handle is None or not handle.guessed or not self._fits(description, handle):
            return None
        handle.guessed = False
        handle.hint = exact.hint
        self._addresses[exact.storage] = handle.buffer
        return handle

    def _open_exact(self, exact: Exact) -> Handle:
        if exact.storage not in self._addresses:
            self.buffers += 1
            self._addresses[exact.storage] = self.buffers
        handle = Handle(
            exact.dtype,
            exact.shape,
            exact.strides,
            self._addresses[exact.storage],
            exact.offset,
            self.device(exact.device),
            hint=exact.hint,
        )
        self._geometries[handle.geometry] = handle
        self._homes.setdefault(handle.buffer, handle.device)
        return handle

    def _open(self, tensor: TraceTensor, buffer: int, strides: tuple[int, ...] | None) -> Handle:
        handle = Handle(
            tensor.dtype,
            tensor.shape,
            canonical_strides(tensor.shape, strides),
            buffer,
            tensor.offset * ITEMSIZE[tensor.dtype],
            self.device(tensor.device),
            guessed=True,
        )
        self._geometries[handle.geometry] = handle
        self._homes.setdefault(handle.buffer, handle.device)
        size = tensor.offset + math.prod(tensor.shape)
        self._allocated.setdefault(buffer, (tensor.dtype, size))
        return handle

    def _buffer_of(self, tensor: TraceTensor) -> int:
        buffer = None if self._is_storage_unknown(tensor) else self._known_buffer(tensor)
        if buffer is not None:
            return buffer
        self.buffers += 1
        return self.buffers

    def _known_buffer(self, tensor: TraceTensor) -> int | None:
        """Return the buffer of a storage id, or ``None`` if the id was used again elsewhere."""
        buffer = self._storages.get(tensor.storage)
        if buffer is None or self._homes.get(buffer) != self.device(tensor.device):
            return None
        return buffer

    def _is_storage_unknown(self, tensor: TraceTensor) -> bool:
        """Return whether a storage id identifies no memory.

        It is absent, or of an empty tensor, or equal for all tensors of the device.
        """
        return not tensor.storage or 0 in tensor.shape or tensor.device.startswith(self._shared)

    def _fits(self, tensor: TraceTensor, handle: Handle) -> bool:
        if handle.dtype != tensor.dtype or handle.shape != tensor.shape:
            return False
        # a trace has no memory of a sparse tensor; a program shows the memory of its values
        sparse = not tensor.storage and tensor.strides is not None and not any(tensor.strides)
        if not sparse and handle.offset != tensor.offset * ITEMSIZE[tensor.dtype]:
            return False
        if tensor.strides is not None and handle.strides != canonical_strides(
            tensor.shape, tensor.strides
        ):
            return False
        if self._is_storage_unknown(tensor):
            return True
        return self._known_buffer(tensor) == handle.buffer
