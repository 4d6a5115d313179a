"""A graph's ops by name, by what they define and by what they use, for quick matching."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.live_out import live_out
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor, overlap
from irgraph.language.patterns.arguments import PassedArgument, arguments
from irgraph.language.patterns.nodes import glob, is_glob
from irgraph.language.patterns.short_forms import COPIES, called


class Index:
    """Positions of all ops, outer before inner: what lies below op ``i`` is ``i+1 .. end[i]-1``."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.end: list[int] = []
        self.parent: list[int] = []
        self.by_name: dict[str, list[int]] = {}
        self.selected: dict[object, Any] = {}  # what ``patterns.select`` found before
        self.sound: dict[object, Any] = {}  # matches that lose nothing in a template
        self._add(graph.ops, -1)

    def _add(self, ops: Sequence[Op], parent: int) -> None:
        """Place ops and all below them."""
        names = self.by_name
        for op in ops:
            here = len(self.ops)
            self.ops.append(op)
            self.end.append(here + 1)
            self.parent.append(parent)
            for name in called(op) if op.name in COPIES else (op.name,):
                if name in names:
                    names[name].append(here)
                else:
                    names[name] = [here]
            if op.body:
                self._add(op.body, here)
                self.end[here] = len(self.ops)

    @cached_property
    def position(self) -> Mapping[int, int]:
        """The position of each op by its ``id``."""
        return {id(op): i for i, op in enumerate(self.ops)}

    @cached_property
    def definers(self) -> Mapping[str, Sequence[int]]:
        """By name of a tensor: the ops that make it."""
        found: dict[str, list[int]] = {}
        for here, op in enumerate(self.ops):
            for tensor in op.outputs:
                found.setdefault(tensor.name, []).append(here)
        return found

    @cached_property
    def users(self) -> Mapping[str, Sequence[int]]:
        """By name of a tensor: the ops that take it."""
        found: dict[str, list[int]] = {}
        for here, op in enumerate(self.ops):
            for tensor in op.inputs:
                users = found.setdefault(tensor.name, [])
                if not users or users[-1] != here:
                    users.append(here)
        return found

    @cached_property
    def writes(self) -> Mapping[str, Sequence[tuple[int, Tensor]]]:
        """By buffer: the leaves that write a tensor there in place."""
        found: dict[str, list[tuple[int, Tensor]]] = {}
        for here, op in enumerate(self.ops):
            for tensor in () if op.body else written_by(op):
                found.setdefault(tensor.buffer, []).append((here, tensor))
        return found

    def named(self, name: str, after: int = 0) -> Iterator[int]:
        """Yield the ops whose name matches a name or glob, from a position on."""
        if not is_glob(name):
            found: Sequence[int] = self.by_name.get(name, ())
        else:
            regex = glob(name)
            lists = [ops for known, ops in self.by_name.items() if regex.fullmatch(known)]
            found = sorted({i for ops in lists for i in ops})
        yield from found[bisect_left(found, after) :]

    def users_of(self, name: str, after: int = 0) -> Iterator[int]:
        """Yield the ops that have a tensor among their operands, from a position on."""
        found = self.users.get(name, [])
        yield from found[bisect_left(found, after) :]

    def arguments(self, here: int) -> Sequence[PassedArgument]:
        """Return the arguments of an op in schema order."""
        return arguments(self.ops[here], self.graph.schemas)

    def results(self, here: int) -> Sequence[Value]:
        """Return an op's results; an autograd scope without any hands on what leaves it.

        That is what it defines and others use; else what it writes in place; else, as where
        ``AccumulateGrad`` keeps the gradient as it is, its operands.
        """
        op = self.ops[here]
        if op.results or not op.is_autograd:
            return op.results
        inside = self.ops[here + 1 : self.end[here]]
        made = {t.name: t for inner in inside for t in inner.outputs}
        leaving = [t for t in made.values() if self._used_after(t, self.end[here])]
        if leaving:
            return leaving
        touched = (t for inner in inside if not inner.body for t in written_by(inner))
        written = {t.name: t for t in touched if t.name not in made}
        return list(written.values()) or op.operands

    def _used_after(self, tensor: Tensor, position: int) -> bool:
        users = self.users.get(tensor.name, [])
        return users != [] and users[-1] >= position

    def inside(self, here: int, outer: int) -> bool:
        """Return whether an op is another one or lies below it."""
        return outer <= here < self.end[outer]

    def scopes(self, here: int) -> Iterator[int]:
        """Yield an op and the ops around it, inner first."""
        while here >= 0:
            yield here
            here = self.parent[here]

    def around(self, op: Op) -> str:
        """Return the name of the op that called an op, ``""`` at the top level."""
        parent = self.parent[self.position[id(op)]]
        return "" if parent < 0 else self.ops[parent].name

    @cached_property
    def leaving(self) -> Mapping[str, str]:
        """The kind of every tensor that leaves the step, by its name."""
        return live_out(self.graph)

    @cached_property
    def lasting(self) -> frozenset[str]:
        """The buffers that exist before the step, or that the step returns tensors in."""
        returned = (tensor.buffer for tensor in self.graph.returned or ())
        return frozenset([*self.graph.lasting, *returned])

    @cached_property
    def touches(self) -> Mapping[str, Sequence[int]]:
        """The positions of the leaves that use or make a tensor in a buffer."""
        found: dict[str, list[int]] = {}
        for here, op in enumerate(self.ops):
            for buffer in () if op.body else {t.buffer for t in (*op.inputs, *op.outputs)}:
                found.setdefault(buffer, []).append(here)
        return found

    def writers_between(self, tensor: Tensor, start: int, end: int) -> Iterator[int]:
        """Yield the ops from ``start`` to before ``end`` that write bytes of a tensor in place."""
        for here, other in self.writes.get(tensor.buffer, ()):
            if start <= here < end and overlap(tensor, other):
                yield here


MOST = 4
"""Graphs whose index is remembered: searches rewrite the same ones again and again."""

_RECENT: list[Index] = []


def index_of(graph: Graph) -> Index:
    """Return the index of a graph, which may have been built before."""
    found = next((index for index in tuple(_RECENT) if index.graph is graph), None) or Index(graph)
    _RECENT[:] = [found, *(index for index in tuple(_RECENT) if index is not found)][:MOST]
    return found
