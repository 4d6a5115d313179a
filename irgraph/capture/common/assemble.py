"""Turns calls into ops: names tensors, and finds roles for tensors from before the step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from irgraph.capture.common.calls import CapturedCall, Item, handles_in
from irgraph.capture.common.identity import Handle
from irgraph.ir.graph import Declared
from irgraph.ir.op import EMPTY, Op, is_call_name
from irgraph.ir.tensor import Tensor


class Assembler:
    """Names tensors and builds the immutable ops.

    Attributes:
        ops: the calls as ops.
        tensors: tensors that the ops use and do not define, with their roles, in order of first
            use.
        handles: the handles of these tensors, in the same order.
        late_definitions: number of these tensors that a call defines after their first use.
    """

    def __init__(self, calls: Sequence[CapturedCall]) -> None:
        self._buffers: dict[int, str] = {}
        self._counts: dict[str, int] = {}
        self._used_names: set[str] = set()
        self._tensors: dict[Handle | None, Tensor] = {}
        self.handles, self.late_definitions = _handles_from_before(calls)
        uses = _uses_by_buffer(calls)
        roles = [_role(handle, uses) for handle in self.handles]
        for handle, role in zip(self.handles, roles, strict=True):
            self._name(handle, self._unused_name(_base_name(handle, role), bool(handle.hint[1])))
        for call in calls:
            for inner in call.walk():
                self._name_results(inner)
        self.tensors = tuple(
            Declared(role, self._tensors[handle], handle.hint[1], handle.value)
            for handle, role in zip(self.handles, roles, strict=True)
        )
        self.ops = tuple(map(self._op, calls))

    def tensor_of(self, handle: Handle | None) -> Tensor | None:
        """Return the tensor of a handle, ``None`` if no call has it."""
        return self._tensors.get(handle)

    def _name_results(self, call: CapturedCall) -> None:
        """Name the results of a call after it; an outer call names its results before its body."""
        unnamed = [h for h in handles_in(call.results) if h not in self._tensors]
        first = self._unused_name(_identifier(call.name), False) if unnamed else ""
        for i, handle in enumerate(unnamed):
            self._name(handle, f"{first}_{i}" if i else first)

    def _unused_name(self, base: str, unnumbered: bool) -> str:
        """Return the first unused name: ``w`` (if ``unnumbered``), ``w1``, ``w2``."""
        count = self._counts.get(base, 0) + 1
        name = base if unnumbered and count == 1 else f"{base}{count}"
        while name in self._used_names:
            count += 1
            name = f"{base}{count}"
        self._counts[base] = count
        return name

    def _name(self, handle: Handle, name: str) -> None:
        self._used_names.add(name)
        buffer = self._buffers.setdefault(handle.buffer, f"b{len(self._buffers) + 1}")
        self._tensors[handle] = Tensor(
            name, handle.dtype, handle.shape, buffer, handle.strides, handle.offset, handle.device
        )

    def _op(self, call: CapturedCall) -> Op:
        return Op(
            call.name,
            tuple(map(self._value, call.operands)),
            tuple(map(self._value, call.results)),
            {key: self._value(value) for key, value in call.attributes.items()} or EMPTY,
            frozenset(self._tensors[handle].name for handle in call.written),
            tuple(map(self._op, call.body)),
            thread=call.thread,
            stream=call.stream,
            module=call.module,
            phase=call.phase,
            origin=call.origin,
        )

    def _value(self, value: Item) -> Item:
        if isinstance(value, Handle):
            return self._tensors[value]
        return tuple(map(self._value, value)) if isinstance(value, (list, tuple)) else value


def _handles_from_before(calls: Sequence[CapturedCall]) -> tuple[list[Handle], int]:
    """Return the tensors that are used before any definition, and how many are defined later."""
    results = {
        handle
        for call in calls
        for inner in call.walk()
        for handle in handles_in(inner.results)
        if not inner.body
    }
    defined: set[Handle] = set()
    handles = []
    for call in calls:
        for handle in _used_handles(call, defined):
            if handle not in defined:
                defined.add(handle)
                handles.append(handle)
    return handles, sum(handle in results for handle in handles)


def _used_handles(call: CapturedCall, defined: set[Handle]) -> Iterator[Handle]:
    """Yield the handles that a call uses, and add its results to ``defined`` while iterating."""
    yield from handles_in(call.operands)
    yield from handles_in(list(call.attributes.values()))
    for child in call.body:
        yield from _used_handles(child, defined)
    defined.update(handles_in(call.results))


def _identifier(name: str) -> str:
    word = re.sub(r"\W", "_", name.rpartition(".")[2], flags=re.ASCII).strip("_")
    return word if word and not word[0].isdigit() else f"t_{word}"


def _base_name(handle: Handle, role: str) -> str:
    if handle.hint[1]:
        return _identifier(handle.hint[1].replace(".", "_"))
    if handle.value is not None:
        return "literal"
    return "host" if handle.device == "cpu" and role == "input" else role


def _uses_by_buffer(calls: Sequence[CapturedCall]) -> Mapping[int, set[str]]:
    """Return each buffer's uses by the step's leaves: ``read forward``, ``write optimizer``."""
    uses_by_buffer: dict[int, set[str]] = {}
    leaves = (leaf for call in calls for leaf in call.walk() if not leaf.body)
    for leaf in leaves:
        if not is_call_name(leaf.name):
            continue
        written = set(leaf.written)
        for handle in handles_in([*leaf.operands, *leaf.attributes.values()]):
            verb = "write" if handle in written else "read"
            uses_by_buffer.setdefault(handle.buffer, set()).add(f"{verb} {leaf.phase}")
    return uses_by_buffer


def _role(handle: Handle, uses_by_buffer: Mapping[int, set[str]]) -> str:
    """Return the role of a tensor from before the step.

    A ``param`` is read by forward and written by the optimizer, other written tensors are
    ``state``; the rest is ``input``.
    """
    if handle.hint[0]:
        return handle.hint[0]
    buffer_uses = uses_by_buffer.get(handle.buffer, set())
    if {"write optimizer", "read forward"} <= buffer_uses:
        return "param"
    return "state" if any(use.startswith("write") for use in buffer_uses) else "input"
