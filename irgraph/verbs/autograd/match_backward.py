"""Pairs the calls of a derived backward, one by one, with those of a graph."""

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
from irgraph.verbs.autograd.legal import check_handed
from irgraph.verbs.autograd.region import Region, equal, same_type
from irgraph.verbs.refusal import RefusedError

Item = TypeVar("Item")


class MissingCallError(RefusedError):
    """A call that the backward would make is not there."""


class Backward(Struct, frozen=True):
    """The backward of some forward ops in a graph.

    Attributes:
        region: the forward ops.
        needs: places of the inputs that have a gradient.
        ops: the autograd nodes that it stands in, in launch order.
        leaves: those of their leaves, and those nodes without any, that belong to it.
        cotangents: the gradients of the region's outputs.
        gradients: the gradients of its inputs, by place.
    """

    region: Region
    needs: tuple[int, ...]
    ops: tuple[Op, ...]
    leaves: tuple[Op, ...]
    cotangents: tuple[Tensor, ...]
    gradients: Mapping[int, Tensor]


def bytes_of(tensor: Tensor) -> tuple[object, ...]:
    """Return what tells a tensor's bytes, and how they are read, from those of others."""
    return (tensor.buffer, tensor.offset, tensor.dtype, tensor.shape, tensor.strides)


@cached_per_graph
def outermost(graph: Graph) -> Mapping[int, Op]:
    """Return by ``id`` of a leaf the outermost op around it that is no annotation."""
    return {id(leaf): op for op in graph.top_level() for leaf in op.leaves()}


