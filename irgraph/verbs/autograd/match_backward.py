"""Matching of the calls of a derived backward, individually, with the calls of a graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.verbs.autograd.derive import Derived, derive
from irgraph.verbs.autograd.legality import check_passed_tensors
from irgraph.verbs.autograd.region import ForwardRegion, equal, results_of, same_type
from irgraph.verbs.refusal import RefusedError

Item = TypeVar("Item")


class MissingCallError(RefusedError):
    """A call of the derived backward is missing in the graph."""


class UnclearBackwardError(RefusedError):
    """The backward of an output is ambiguous without the output's gradient."""


class Backward(Struct, frozen=True):
    """The backward of some forward ops in a graph.

    Attributes:
        region: the forward ops.
        needs: positions of the inputs that have a gradient.
        ops: the autograd nodes that contain it, in launch order.
        leaves: the leaves of these nodes, and the empty nodes, that are part of it.
        cotangents: the gradients of the region's outputs, ``None`` for outputs without one.
        gradients: the gradients of its inputs, by position.
        inner_gradients: the gradients of its inner tensors.
    """

    region: ForwardRegion
    needs: tuple[int, ...]
    ops: tuple[Op, ...]
    leaves: tuple[Op, ...]
    cotangents: tuple[Tensor | None, ...]
    gradients: Mapping[int, Tensor]
    inner_gradients: tuple[Tensor | None, ...] = ()


def byte_layout(tensor: Tensor) -> tuple[object, ...]:
    """Return a key of a tensor's bytes and of their interpretation."""
    return (tensor.buffer, tensor.offset, tensor.dtype, tensor.shape, tensor.strides)


@cached_per_graph
def outermost(graph: Graph) -> Mapping[Op, Op]:
    """Return the outermost op around each leaf that is no annotation."""
    return {leaf: op for op in graph.top_level() for leaf in op.leaves()}


