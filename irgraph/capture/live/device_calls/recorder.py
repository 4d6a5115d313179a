"""Records a running step: every device call with the true identity of its tensors.

An execution trace has the nesting of calls, but on torch's meta device it cannot distinguish
storages. A dispatch mode has access to the tensors themselves; it wraps each call in a numbered
range, by which the two are joined.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import ref

from irgraph.capture.common.identity import Exact
from irgraph.capture.common.nodes import DTYPE_BY_SIZE
from irgraph.capture.common.streams import IssuedCollective
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.communication import (
    FUNCTIONAL,
    WRAP,
    async_result,
    current_communication,
    word_of,
)
from irgraph.capture.emulate.cuda_graphs import captured_results
from irgraph.capture.emulate.fallbacks import on_device, run
from irgraph.capture.emulate.known_values import KnownValues, tensors_in
from irgraph.capture.live.device_calls.literals import literal_values
from irgraph.capture.live.device_calls.vmap import refuse_old_vmap
from irgraph.ir.dtypes import FROM_TORCH, ITEMSIZE
from irgraph.ir.tensor import DType, canonical_strides

if TYPE_CHECKING:
    import torch

MARK = "irgraph#"
"""Prefix of the numbered range around each recorded call."""

WRAPPER_MARK = "irgraph.hollow#"
"""Mark in a call on tensors that wrap others: the calls inside it do the computation."""

SCHEMA_CORRECTIONS = (
    ("Tensor all_gather_output", "Tensor(a!) all_gather_output"),
    ("(Tensor, Tensor)", "(Tensor(a), Tensor(a!))"),
)
"""Corrections of the schema of ``fsdp::all_gather_copy_in``, which writes its buffer argument."""

COPIES = ("aten::_to_copy", "aten::copy_")
"""Calls that copy between host and device."""

Hints = Mapping[int, tuple[str, str]]
"""Role and label of a tensor by the address of its storage."""


@dataclass(slots=True)
class CallRecord:
    """One device call: its schema, its arguments in schema order and its results.

    ``issued`` describes a collective; ``waits`` are the numbers of the collectives that must have
    ended before the call.
    """

    schema: str
    name: str
    inputs: list[Any]
    outputs: list[Any]
    issued: IssuedCollective | None = None
    waits: tuple[str, ...] = ()


@dataclass(slots=True)
class Recording:
    """The calls that the dispatch mode recorded.

    Attributes:
        calls: every device call, by the number of its range.
        alive: storages that calls accessed, kept alive so that no address is used again.
        seen: the last tensor at an address, as a weak reference, and its number. Autograd copies
            gradients that are referenced elsewhere, so tensors are not kept alive and their
            addresses are used again.
        repaired: notes on calls that the device cannot run and that have a substitute result.
        copies: for each copy from the host to the device, whether its memory is pinned and whether
            it is non-blocking.
        wrapping: whether calls had tensors that wrap others.
        literals: tensors with values in the program's text, with their elements.
        reallocations: memory that replaces the memory of a storage whose size changed.
        returned: the tensors that the step returned.
        reachable: tensors in other objects that the step's caller can access.
    """

    calls: dict[int, CallRecord] = field(default_factory=dict)
    alive: dict[int, Any] = field(default_factory=dict)
    seen: dict[int, tuple[Any, int]] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=count)
    repaired: list[str] = field(default_factory=list)
    copies: list[tuple[bool, bool]] = field(default_factory=list)
    wrapping: bool = False
    literals: list[tuple[Exact, tuple[Any, ...] | None]] = field(default_factory=list)
    reallocations: list[Exact] = field(default_factory=list)
    returned: list[Exact] = field(default_factory=list)
    reachable: list[Exact] = field(default_factory=list)
    _memory: dict[int, int] = field(default_factory=dict)

    def note_results(self, returned: Sequence[Torch], reachable: Sequence[Torch]) -> None:
        """Store descriptions of the tensors that outlast the step."""
        self.returned = self._with_memory(returned)
        self.reachable = self._with_memory(reachable)

    def _with_memory(self, tensors: Sequence[Torch]) -> list[Exact]:
        """Return descriptions of tensors, except those whose memory was freed."""
        described = (_exact(tensor, self, {}) for tensor in tensors)
        return [exact for exact in described if exact.storage]

    def note_resize(self, storage: Torch, memory: Torch) -> None:
        """Store that a storage now has a new tensor's memory, or none."""
        self._memory[storage._cdata] = 0
        if memory is not None:
            self.reallocations.append(_exact(memory, self, {}))
            self._memory[storage._cdata] = self.reallocations[-1].storage
        self.alive.setdefault(storage._cdata, storage)

    def memory_of(self, address: int) -> int:
        """Return the number of a storage's memory: its address, unless its size has changed."""
        return self._memory.get(address, address)

    def forget(self) -> None:
        """Release tensors and memory: a module whose parameters are referenced cannot be moved."""
        self.alive.clear()
        self.seen.clear()


