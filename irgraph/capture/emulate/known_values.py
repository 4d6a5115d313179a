"""Values of meta tensors that follow from host data: masks, indices, lengths.

Programs read some values: whether a mask hides any element, whether a class is in range, or the
length of a sequence. If all inputs of a tensor are constants or came from the host, its calls also
run on the host, in memory of the same layout. Values of parameters and random numbers are unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.unknown_values.assumptions import Assumptions
from irgraph.capture.emulate.unknown_values.decisions import UnknownValues

MAX_BYTES = 1 << 21
"""Maximum bytes of a memory whose values are tracked: indices and masks, seldom activations."""

MAX_FLOATS = 1 << 14
"""Maximum number of elements of a floating-point tensor whose values are tracked."""

COUNTING = ("nonzero", "unique")
"""Parts of the names of ops whose sizes depend on the values of real numbers."""


class KnownValues:
    """Host copies of the memory of meta tensors with known values.

    All views of one memory share its known values. Freed memory is forgotten.

    Attributes:
        unknown: assumptions about other values that the program reads.
    """

    def __init__(self, assumptions: Assumptions | None = None) -> None:
        self.unknown = UnknownValues(assumptions)
        self._memory: dict[int, tuple[Torch, Torch]] = {}
        self._max_entries = 1000

    def value(self, tensor: Torch) -> Torch:
        """Return a tensor's values, on the host, ``None`` if they are unknown."""
        import torch

        if tensor.device.type == "cpu":
            return tensor
        if tensor.device.type != "meta" or tensor.layout != torch.strided:
            return None  # the parts of a sparse tensor may be known, but not the tensor
        entry = self._memory.get(tensor.untyped_storage()._cdata)
        return None if entry is None else _view_of_memory(tensor, entry[1])

    def values(self, arguments: Torch) -> Torch:
        """Return the arguments of a call with host values for tensors, and devices as the host.

        Raises ``KeyError`` if a tensor's values are unknown.
        """
        import torch

        if isinstance(arguments, torch.Tensor):
            value = self.value(arguments)
            if value is None:
                raise KeyError
            return value
        if isinstance(arguments, (list, tuple)):
            return type(arguments)(map(self.values, arguments))
        if isinstance(arguments, Mapping):
            return {name: self.values(item) for name, item in arguments.items()}
        return torch.device("cpu") if isinstance(arguments, torch.device) else arguments

    def follow(self, func: Torch, args: Torch, kwargs: Torch, result: Torch) -> None:
        """Compute the values of a call's results, or forget the values of tensors it wrote."""
        written = _written_tensors(func, args, kwargs)
        unknown = [
            t for t in tensors_in(result) if t.device.type == "meta" and self.value(t) is None
        ]
        if not unknown and not written:
            return
        if _overwrites_memory(func, args):
            self._overwrite(args[0], args[1])
            return
        try:
            if not _is_certain(func) or not all(map(_is_small, unknown)):
                raise KeyError
            host_result = func(*self.values(args), **self.values(kwargs))
        except Exception:
            for tensor in written:
                self._memory.pop(tensor.untyped_storage()._cdata, None)
            return
        for tensor, value in zip(tensors_in(result), tensors_in(host_result), strict=False):
            # kernels may leave out results of which the meta kernel has the sizes
            has_values = tensor.shape == value.shape
            if has_values and any(tensor is other for other in unknown):
                self._learn(tensor, value)

    def _overwrite(self, tensor: Torch, source: Torch) -> None:
        """Replace the values of a tensor that fills its memory by those of a source."""
        value = self.value(source)
        self.forget(tensor.untyped_storage())
        if value is not None and _is_small(tensor):
            self._learn(tensor, value)

    def forget(self, storage: Torch) -> None:
        """Forget the values in a storage."""
        self._memory.pop(storage._cdata, None)

    def meta_result(self, func: Torch, args: Torch, kwargs: Torch) -> Torch:
        """Return the meta results of a call without a meta kernel, or whose sizes need values.

        Unknown real numbers are assumed to be zeros unless sizes may depend on them. Raises
        ``KeyError`` if an operand's values are unknown.
        """
        try:
            host_result = func(*self.values(args), **self.values(kwargs))
        except KeyError:
            if any(word in func._schema.name for word in COUNTING) or not _is_certain(func):
                raise
            zeros = _ZeroFilledValues(self)
            host_result = func(*zeros.values(args), **zeros.values(kwargs))
            return zeros.to_meta(host_result)
        result = _ZeroFilledValues(self).to_meta(host_result)
        for tensor, value in zip(tensors_in(result), tensors_in(host_result), strict=True):
            self._learn(tensor, value)
        return result

    def _learn(self, tensor: Torch, value: Torch) -> None:
        import torch
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        memory = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
        _view_of_memory(tensor, memory).copy_(value)
        self._memory[storage._cdata] = (StorageWeakRef(storage), memory)
        if len(self._memory) > self._max_entries:
            alive = {key: pair for key, pair in self._memory.items() if not pair[0].expired()}
            self._memory, self._max_entries = alive, 2 * len(alive) + 1000