@dataclass
class BackwardMatcher:
    """Search for pairs of derived ops and ops of a graph.

    Attributes:
        names: the graph's tensor of each matched derived tensor, by name.
        pairs: the graph's leaf of each matched derived leaf.
    """

    graph: Graph
    derived: Derived
    members: Sequence[Op]
    names: dict[str, Tensor] = field(default_factory=dict)
    pairs: dict[Op, Op] = field(default_factory=dict)

    @classmethod
    def find(
        cls,
        graph: Graph,
        region: ForwardRegion,
        needs: tuple[int, ...],
        members: Sequence[Op],
        cotangents: Sequence[Tensor | None] = (),
    ) -> Backward:
        """Return the backward of a region, or raise ``RefusedError``.

        ``cotangents`` are the known gradients of its outputs.
        """
        matcher = cls(graph, derive(region, needs, plain=True), members)
        for derived, tensor in zip(matcher.derived.cotangents, cotangents, strict=False):
            if derived is not None and tensor is not None:
                matcher.names[derived.name] = tensor
        return matcher.run(region, needs)

    def run(self, region: ForwardRegion, needs: tuple[int, ...]) -> Backward:
        """Return the backward with all its ops, or raise ``RefusedError``."""
        self._match_forward(region)
        self.outer_by_leaf, self.derived_outer = (
            outermost(self.graph),
            outermost(self.derived.graph),
        )
        self.ops_by_bytes: dict[tuple[object, ...], list[Op]] = {}
        self.matched_ops: set[Op] = set()
        # Not in order: each round pairs any derived leaf with a single candidate, which fixes
        # tensors that distinguish the candidates of other leaves. There is no backtracking, so
        # none is paired by a guess.
        leaves = [leaf for op in self.derived.backward for leaf in op.leaves()]
        unmatched = [leaf for leaf in leaves if leaf.outputs or leaf.written]
        while unmatched:
            pair = self._next_pair(unmatched)
            self._pair(*pair)
            unmatched.remove(pair[0])
        self._check_order(leaves)
        for leaf in leaves:
            if not leaf.outputs and not leaf.written and not leaf.is_autograd:
                self._pair_without_effect(leaf)
        return self._backward(region, needs)

    def _pair_without_effect(self, leaf: Op) -> None:
        """Pair a call that returns its operand, if the graph has one: any will do."""
        candidates = self._candidates(leaf)
        if candidates:
            self._pair(leaf, candidates[0])

    def _check_order(self, leaves: Sequence[Op]) -> None:
        """Refuse if calls on bytes that the backward writes run in another order than derived."""
        written = {t.buffer for leaf in leaves for t in leaf.inputs if t.name in leaf.written}
        for buffer in written:
            accesses = [
                self.pairs[leaf]
                for leaf in leaves
                if leaf in self.pairs
                and any(t.buffer == buffer for t in (*leaf.inputs, *leaf.outputs))
            ]
            positions = [self.graph.places[op] for op in accesses]
            if positions != sorted(positions):
                reason = "its backward writes in place in another order than torch's"
                raise MissingCallError(reason, [(accesses[0], "")])

    def _backward(self, region: ForwardRegion, needs: tuple[int, ...]) -> Backward:
        """Return the matched backward; raise ``RefusedError`` if a gradient is not matched."""
        cotangents = tuple(map(self._graph_tensor, self.derived.cotangents))
        if any(d and not t for d, t in zip(self.derived.cotangents, cotangents, strict=True)):
            reason = "its gradient cannot be told from others"
            raise UnclearBackwardError(reason, [(self.members[0], "")])
        numbered = enumerate(map(self._graph_tensor, self.derived.gradients))
        gradients = {i: tensor for i, tensor in numbered if tensor is not None}
        if len(gradients) < len(needs):
            unused = next(i for i in needs if i not in gradients)
            raise MissingCallError(f"%{region.inputs[unused].name} gets no gradient from it")
        region = replace(region, cotangents=cotangents)
        ops = self._ops()
        leaves = (leaf for op in ops for leaf in op.leaves())
        own_leaves = tuple(
            leaf for leaf in leaves if leaf in self.matched_ops or is_pass_through(leaf)
        )
        inner = [leaf for op in self.members for leaf in op.leaves()]
        check_passed_tensors(self.graph, [*inner, *own_leaves])
        inner_gradients = tuple(map(self._graph_tensor, self.derived.inner_gradients))
        return Backward(region, needs, ops, own_leaves, cotangents, gradients, inner_gradients)

    def _match_forward(self, region: ForwardRegion) -> None:
        """Match the inputs, and the results of the forward ops."""
        for derived, tensor in zip(self.derived.inputs, region.inputs, strict=True):
            self.names[derived.name] = tensor
        derived_leaves = [leaf for op in self.derived.forward for leaf in op.leaves()]
        member_leaves = [leaf for op in self.members for leaf in op.leaves()]
        names = [leaf.name for leaf in derived_leaves], [leaf.name for leaf in member_leaves]
        if names[0] != names[1]:
            differing = next((i for i, n in enumerate(names[1]) if [n] != names[0][i : i + 1]), 0)
            reason = f"this version of torch runs {', '.join(names[0])} for it"
            raise RefusedError(reason, [(member_leaves[differing], "")])
        for a, b in zip(derived_leaves, member_leaves, strict=True):
            if not self._fits(a, b):
                text = _render_call(a, self.names)
                raise RefusedError(f"this version of torch runs {text} for it", [(b, "")])
            self._match(a, b)

    def _next_pair(self, unmatched: Sequence[Op]) -> tuple[Op, Op]:
        """Return a derived leaf with a single candidate in the graph, and this candidate."""
        ambiguous: tuple[Op, list[Op]] | None = None
        for leaf in unmatched:
            candidates = self._candidates(leaf)
            if candidates is None:
                continue
            if not candidates:
                reason = f"its backward is not there: no {_render_call(leaf, self.names)}"
                raise MissingCallError(reason)
            if len(candidates) == 1:
                return leaf, candidates[0]
            ambiguous = ambiguous or (leaf, candidates)
        if ambiguous is None:
            reason = "its backward reads nothing of it, and cannot be told apart"
            raise UnclearBackwardError(reason)
        leaf, candidates = ambiguous
        if self._is_repeated(leaf, candidates, unmatched):
            return leaf, min(candidates, key=self.graph.places.__getitem__)
        notes = [(op, f"{op.name} may be it") for op in candidates[:2]]
        reason = f"there are {len(candidates)} of its backward's {leaf.name}"
        # only its own backward reads an op's result with a gradient: two calls are two backwards
        kind = RefusedError if self._reads_result(leaf) else UnclearBackwardError
        raise kind(reason, notes)

    def _reads_result(self, leaf: Op) -> bool:
        """Return whether a derived call reads a result of the members, and a gradient."""
        results = results_of(self.members)
        tensors = [self.names.get(tensor.name) for tensor in leaf.inputs]
        return None in tensors and any(t is not None and t.name in results for t in tensors)

    def _is_repeated(self, leaf: Op, candidates: Sequence[Op], unmatched: Sequence[Op]) -> bool:
        """Return whether candidates are the repetitions of a derived call, in torch's order.

        Calls of one node run in the order in which they are derived. Calls of several nodes are
        interchangeable only if the gradients of all outputs are matched already.
        """
        repeated = [other for other in unmatched if self._candidates(other) == candidates]
        if len(repeated) != len(candidates) or repeated[0] is not leaf:
            return False
        if all(t is None or t.name in self.names for t in self.derived.cotangents):
            return True
        nodes = {self.derived_outer[other] for other in repeated}
        return len(nodes) == len({self.outer_by_leaf[op] for op in candidates}) == 1

    def _candidates(self, leaf: Op) -> list[Op] | None:
        """Return the candidates for a derived leaf; ``None`` if none of its tensors is matched."""
        results = [self.names[t.name] for t in leaf.outputs if t.name in self.names]
        known_tensors = results or [self.names[t.name] for t in leaf.inputs if t.name in self.names]
        if not known_tensors:
            return None
        lists = [self._ops_using(tensor) for tensor in known_tensors]
        # Its op must use all known tensors: the shortest list has all candidates.
        shortest = min(lists, key=len)
        candidates = [op for op in shortest if op not in self.matched_ops and self._fits(leaf, op)]
        # Equal calls on equal tensors occur if a value is used twice (x + x). The autograd
        # node's name, then the module, distinguish them; the result is equal for any choice.
        for is_same in (self._same_node, self._same_module) if len(candidates) > 1 else ():
            narrowed = [op for op in candidates if is_same(leaf, op)]
            if len(narrowed) == 1:
                return narrowed
        return candidates

    def _ops_using(self, tensor: Tensor) -> list[Op]:
        """Return the leaves of the backward pass that use or define a tensor, by its bytes."""
        key = byte_layout(tensor)
        if key not in self.ops_by_bytes:
            touching = (leaf for _, leaf in self.graph.touching.get(tensor.buffer, ()))
            self.ops_by_bytes[key] = [
                leaf
                for leaf in touching
                if leaf.phase == "backward"
                and any(byte_layout(t) == key for t in (*leaf.inputs, *leaf.outputs))
            ]
        return self.ops_by_bytes[key]

    def _same_node(self, leaf: Op, op: Op) -> bool:
        return self.outer_by_leaf[op].name == self.derived_outer[leaf].name

    def _same_module(self, _: Op, op: Op) -> bool:
        return op.module in {member.module for member in self.members}

    def _fits(self, leaf: Op, op: Op) -> bool:
        return (
            leaf.name == op.name
            and dict(leaf.attributes).keys() == dict(op.attributes).keys()
            and all(self._is_compatible(v, op.attributes[k]) for k, v in leaf.attributes.items())
            and self._is_compatible(leaf.operands, op.operands)
            and self._is_compatible(leaf.results, op.results)
        )

    def _is_compatible(self, derived: object, value: object) -> bool:
        if isinstance(derived, Tensor) and isinstance(value, Tensor):
            mapped = self.names.get(derived.name)
            return same_type(derived, value) and (
                mapped is None or byte_layout(mapped) == byte_layout(value)
            )
        if isinstance(derived, tuple) and isinstance(value, tuple):
            return len(derived) == len(value) and all(map(self._is_compatible, derived, value))
        return equal(derived, value)  # type: ignore[arg-type]

    def _pair(self, leaf: Op, op: Op) -> None:
        self.pairs[leaf] = op
        self.matched_ops.add(op)
        self._match(leaf, op)

    def _match(self, leaf: Op, op: Op) -> None:
        """Record the graph's tensors for the tensors of a derived leaf."""
        for a, b in ((leaf.operands, op.operands), (leaf.results, op.results)):
            self._unify(a, b)
        for name, value in leaf.attributes.items():
            self._unify(value, op.attributes[name])

    def _unify(self, derived: object, value: object) -> None:
        if isinstance(derived, Tensor) and isinstance(value, Tensor):
            mapped = self.names.setdefault(derived.name, value)
            if byte_layout(mapped) != byte_layout(value):
                reason = f"its backward takes %{mapped.name} where %{value.name} is taken here"
                raise MissingCallError(reason, [(self.members[0], "")])
            self.names[derived.name] = value
        elif isinstance(derived, tuple) and isinstance(value, tuple):
            for a, b in zip(derived, value, strict=True):
                self._unify(a, b)

    def _ops(self) -> tuple[Op, ...]:
        """Return the outermost ops that contain matched leaves, and pass-through nodes."""
        gradient_names = {
            t.name for t in map(self._graph_tensor, self.derived.gradients) if t is not None
        }
        intermediate = {
            t.name: t
            for op in self.pairs.values()
            for t in op.outputs
            if t.name not in gradient_names
        }
        # Nodes without a call (an AddBackward0 that passes its gradient on) have no leaf to pair,
        # but are part of the backward. They are found by their name and the bytes that they pass.
        pass_through_keys = [
            (op.name, self._input_bytes(op)) for op in self.derived.backward if not op.body
        ]
        buffers = {t.buffer for t in intermediate.values()}
        buffers.update(
            t.buffer
            for op in self.derived.backward
            if not op.body
            for t in map(self._graph_tensor_or_self, op.inputs)
        )
        ops = {self.outer_by_leaf[leaf] for leaf in self.matched_ops}
        leaf_by_position = {i: leaf for b in buffers for i, leaf in self.graph.touching.get(b, ())}
        for _, op in sorted(leaf_by_position.items(), key=_position):
            if is_pass_through(op) and self.outer_by_leaf[op] is op:
                key = (op.name, tuple(map(byte_layout, op.inputs)))
                if key in pass_through_keys or all(t.name in intermediate for t in op.inputs):
                    pass_through_keys = _without(pass_through_keys, key)
                    ops.add(op)
        return tuple(sorted(ops, key=lambda op: self.graph.paths[op]))

    def _graph_tensor(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self.names.get(tensor.name)

    def _input_bytes(self, op: Op) -> tuple[tuple[object, ...], ...]:
        return tuple(byte_layout(self._graph_tensor_or_self(t)) for t in op.inputs)

    def _graph_tensor_or_self(self, tensor: Tensor) -> Tensor:
        return self.names.get(tensor.name, tensor)


def _position(entry: tuple[int, Op]) -> int:
    return entry[0]


def _without(items: list[Item], item: Item) -> list[Item]:
    """Return a list without the first occurrence of an item, if any."""
    index = items.index(item) if item in items else len(items)
    return [*items[:index], *items[index + 1 :]]


def is_pass_through(op: Op) -> bool:
    """Return whether an autograd node passes a gradient on without a call."""
    return op.is_autograd and not op.body and not op.outputs and bool(op.inputs)


def _render_call(leaf: Op, names: Mapping[str, Tensor]) -> str:
    """Return a derived call as text, with the graph's names of its tensors."""

    def text(value: Value) -> str:
        if isinstance(value, Tensor):
            return f"%{names[value.name].name}" if value.name in names else "_"
        return f"[{', '.join(map(text, value))}]" if isinstance(value, tuple) else str(value)

    parts = [text(value) for value in leaf.operands]
    return f"{leaf.name}({', '.join(parts)})"
