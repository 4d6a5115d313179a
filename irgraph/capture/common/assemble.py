"""From calls to ops: names for tensors, roles for what exists before the step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from irgraph.capture.common.calls import Call, Item, handles_in
from irgraph.capture.common.identity import Handle
from irgraph.ir.graph import Declared
from irgraph.ir.op import EMPTY, Op, is_call_name
from irgraph.ir.tensor import Tensor


class Assembler:
    """Gives names to tensors and makes the immutable ops.

    Attributes:
        ops: the calls as ops.
        tensors: what they use and do not make, with its role, in order of first use.
        handles: the same before it had names.
        lost: how many of those a call makes after their first use.
    """

    def __init__(self, calls: Sequence[Call]) -> None:
        self._buffers: dict[int, str] = {}
        self._counts: dict[str, int] = {}
        self._taken: set[str] = set()
        self._tensors: dict[int, Tensor] = {}
        self.handles, self.lost = _undefined(calls)
        uses = _uses(calls)
        roles = [_role(handle, uses) for handle in self.handles]
        for handle, role in zip(self.handles, roles, strict=True):
            self._name(handle, self._free(_word(handle, role), bool(handle.hint[1])))
        for call in calls:
            for inner in call.walk():
                self._name_results(inner)
        self.tensors = tuple(
            Declared(role, self._tensors[id(handle)], handle.hint[1], handle.value)
            for handle, role in zip(self.handles, roles, strict=True)
        )
        self.ops = tuple(map(self._op, calls))

    def named(self, handle: Handle | None) -> Tensor | None:
        """Return the tensor that a handle became, ``None`` where no call has it."""
        return self._tensors.get(id(handle))

    def _name_results(self, call: Call) -> None:
        """Name what a call returns after it; outer calls come first and give their name."""
        new = [h for h in handles_in(call.results) if id(h) not in self._tensors]
        first = self._free(_base(call.name), False) if new else ""
        for i, handle in enumerate(new):
            self._name(handle, f"{first}_{i}" if i else first)

    def _free(self, base: str, plain: bool) -> str:
        """Return the first unused name of a kind: ``w`` (if plain), ``w1``, ``w2``."""
        count = self._counts.get(base, 0) + 1
        name = base if plain and count == 1 else f"{base}{count}"
        while name in self._taken:
            count += 1
            name = f"{base}{count}"
        self._counts[base] = count
        return name

    def _name(self, handle: Handle, name: str) -> None:
        self._taken.add(name)
        buffer = self._buffers.setdefault(handle.buffer, f"b{len(self._buffers) + 1}")
        self._tensors[id(handle)] = Tensor(
            name, handle.dtype, handle.shape, buffer, handle.strides, handle.offset, handle.device
        )

    def _op(self, call: Call) -> Op:
        return Op(
            call.name,
            tuple(map(self._value, call.operands)),
            tuple(map(self._value, call.results)),
            {key: self._value(value) for key, value in call.attributes.items()} or EMPTY,
            frozenset(self._tensors[id(handle)].name for handle in call.written),
            tuple(map(self._op, call.body)),
            thread=call.thread,
            stream=call.stream,
            module=call.module,
            phase=call.phase,
            origin=call.origin,
        )

    def _value(self, value: Item) -> Item:
        if isinstance(value, Handle):
            return self._tensors[id(value)]
        return tuple(map(self._value, value)) if isinstance(value, (list, tuple)) else value


def _undefined(calls: Sequence[Call]) -> tuple[list[Handle], int]:
    """Return the tensors that are used and not made before, and how many are made later."""
    made = {
        id(handle)
        for call in calls
        for inner in call.walk()
        for handle in handles_in(inner.results)
        if not inner.body
    }
    defined: set[int] = set()
    found = []
    for call in calls:
        for handle in _in_order(call, defined):
            if id(handle) not in defined:
                defined.add(id(handle))
                found.append(handle)
    return found, sum(id(handle) in made for handle in found)


def _in_order(call: Call, defined: set[int]) -> Iterator[Handle]:
    """Yield what a call uses, and add what it makes to ``defined`` as it does."""
    yield from handles_in(call.operands)
    yield from handles_in(list(call.attributes.values()))
    for child in call.body:
        yield from _in_order(child, defined)
    defined.update(id(handle) for handle in handles_in(call.results))


def _base(name: str) -> str:
    word = re.sub(r"\W", "_", name.rpartition(".")[2], flags=re.ASCII).strip("_")
    return word if word and not word[0].isdigit() else f"t_{word}"


def _word(handle: Handle, role: str) -> str:
    if handle.hint[1]:
        return _base(handle.hint[1].replace(".", "_"))
    if handle.value is not None:
        return "literal"
    return "host" if handle.device == "cpu" and role == "input" else role


def _uses(calls: Sequence[Call]) -> Mapping[int, set[str]]:
    """Return by buffer how the step's leaves use it: ``read forward``, ``write optimizer``."""
    found: dict[int, set[str]] = {}
    leaves = (leaf for call in calls for leaf in call.walk() if not leaf.body)
    for leaf in leaves:
        if not is_call_name(leaf.name):
            continue
        written = {id(handle) for handle in leaf.written}
        for handle in handles_in([*leaf.operands, *leaf.attributes.values()]):
            verb = "write" if id(handle) in written else "read"
            found.setdefault(handle.buffer, set()).add(f"{verb} {leaf.phase}")
    return found


def _role(handle: Handle, uses: Mapping[int, set[str]]) -> str:
    """Return what a tensor from before the step is.

    A ``param`` is read by forward and written by the optimizer, other ``state`` is written too;
    the rest is ``input``.
    """
    if handle.hint[0]:
        return handle.hint[0]
    seen = uses.get(handle.buffer, set())
    if {"write optimizer", "read forward"} <= seen:
        return "param"
    return "state" if any(use.startswith("write") for use in seen) else "input"