def dispatch_mode(
    recording: Recording | None,
    hints: Hints,
    known_values: KnownValues,
    names: list[str] | None = None,
) -> Torch:
    """Return a dispatch mode that records; without a recording it only repairs calls.

    ``known_values`` has the known values of tensors on the device. The names of calls on the
    device are appended to ``names``.
    """
    from torch.utils._python_dispatch import TorchDispatchMode

    import_module("torch.utils.flop_counter")  # nested attention names it under any mode

    class RecordingMode(TorchDispatchMode):  # type: ignore[misc]
        """Records each call that reaches the device."""

        def __init__(self) -> None:
            super().__init__()
            self.known_values = known_values
            self.recording = recording

        def __torch_dispatch__(
            self, func: Torch, types: Torch, args: Torch = (), kwargs: Torch = None
        ) -> Torch:
            kwargs = kwargs or {}
            refuse_old_vmap()
            if any(map(_is_wrapper_type, types)):
                if recording is not None:
                    recording.wrapping = True
                    _mark(WRAPPER_MARK)
                return NotImplemented  # calls on the wrapped tensors are dispatched here next
            if func.name() == WRAP:
                _mark(WRAPPER_MARK)
                return async_result(args[0])
            if _is_composite(func, args):
                return _run_composite(self, func, args, kwargs)
            if names is not None and not _is_view(func) and on_device(args, "meta"):
                names.append(func._schema.name)
            if recording is None or func.namespace == "profiler":
                return run(func, args, kwargs, [], known_values)
            return _record_call(recording, hints, known_values, func, args, kwargs)

    return RecordingMode()


@contextlib.contextmanager
def unobserved() -> Iterator[None]:
    """Exclude calls within the context from execution traces: kernels of meta consist of many."""
    import torch

    torch.autograd._enable_record_function(False)
    try:
        yield
    finally:
        torch.autograd._enable_record_function(True)


@cache
def _is_view(func: Torch) -> bool:
    """Return whether an operator only makes views of its operands."""
    aliases = [value.alias_info for value in func._schema.returns]
    return any(alias is not None and not alias.is_write for alias in aliases)


def _mark(name: str) -> None:
    """Add an empty range to the trace."""
    from torch.autograd.profiler import record_function

    with record_function(name):
        pass


def _is_wrapper_type(kind: Torch) -> bool:
    """Return whether tensors of a type wrap others, such as nested tensors."""
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass_type

    return bool(is_traceable_wrapper_subclass_type(kind))


def _is_composite(func: Torch, args: Torch) -> bool:
    """Return whether a call consists of others, on the device of its operands."""
    import torch

    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    if not has_kernel(func.name(), "CompositeImplicitAutograd"):
        return False
    return not (has_kernel(func.name(), "Meta") and on_device(args, "meta"))


def _run_composite(mode: Torch, func: Torch, args: Torch, kwargs: Torch) -> Torch:
    """Run a composite call, which reaches a mode undecomposed only under inference mode."""
    import torch

    has_own_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "AutogradMeta")
    with mode:
        if has_own_kernel and on_device(args, "meta"):
            key = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradMeta)
            return func.redispatch(key, *args, **kwargs)
        # torch's own kernel: ``decompose`` would prefer tracing forms, such as copies in dropout
        composite = torch._C.DispatchKey.CompositeImplicitAutograd
        return func._op_dk(composite, *args, **kwargs)


def _record_call(
    recording: Recording,
    hints: Hints,
    known_values: KnownValues,
    func: Torch,
    args: Torch,
    kwargs: Torch,
) -> Torch:
    number = len(recording.calls) + 1
    arguments = _in_schema_order(func._schema, args, kwargs)
    issued, waits = _describe_collective(func, arguments)
    inputs = _describe(arguments, recording, hints)
    call = CallRecord(_schema(func), func._schema.name, inputs, [], issued, waits)
    recording.calls[number] = call
    _mark(f"{MARK}{number}")
    with unobserved():
        result = run(func, args, kwargs, recording.repaired, known_values)
    captured = captured_results.get()
    outputs = captured[1] if captured is not None and captured[0] is func else result
    returns_several = len(func._schema.returns) != 1
    results = list(outputs or ()) if returns_several else [outputs]
    call.outputs = _describe(results, recording, hints)
    comm = current_communication.get()
    if issued is not None and comm is not None and func.namespace == FUNCTIONAL:
        comm.register_results(issued, list(tensors_in(results)))
    if call.name == "aten::lift_fresh":
        recording.literals.append((inputs[0], literal_values(args[0])))
    if call.name in COPIES:
        _note_copy(recording, func._schema, arguments, result)
    return result


