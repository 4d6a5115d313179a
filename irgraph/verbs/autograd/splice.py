"""Forward ops become others, and their backward becomes that of the others."""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.autograd.bind import backward_of
from irgraph.verbs.autograd.derive import Derived, derive
from irgraph.verbs.autograd.legal import check_swap, check_unwritten
from irgraph.verbs.autograd.match_backward import Backward
from irgraph.verbs.autograd.nodes import Swap
from irgraph.verbs.autograd.region import Region, as_region, is_float, made_by, same_type
from irgraph.verbs.autograd.tensor_mapping import (
    LayoutError,
    NameAllocator,
    TensorMapping,
    shared_module,
)
from irgraph.verbs.extra_accesses import ExtraAccesses
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import Removal
from irgraph.verbs.replace import check_users


class Splice(Struct, frozen=True):
    """Forward ops and their backward, and what comes in their place.

    Attributes:
        members: the forward ops.
        leaves: the leaves of their backward.
        forward: the ops in the place of ``members``.
        nodes: the ops in the place of ``leaves``.
        swaps: gradients whose users use others.
        again: positions in ``forward`` of ops that were among the members, with those.
    """

    members: Sequence[Op]
    leaves: Sequence[Op]
    forward: Sequence[Op]
    nodes: Sequence[Op]
    swaps: Sequence[Swap]
    again: Sequence[tuple[int, Op]]


def splice(
    graph: Graph,
    members: Sequence[Op],
    new: Sequence[Op],
    taken: Container[str],
    held: Container[str],
) -> Splice:
    """Return what would come of putting ``new`` in the place of forward ops.

    ``taken`` are names of tensors that are not free, ``held`` those of buffers. Raises
    ``RefusedError`` as ``Gathering.replace`` does; ``LayoutError`` where a tensor would be laid out
    otherwise.
    """
    found = backward_of(graph, members)
    region, needs = _target(graph, found, new)
    _place((taken, held), derive(region, needs, plain=True), region, found)
    derived = derive(region, needs)
    placing, swaps = _place((taken, held), derived, region, found)
    calls = _calls(derived, new)
    for call, op in calls:
        if len(call.outputs) == len(op.outputs):  # what hands back its operand makes nothing
            pairs = zip(call.outputs, op.outputs, strict=True)
            placing.called.update((a.name, b.name) for a, b in pairs)
    forward, nodes = _ops(placing, derived, calls, members, found.ops)
    _check(graph, members, found, region, (forward, nodes), swaps)
    again = tuple((i, op) for i, (_, op) in enumerate(calls) if op in members)
    return Splice(members, found.leaves, forward, nodes, swaps, again)


def _calls(derived: Derived, new: Sequence[Op]) -> list[tuple[Op, Op]]:
    """Return each derived forward call with the new op that it is."""
    names = [[op.name for op in ops] for ops in (derived.forward, new)]
    if names[0] != names[1]:
        ran = ", ".join(names[0]) or "nothing"
        raise RefusedError(f"this version of torch runs {ran} for the new ops")
    return list(zip(derived.forward, new, strict=True))