class _ZeroFilledValues(KnownValues):
    """Known values, with zeros for unknown real numbers."""

    def __init__(self, known_values: KnownValues) -> None:
        self._known_values = known_values

    def value(self, tensor: Torch) -> Torch:
        import torch

        if tensor.layout == torch.sparse_coo:
            parts = [self.value(part) for part in (tensor._indices(), tensor._values())]
            if any(part is None for part in parts):
                return None
            sparse = torch.sparse_coo_tensor(*parts, tensor.shape, check_invariants=False)
            return sparse._coalesced_(tensor.is_coalesced())
        value = self._known_values.value(tensor)
        is_real = tensor.dtype.is_floating_point and tensor.layout == torch.strided
        if value is not None or not is_real:
            return value
        return torch.zeros(tensor.shape, dtype=tensor.dtype)

    def to_meta(self, value: Torch) -> Torch:
        """Return a result with empty meta tensors instead of its tensors."""
        import torch

        if isinstance(value, (list, tuple)):
            return type(value)(map(self.to_meta, value))
        if not isinstance(value, torch.Tensor):
            return value
        if value.layout != torch.sparse_coo:
            return torch.empty_like(value, device="meta")
        rows, values = (
            torch.empty_like(value._indices(), device="meta"),
            self.to_meta(value._values()),
        )
        self._known_values._learn(rows, value._indices())
        sparse = torch.sparse_coo_tensor(rows, values, value.shape, check_invariants=False)
        return sparse._coalesced_(value.is_coalesced())


def tensors_in(value: Torch) -> Iterator[Torch]:
    """Yield the tensors of a result, including those in nested lists."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)


def _overwrites_memory(func: Torch, args: Sequence[Torch]) -> bool:
    """Return whether a call copies to all elements of a meta tensor's memory."""
    import torch

    if func is not torch.ops.aten.copy_.default or args[0].device.type != "meta":
        return False
    target = args[0]
    if target.layout != torch.strided:
        return False
    return bool(target.numel() * target.itemsize == target.untyped_storage().nbytes())


def _view_of_memory(tensor: Torch, memory: Torch) -> Torch:
    import torch

    layout = (tensor.storage_offset(), tensor.size(), tensor.stride())
    return torch.empty(0, dtype=tensor.dtype).set_(memory, *layout)


def _written_tensors(
    func: Torch, args: Sequence[Torch], kwargs: Mapping[str, Torch]
) -> list[Torch]:
    arguments = func._schema.arguments
    pairs = [*zip(arguments, args, strict=False)]
    pairs += [(argument, kwargs.get(argument.name)) for argument in arguments[len(args) :]]
    written = (value for a, value in pairs if a.alias_info is not None and a.alias_info.is_write)
    return [t for value in written for t in tensors_in(value) if t.device.type == "meta"]


def _is_certain(func: Torch) -> bool:
    """Return whether equal operands give equal results: no random or uninitialised values."""
    import torch

    random = torch.Tag.nondeterministic_seeded in func.tags
    return not random and "empty" not in func._schema.name


def _is_small(tensor: Torch) -> bool:
    import torch

    if tensor.layout != torch.strided or tensor.untyped_storage().nbytes() > MAX_BYTES:
        return False
    return not tensor.dtype.is_floating_point or tensor.numel() <= MAX_FLOATS