def _schema(func: Torch) -> str:
    text = str(func._schema)
    for declared, actual in (
        SCHEMA_CORRECTIONS if func._schema.name == "fsdp::all_gather_copy_in" else ()
    ):
        text = text.replace(declared, actual)
    return text


def _describe_collective(
    func: Torch, arguments: list[Any]
) -> tuple[IssuedCollective | None, tuple[str, ...]]:
    """Return the description of a collective, if the call is one, and the collectives it awaits."""
    comm = current_communication.get()
    if comm is None:
        return None, ()
    issued = comm.issue(func, arguments)
    if issued is not None and func._schema.arguments[-1].name == "group_name":
        arguments[-1] = issued.group
    return issued, comm.required_waits(func, list(tensors_in(arguments)))


def _note_copy(
    recording: Recording, schema: Torch, arguments: Sequence[Any], result: Torch
) -> None:
    source = arguments[1] if schema.name == "aten::copy_" else arguments[0]
    literals = {exact.impl for exact, _ in recording.literals}
    if _number(source, recording) in literals:
        return
    if source.device.type == "cpu" and result.device.type != "cpu":
        names = [argument.name for argument in schema.arguments]
        non_blocking = arguments[names.index("non_blocking")]
        recording.copies.append((bool(source.is_pinned()), bool(non_blocking)))


def _in_schema_order(schema: Torch, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    values = list(args)
    for argument in schema.arguments[len(args) :]:
        values.append(kwargs.get(argument.name, _Absent))
    return [
        argument.default_value if value is _Absent else value
        for value, argument in zip(values, schema.arguments, strict=True)
    ]


class _Absent:
    """Placeholder of an argument that was not given."""


def _describe(values: Sequence[Any], recording: Recording, hints: Hints) -> list[Any]:
    import torch

    def describe(value: Torch) -> Torch:
        if isinstance(value, torch.Tensor):
            return _exact(value, recording, hints)
        if isinstance(value, (list, tuple)):
            return [describe(item) for item in value]
        return _literal(value)

    return [describe(value) for value in values]


def _literal(value: Torch) -> Torch:
    import torch

    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.dtype):
        return DType(_element_type(value))
    if isinstance(value, torch.SymInt):
        return int(value)
    return word_of(value) or str(value).removeprefix("torch.")


def _exact(tensor: torch.Tensor, recording: Recording, hints: Hints) -> Exact:
    storage = _storage(tensor)
    address = int(storage._cdata) if storage is not None else int(tensor._cdata)
    recording.alive.setdefault(address, storage if storage is not None else tensor)
    dtype = _element_type(tensor.dtype)
    shape = tuple(map(int, tensor.shape))
    dense = storage is not None and not tensor.is_sparse
    return Exact(
        _number(tensor, recording),
        recording.memory_of(address) if storage is not None else -address,
        _first_element(tensor) * ITEMSIZE[dtype] if storage is not None else 0,
        str(tensor.device),
        shape,
        dtype,
        canonical_strides(shape, tuple(map(int, tensor.stride()))) if dense else (0,) * len(shape),
        _hint(tensor, address, hints),
    )


def _number(tensor: torch.Tensor, recording: Recording) -> int:
    """Return the number of a tensor, unique in the recording."""
    address = int(tensor._cdata)
    entry = recording.seen.get(address)
    if entry is None or entry[0]() is not tensor:
        entry = recording.seen[address] = (ref(tensor), next(recording.numbers))
    return entry[1]


def _storage(tensor: torch.Tensor) -> Torch:
    """Return a tensor's storage, or the storage of a sparse tensor's values, if it has one."""
    with contextlib.suppress(NotImplementedError, RuntimeError):
        return tensor._values().untyped_storage() if tensor.is_sparse else tensor.untyped_storage()
    return None


def _first_element(tensor: torch.Tensor) -> int:
    """Return the offset of a tensor, or of a sparse tensor's values, in elements of its memory."""
    return int((tensor._values() if tensor.is_sparse else tensor).storage_offset())


def _hint(tensor: torch.Tensor, address: int, hints: Hints) -> tuple[str, str]:
    if address in hints:
        return hints[address]
    return ("param", "") if tensor.requires_grad and _is_leaf(tensor) else ("", "")


def _is_leaf(tensor: torch.Tensor) -> bool:
    """Return whether a tensor is no op's result; ``False`` if torch raises, as for stale views."""
    with contextlib.suppress(RuntimeError):
        return bool(tensor.is_leaf)
    return False


def _element_type(dtype: Torch) -> str:
    """Return the IR's name of an element type; for an unknown one, an integer of its size."""
    name = str(dtype).removeprefix("torch.")
    return FROM_TORCH.get(name) or DTYPE_BY_SIZE.get(dtype.itemsize, "u8")