def _ops(
    placing: TensorMapping,
    derived: Derived,
    calls: Sequence[tuple[Op, Op]],
    members: Sequence[Op],
    backward: Sequence[Op],
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Return the derived ops as ops of the graph; those called anew are still of their modules."""
    again = [op for _, op in calls if op in members]
    module = shared_module([op for op in members if op not in again] or members)
    modules = {o.origin: op.module for call, op in calls for o in call.walk() if op in again}
    made = placing.ops(derived.forward, members[0], lambda op: modules.get(op.origin, module))
    links = {node: modules.get(call, module) for node, call in derived.links.items()}
    nodes = placing.ops(derived.backward, backward[0], lambda op: links.get(op.origin, module))
    return made, nodes


def _place(
    taken: tuple[Container[str], Container[str]], derived: Derived, region: Region, found: Backward
) -> tuple[TensorMapping, list[Swap]]:
    """Find places for what was derived; return also the gradients that become others' bytes."""
    placing = TensorMapping(NameAllocator(taken[0]), NameAllocator(taken[1]))
    placing.given(derived.inputs, region.inputs)
    placing.given(derived.cotangents, found.cotangents)
    _outputs(placing, derived, found.region)
    return placing, _gradients(placing, derived, region, found)


def _target(graph: Graph, found: Backward, new: Sequence[Op]) -> tuple[Region, tuple[int, ...]]:
    """Return the new ops as a region, and the places of the inputs whose gradient is needed."""
    old = found.region
    made = made_by(new)
    lost = [t for t in old.outputs if t.name not in made]
    if lost:
        raise RefusedError(f"the new ops do not make %{lost[0].name}, which later ops use")
    region = as_region(graph, new, old.outputs)
    wanted = {old.inputs[i].name for i in found.needs}
    known = {t.name for t in old.inputs}
    needs = tuple(i for i, t in enumerate(region.inputs) if t.name in wanted)
    left = wanted - {t.name for t in region.inputs}
    if left:
        raise RefusedError(f"%{min(left)} would get no gradient: the new ops do not use it")
    for tensor in region.inputs:
        given = graph.lasting.get(tensor.buffer, "param") != "param"
        if is_float(tensor) and tensor.name not in known and not given:
            raise RefusedError(f"%{tensor.name} would get a gradient that it did not have")
    return replace(region, cotangents=found.cotangents), needs


def _outputs(placing: TensorMapping, derived: Derived, old: Region) -> None:
    """Let the derived outputs be those of the old ops, which must share bytes with nothing else."""
    held = {t.buffer for t in old.inputs}
    for theirs, mine in zip(derived.outputs, old.outputs, strict=True):
        if mine.buffer in held and placing.is_own(theirs):
            raise RefusedError(f"%{mine.name} would no longer share the bytes of an operand")
        placing.made(theirs, mine)


def _gradients(
    placing: TensorMapping, derived: Derived, region: Region, found: Backward
) -> list[Swap]:
    """Let the derived gradients be the old ones; return pairs of old ones and what replaces them.

    A gradient that is another one's bytes, or part of them, cannot have the buffer that it had.
    """
    old = {found.region.inputs[i].name: t for i, t in found.gradients.items()}
    foreign = {t.buffer for t in (*found.cotangents, *found.region.inputs)}
    pairs = [
        (tensor, theirs, old[tensor.name])
        for tensor, theirs in zip(region.inputs, derived.gradients, strict=True)
        if tensor.name in old
    ]
    later: list[tuple[Tensor, Tensor]] = []
    for tensor, theirs, mine in pairs:
        if theirs is None:
            raise RefusedError(f"%{mine.name} would not be made: the new ops give no gradient")
        if theirs.strides != mine.strides:
            reason = f"the gradient of %{tensor.name} would be laid out otherwise"
            raise LayoutError(reason, tensor, gradient=True)
        fits = theirs.offset <= mine.offset and mine.buffer not in foreign
        if placing.is_own(theirs) and fits:
            placing.made(theirs, mine)
        else:
            later.append((theirs, mine))
    return [(mine, placing.tensor(theirs)) for theirs, mine in later]


def _check(
    graph: Graph,
    members: Sequence[Op],
    found: Backward,
    region: Region,
    made: tuple[Sequence[Op], Sequence[Op]],
    swaps: Sequence[Swap],
) -> None:
    """Refuse what others could tell."""
    old = [*members, *found.leaves]
    gone = {id(leaf) for op in old for leaf in op.leaves()}
    forward, backward = ([leaf for op in ops for leaf in op.leaves()] for ops in made)
    for swap in swaps:
        check_swap(graph, gone, swap)
    rewired = Op("", (), tuple(mine for mine, _ in swaps))
    check_users(graph, old, [*forward, *backward, rewired])
    span = _span(graph, old)
    saved = {t.buffer for t in (*region.inputs, *made_by(members).values())}
    check_unwritten(graph, gone, span, saved, [*found.leaves, *forward, *backward])
    given = {t.buffer for t in found.cotangents}
    check_unwritten(graph, gone, _span(graph, found.leaves), given, backward)
    gains = ExtraAccesses(graph, [*forward, *backward], old)
    gains.reads.clear()
    gains.check(span[0], span[-1])


def _span(graph: Graph, ops: Sequence[Op]) -> range:
    """Return the places from the first to the last leaf of some ops."""
    places = [graph.places[id(leaf)] for op in ops for leaf in op.leaves()]
    return range(min(places, default=0), max(places, default=-1) + 1)


def with_backward(graph: Graph, removal: Removal) -> Removal:
    """Return the removal of forward ops with that of their backward, which hands its gradient on.

    Parameters that they used get a gradient of zeros. Raises ``RefusedError`` where the backward is
    not found as a whole, or makes other gradients.
    """
    if len(removal.swaps) != 1:
        raise RefusedError("with its backward, one result must stand for another: using %x for %y")
    old, new = removal.swaps[0]
    found = backward_of(graph, removal.ops)
    gradients = {found.region.inputs[i].name: t for i, t in found.gradients.items()}
    zeroed = [(t, found.region.inputs[i]) for i, t in found.gradients.items()]
    zeroed = [(t, given) for t, given in zeroed if given.name != new.name]
    others = [given.name for t, given in zeroed if not _may_be_zeros(graph, t, given)]
    if others or new.name not in gradients or [t.name for t in found.region.outputs] != [old.name]:
        lost = min(others, default=new.name)
        raise RefusedError(f"%{lost} has a gradient of its own, or none is made for it")
    handed = (gradients[new.name], found.cotangents[0])
    ops = (*removal.ops, *found.leaves)
    return Removal(ops, (*removal.swaps, handed), tuple(zeroed))


def _may_be_zeros(graph: Graph, gradient: Tensor, given: Tensor) -> bool:
    """Return whether zeros may stand for a gradient: that of a parameter, in memory of its own."""
    declared = any(d.role == "param" and d.tensor.name == given.name for d in graph.tensors)
    return declared and same_type(gradient, given) and gradient.offset == 0