@dataclass
class Finding:
    """Pairs the derived ops with those of a graph.

    Attributes:
        names: for the derived tensors that are known so far, the graph's.
        pairs: for the derived leaves that are found, the graph's, by ``id``.
    """

    graph: Graph
    derived: Derived
    members: Sequence[Op]
    names: dict[str, Tensor] = field(default_factory=dict)
    pairs: dict[int, Op] = field(default_factory=dict)

    @classmethod
    def of(
        cls, graph: Graph, region: Region, needs: tuple[int, ...], members: Sequence[Op]
    ) -> Backward:
        """Return the backward of a region, or raise ``RefusedError``."""
        finding = cls(graph, derive(region, needs, plain=True), members)
        return finding.run(region, needs)

    def run(self, region: Region, needs: tuple[int, ...]) -> Backward:
        """Find all ops, or raise ``RefusedError``."""
        self._forward(region)
        self.own, self.theirs = outermost(self.graph), outermost(self.derived.graph)
        self.near: dict[tuple[object, ...], list[Op]] = {}
        self.taken: set[int] = set()
        # Not in order: each round pairs whichever derived leaf has one candidate only, which fixes
        # tensors that tell the candidates of others apart. A guess is never taken back, so none is
        # made.
        left = [leaf for op in self.derived.backward for leaf in op.leaves() if leaf.outputs]
        while left:
            step = self._next(left)
            self._pair(*step)
            left.remove(step[0])
        return self._backward(region, needs)

    def _backward(self, region: Region, needs: tuple[int, ...]) -> Backward:
        """Return what was found, if all that goes in and comes out of it is known."""
        cotangents = [*map(self._known, self.derived.cotangents)]
        known = tuple(t for t in cotangents if t is not None)
        found = enumerate(map(self._known, self.derived.gradients))
        gradients = {i: tensor for i, tensor in found if tensor is not None}
        if len(known) < len(cotangents) or len(gradients) < len(needs):
            raise RefusedError("its gradient cannot be told from others", [(self.members[0], "")])
        region = replace(region, cotangents=known)
        ops = self._ops()
        leaves = (leaf for op in ops for leaf in op.leaves())
        mine = tuple(leaf for leaf in leaves if id(leaf) in self.taken or is_handing(leaf))
        inner = [leaf for op in self.members for leaf in op.leaves()]
        check_handed(self.graph, [*inner, *mine])
        return Backward(region, needs, ops, mine, known, gradients)

    def _forward(self, region: Region) -> None:
        """Pair the inputs, and what the forward ops make."""
        for theirs, mine in zip(self.derived.inputs, region.inputs, strict=True):
            self.names[theirs.name] = mine
        theirs_ = [leaf for op in self.derived.forward for leaf in op.leaves()]
        mine_ = [leaf for op in self.members for leaf in op.leaves()]
        names = [leaf.name for leaf in theirs_], [leaf.name for leaf in mine_]
        if names[0] != names[1]:
            odd = next((i for i, n in enumerate(names[1]) if [n] != names[0][i : i + 1]), 0)
            reason = f"this version of torch runs {', '.join(names[0])} for it"
            raise RefusedError(reason, [(mine_[odd], "")])
        for a, b in zip(theirs_, mine_, strict=True):
            if not self._fits(a, b):
                text = _shown(a, self.names)
                raise RefusedError(f"this version of torch runs {text} for it", [(b, "")])
            self._match(a, b)

    def _next(self, left: Sequence[Op]) -> tuple[Op, Op]:
        """Return a derived leaf for which just one op of the graph will do, with that."""
        doubtful: tuple[Op, list[Op]] | None = None
        for leaf in left:
            found = self._candidates(leaf)
            if found is None:
                continue
            if not found:
                lacking = f"its backward is not there: no {_shown(leaf, self.names)}"
                raise MissingCallError(lacking)
            if len(found) == 1:
                return leaf, found[0]
            doubtful = doubtful or (leaf, found)
        if doubtful is None:
            raise RefusedError("its backward reads nothing of it, and cannot be told apart")
        leaf, found = doubtful
        told = [(op, f"{op.name} may be it") for op in found[:2]]
        raise RefusedError(f"there are {len(found)} of its backward's {leaf.name}", told)

    def _candidates(self, leaf: Op) -> list[Op] | None:
        """Return the ops that may be a derived leaf; ``None`` where nothing of it is known yet."""
        made = [self.names[t.name] for t in leaf.outputs if t.name in self.names]
        known = made or [self.names[t.name] for t in leaf.inputs if t.name in self.names]
        if not known:
            return None
        lists = [self._using(tensor) for tensor in known]
        # Its op must use all known tensors: looking where the fewest ops do is enough.
        shortest = min(lists, key=len)
        found = [op for op in shortest if id(op) not in self.taken and self._fits(leaf, op)]
        # Equal calls on equal tensors happen where a value is used twice (x + x). The autograd
        # node's name, then the module, tell them apart without changing what is computed.
        for alike in (self._same_node, self._same_module) if len(found) > 1 else ():
            inside = [op for op in found if alike(leaf, op)]
            if len(inside) == 1:
                return inside
        return found

    def _using(self, tensor: Tensor) -> list[Op]:
        """Return the leaves of the backward pass that take or make a tensor, by its bytes."""
        key = bytes_of(tensor)
        if key not in self.near:
            touching = (leaf for _, leaf in self.graph.touching.get(tensor.buffer, ()))
            self.near[key] = [
                leaf
                for leaf in touching
                if leaf.phase == "backward"
                and any(bytes_of(t) == key for t in (*leaf.inputs, *leaf.outputs))
            ]
        return self.near[key]

    def _same_node(self, leaf: Op, op: Op) -> bool:
        return self.own[id(op)].name == self.theirs[id(leaf)].name

    def _same_module(self, _: Op, op: Op) -> bool:
        return op.module in {member.module for member in self.members}

    def _fits(self, leaf: Op, op: Op) -> bool:
        return (
            leaf.name == op.name
            and dict(leaf.attributes).keys() == dict(op.attributes).keys()
            and all(self._may_be(v, op.attributes[k]) for k, v in leaf.attributes.items())
            and self._may_be(leaf.operands, op.operands)
            and self._may_be(leaf.results, op.results)
        )

    def _may_be(self, theirs: object, mine: object) -> bool:
        if isinstance(theirs, Tensor) and isinstance(mine, Tensor):
            known = self.names.get(theirs.name)
            return same_type(theirs, mine) and (known is None or bytes_of(known) == bytes_of(mine))
        if isinstance(theirs, tuple) and isinstance(mine, tuple):
            return len(theirs) == len(mine) and all(map(self._may_be, theirs, mine))
        return equal(theirs, mine)  # type: ignore[arg-type]

    def _pair(self, leaf: Op, op: Op) -> None:
        self.pairs[id(leaf)] = op
        self.taken.add(id(op))
        self._match(leaf, op)

    def _match(self, leaf: Op, op: Op) -> None:
        """Note what the tensors of a derived leaf are in the graph."""
        for a, b in ((leaf.operands, op.operands), (leaf.results, op.results)):
            self._unify(a, b)
        for name, value in leaf.attributes.items():
            self._unify(value, op.attributes[name])

    def _unify(self, theirs: object, mine: object) -> None:
        if isinstance(theirs, Tensor) and isinstance(mine, Tensor):
            known = self.names.setdefault(theirs.name, mine)
            if bytes_of(known) != bytes_of(mine):
                told = f"its backward takes %{known.name} where %{mine.name} is taken here"
                raise MissingCallError(told, [(self.members[0], "")])
            self.names[theirs.name] = mine
        elif isinstance(theirs, tuple) and isinstance(mine, tuple):
            for a, b in zip(theirs, mine, strict=True):
                self._unify(a, b)

    def _ops(self) -> tuple[Op, ...]:
        """Return the outermost ops that hold what was found, and nodes that only hand it on."""
        kept = {t.name for t in map(self._known, self.derived.gradients) if t is not None}
        made = {t.name: t for op in self.pairs.values() for t in op.outputs if t.name not in kept}
        # Nodes without a call (an AddBackward0 that passes its gradient on) have nothing to pair,
        # yet belong to what goes. They are known by their name and by the bytes that they pass.
        handing = [(op.name, self._bytes(op)) for op in self.derived.backward if not op.body]
        buffers = {t.buffer for t in made.values()}
        buffers.update(
            t.buffer
            for op in self.derived.backward
            if not op.body
            for t in map(self._known_or_own, op.inputs)
        )
        found = {id(op): op for op in (self.own[leaf] for leaf in self.taken)}
        near = {i: leaf for b in buffers for i, leaf in self.graph.touching.get(b, ())}
        for _, op in sorted(near.items(), key=_place):
            if is_handing(op) and self.own[id(op)] is op:
                key = (op.name, tuple(map(bytes_of, op.inputs)))
                if key in handing or all(t.name in made for t in op.inputs):
                    handing = _without(handing, key)
                    found[id(op)] = op
        return tuple(sorted(found.values(), key=lambda op: self.graph.paths[id(op)]))

    def _known(self, tensor: Tensor | None) -> Tensor | None:
        return None if tensor is None else self.names.get(tensor.name)

    def _bytes(self, op: Op) -> tuple[tuple[object, ...], ...]:
        return tuple(bytes_of(self._known_or_own(t)) for t in op.inputs)

    def _known_or_own(self, tensor: Tensor) -> Tensor:
        return self.names.get(tensor.name, tensor)


def _place(standing: tuple[int, Op]) -> int:
    return standing[0]


def _without(items: list[Item], item: Item) -> list[Item]:
    """Return a list without the first of some equal items, if there is one."""
    at = items.index(item) if item in items else len(items)
    return [*items[:at], *items[at + 1 :]]


def is_handing(op: Op) -> bool:
    """Return whether an autograd node hands on a gradient without a call."""
    return op.is_autograd and not op.body and not op.outputs and bool(op.inputs)


def _shown(leaf: Op, names: Mapping[str, Tensor]) -> str:
    """Return a derived call as the graph would have it."""

    def text(value: Value) -> str:
        if isinstance(value, Tensor):
            return f"%{names[value.name].name}" if value.name in names else "_"
        return f"[{', '.join(map(text, value))}]" if isinstance(value, tuple) else str(value)

    parts = [text(value) for value in leaf.operands]
    return f"{leaf.name}({', '.join(parts)})"
