"""A graph's ops by their names, results and operands, for quick matching."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from irgraph.facts import FactTable
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.tensor import Tensor, overlap
from irgraph.language.patterns.arguments import PassedArgument, arguments
from irgraph.language.patterns.nodes import glob, is_glob
from irgraph.language.patterns.short_forms import copies, pattern_names
from irgraph.ops.live_out import live_out

MAX_CACHED_SELECTIONS = 32
"""Maximum number of selections whose matches an index caches: variants of a step share them."""

MAX_LOSSLESS_MATCHES = 4096
"""Maximum number of legal matches that an index caches."""


class Index:
    """Positions of all ops, outer before inner: ``i+1 .. end[i]-1`` are the ops below op ``i``."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.ops: list[Op] = []
        self.end: list[int] = []
        self.parent: list[int] = []
        self.by_name: dict[str, list[int]] = {}
        # results of ``patterns.select``, and matches that passed ``Losses.check``
        self.selections = FactTable[object, Any](MAX_CACHED_SELECTIONS)
        self.lossless_matches = FactTable[object, Any](MAX_LOSSLESS_MATCHES)
        self._add(graph.ops, -1)

    def _add(self, ops: Sequence[Op], parent: int) -> None:
        """Assign positions to ops and all ops below them."""
        by_name = self.by_name
        copied = copies()
        for op in ops:
            position = len(self.ops)
            self.ops.append(op)
            self.end.append(position + 1)
            self.parent.append(parent)
            for name in pattern_names(op) if op.name in copied else (op.name,):
                if name in by_name:
                    by_name[name].append(position)
                else:
                    by_name[name] = [position]
            if op.body:
                self._add(op.body, position)
                self.end[position] = len(self.ops)

    @cached_property
    def position(self) -> Mapping[Op, int]:
        """The position of each op."""
        return {op: i for i, op in enumerate(self.ops)}

    def present_positions(self, op: Op) -> Sequence[int]:
        """Return the positions of the ops that an op of an earlier graph became."""
        return [self.position[present] for present in self.graph.became(op)]

    @cached_property
    def definers(self) -> Mapping[str, Sequence[int]]:
        """The positions of the ops that define each tensor, by its name."""
        definers: dict[str, list[int]] = {}
        for position, op in enumerate(self.ops):
            for tensor in op.outputs:
                definers.setdefault(tensor.name, []).append(position)
        return definers

    @cached_property
    def users(self) -> Mapping[str, Sequence[int]]:
        """The positions of the ops that use each tensor, by its name."""
        users_by_name: dict[str, list[int]] = {}
        for position, op in enumerate(self.ops):
            for tensor in op.inputs:
                users = users_by_name.setdefault(tensor.name, [])
                if not users or users[-1] != position:
                    users.append(position)
        return users_by_name

    @cached_property
    def in_place_writes(self) -> Mapping[str, Sequence[tuple[int, Tensor]]]:
        """The leaves that write in place in each buffer, each with the tensor that it writes."""
        writes: dict[str, list[tuple[int, Tensor]]] = {}
        for position, op in enumerate(self.ops):
            for tensor in () if op.body else written_by(op):
                writes.setdefault(tensor.buffer, []).append((position, tensor))
        return writes

    def positions_of(self, name: str, after: int = 0) -> Iterator[int]:
        """Yield the positions of the ops whose name matches a name or glob, from ``after`` on."""
        if not is_glob(name):
            positions: Sequence[int] = self.by_name.get(name, ())
        else:
            regex = glob(name)
            matches = [ops for op_name, ops in self.by_name.items() if regex.fullmatch(op_name)]
            positions = sorted({i for ops in matches for i in ops})
        yield from positions[bisect_left(positions, after) :]

    def users_of(self, name: str, after: int = 0) -> Iterator[int]:
        """Yield the positions of the ops that use a tensor as an operand, from ``after`` on."""
        users = self.users.get(name, [])
        yield from users[bisect_left(users, after) :]

    def arguments(self, position: int) -> Sequence[PassedArgument]:
        """Return the arguments of an op in schema order."""
        return arguments(self.ops[position], self.graph.schemas)

    def results(self, position: int) -> Sequence[Value]:
        """Return an op's results; for an autograd scope without results, its live-out tensors.

        These are the tensors that it defines and others use; else the tensors that it writes in
        place; else its operands, as if ``AccumulateGrad`` leaves the gradient unchanged.
        """
        op = self.ops[position]
        if op.results or not op.is_autograd:
            return op.results
        inside = self.ops[position + 1 : self.end[position]]
        created = {t.name: t for inner in inside for t in inner.outputs}
        live_out_tensors = [t for t in created.values() if self._used_after(t, self.end[position])]
        if live_out_tensors:
            return live_out_tensors
        written_tensors = (t for inner in inside if not inner.body for t in written_by(inner))
        written = {t.name: t for t in written_tensors if t.name not in created}
        return list(written.values()) or op.operands

    def is_final(self, op: Op) -> bool:
        """Return whether no later op of the same name accesses the results or writes of an op.

        An ``AccumulateGrad`` node is final if no later one adds to the same gradient.
        """
        position = self.position[op]
        end = self.end[position]
        tensors = list(tensors_in(self.results(position)))
        readers = (user for t in tensors for user in self.users_of(t.name, end))
        writers = (
            writer
            for t in tensors
            for writer, written in self.in_place_writes.get(t.buffer, ())
            if writer >= end and overlap(written, t)
        )
        return not any(
            self.ops[scope].name == op.name
            for later in chain(readers, writers)
            for scope in self.scopes(later)
        )

    def _used_after(self, tensor: Tensor, position: int) -> bool:
        users = self.users.get(tensor.name, [])
        return users != [] and users[-1] >= position

    def is_inside(self, position: int, outer: int) -> bool:
        """Return whether an op is ``outer`` or below it."""
        return outer <= position < self.end[outer]

    def scopes(self, position: int) -> Iterator[int]:
        """Yield an op and the ops around it, inner first."""
        while position >= 0:
            yield position
            position = self.parent[position]

    def caller_name(self, op: Op) -> str:
        """Return the name of the op that called an op, ``""`` at the top level."""
        parent = self.parent[self.position[op]]
        return "" if parent < 0 else self.ops[parent].name

    @cached_property
    def live_out_kinds(self) -> Mapping[str, str]:
        """The kind of every live-out tensor of the step, by its name."""
        return live_out(self.graph)

    @cached_property
    def lasting_buffers(self) -> frozenset[str]:
        """The buffers that exist before the step, and the buffers of returned tensors."""
        returned = (tensor.buffer for tensor in self.graph.returned or ())
        return frozenset([*self.graph.lasting, *returned])

    @cached_property
    def accesses(self) -> Mapping[str, Sequence[int]]:
        """The positions of the leaves that use or define a tensor in each buffer."""
        positions_by_buffer: dict[str, list[int]] = {}
        for position, op in enumerate(self.ops):
            for buffer in () if op.body else {t.buffer for t in (*op.inputs, *op.outputs)}:
                positions_by_buffer.setdefault(buffer, []).append(position)
        return positions_by_buffer

    def writers_between(self, tensor: Tensor, start: int, end: int) -> Iterator[int]:
        """Yield the ops from ``start`` to before ``end`` that write bytes of a tensor in place."""
        for position, other in self.in_place_writes.get(tensor.buffer, ()):
            if start <= position < end and overlap(tensor, other):
                yield position


MAX_INDEXES = 4
"""Maximum number of graphs whose index is cached: searches rewrite the same graphs repeatedly."""

_RECENT: list[Index] = []


def index_of(graph: Graph) -> Index:
    """Return the index of a graph, cached for the most recent graphs."""
    result = next((index for index in tuple(_RECENT) if index.graph is graph), None) or Index(graph)
    _RECENT[:] = [result, *(index for index in tuple(_RECENT) if index is not result)][:MAX_INDEXES]
    return result
