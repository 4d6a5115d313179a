"""From calls to a graph: names for tensors, roles for what exists before the step."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from irgraph.capture.calls import Call, handles_in
from irgraph.capture.identity import Handle
from irgraph.ir.graph import Declared
from irgraph.ir.op import EMPTY, Op, is_call_name
from irgraph.ir.tensor import Tensor


class Assembler:
    """Gives names and makes the immutable ops."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self.calls = calls
        self.declared: list[Handle] = []
        self.lost = 0
        self._tensors: dict[int, Tensor] = {}
        self._buffers: dict[int, str] = {}
        self._counts: dict[str, int] = {}
        self._taken: set[str] = set()

    def ops(self) -> tuple[Op, ...]:
        """Return the ops; ``declared`` then holds what they use and do not define."""
        self._declare()
        return tuple(self._op(call) for call in self.calls)

    def roles(self) -> tuple[Declared, ...]:
        """Return the declared tensors with their roles, in order of first use."""
        uses = _uses(self.calls)
        return tuple(
            Declared(_role(handle, uses), self._tensors[id(handle)], handle.hint[1])
            for handle in self.declared
        )

    def _declare(self) -> None:
        """Name every tensor after the outermost call that returns it."""
        defined: set[int] = set()
        made = {id(h) for call in self.calls for c in call.walk() for h in _leaf_results(c)}
        for call in self.calls:
            for handle in _in_order(call, defined):
                if id(handle) not in defined:
                    defined.add(id(handle))
                    self.declared.append(handle)
                    self.lost += id(handle) in made
        for handle in self.declared:
            self._name(handle, self._free(_words(handle), bool(handle.hint[1])))
        for call in self.calls:
            for inner in call.walk():
                self._name_results(inner)

    def _name_results(self, call: Call) -> None:
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
            {k: self._value(v) for k, v in call.attributes.items()} or EMPTY,
            frozenset(self._tensors[id(handle)].name for handle in call.written),
            tuple(map(self._op, call.body)),
            thread=call.thread,
            module=call.module,
            phase=call.phase,
            origin=call.origin,
        )

    def _value(self, value: Any) -> Any:
        if isinstance(value, Handle):
            return self._tensors[id(value)]
        if isinstance(value, (list, tuple)):
            return tuple(map(self._value, value))
        return value


def _leaf_results(call: Call) -> Iterator[Handle]:
    return handles_in(call.results) if not call.body else iter(())


def _in_order(call: Call, defined: set[int]) -> Iterator[Handle]:
    """Yield what a call uses before it is defined, defining what it returns on the way."""
    yield from handles_in(call.operands)
    yield from handles_in(list(call.attributes.values()))
    for child in call.body:
        yield from _in_order(child, defined)
    defined.update(id(handle) for handle in handles_in(call.results))


def _base(name: str) -> str:
    word = re.sub(r"\W", "_", name.rpartition(".")[2]).strip("_")
    return word if word and not word[0].isdigit() else f"t_{word}"


def _words(handle: Handle) -> str:
    role, text = handle.hint
    if text:
        return _base(re.sub(r"\W", "_", text))
    return role or ("host" if handle.device == "cpu" else "x")


def _uses(calls: Sequence[Call]) -> Mapping[int, set[str]]:
    """Return by buffer how the step's leaves use it: ``read forward``, ``write optimizer``."""
    found: dict[int, set[str]] = {}
    for call in calls:
        for leaf in call.walk():
            if leaf.body or not is_call_name(leaf.name):
                continue
            written = {id(handle) for handle in leaf.written}
            for handle in handles_in([*leaf.operands, *leaf.attributes.values()]):
                verb = "write" if id(handle) in written else "read"
                found.setdefault(handle.buffer, set()).add(f"{verb} {leaf.phase}")
    return found


def _role(handle: Handle, uses: Mapping[int, set[str]]) -> str:
    """Return ``param`` for what forward reads and the optimizer writes, ``state`` for the rest
    of what is written, else ``input``."""
    if handle.hint[0]:
        return handle.hint[0]
    seen = uses.get(handle.buffer, set())
    if "write optimizer" in seen and "read forward" in seen:
        return "param"
    return "state" if any(use.startswith("write") for use in seen) else "input"
