"""Forward ops become others, and their backward becomes that of the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.autograd.bind import backward_of
from irgraph.verbs.autograd.derive import Derived, derive
from irgraph.verbs.autograd.finding import Backward
from irgraph.verbs.autograd.legal import check_swap, check_unwritten
from irgraph.verbs.autograd.nodes import Swap, exchanged, with_others
from irgraph.verbs.autograd.place import LayoutError, Placing, shared_module
from irgraph.verbs.autograd.region import Region, as_region, is_float, made_by
from irgraph.verbs.fuse import Fusion, put_in_place
from irgraph.verbs.gains import Gains
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import Removal
from irgraph.verbs.replace import check_users

MOST_NEIGHBOURS = 16
"""How often ops beside the members may be drawn in."""

LEGAL = "its backward was found call by call as autograd makes it, and made anew"


class Both(Struct, frozen=True):
    """What became of forward ops and their backward.

    Attributes:
        fusion: the new ops.
        again: by ``id``, ops beside the members that were called anew, as they are now.
    """

    fusion: Fusion
    again: Mapping[int, Op]


def replace_both(
    graph: Graph, members: Sequence[Op], new: Sequence[Op], *, by: str, assuming: str = ""
) -> Both:
    """Put ``new`` in the place of forward ops, and its backward in the place of theirs.

    What ``new`` makes bears the names of what it stands for. Both backwards are what torch's
    autograd makes. Where a result or a gradient would be laid out otherwise, the ops that use or
    made that tensor are called anew on it, too. Raises ``RefusedError`` where the backward of the
    members is not found as a whole, where others use what only it or they make, where the
    gradient of an input would be lost or another one needed, or where what a backward reads is
    written before it runs.
    """
    before: list[Op] = []
    after: list[Op] = []
    for count in range(MOST_NEIGHBOURS):
        old = sorted([*members, *before, *after], key=lambda op: graph.paths[id(op)])
        try:
            return _replaced(graph, old, [*before, *new, *after], by, assuming)
        except LayoutError as error:
            if count == MOST_NEIGHBOURS - 1:
                raise
            (before if error.gradient else after).extend(_beside(graph, old, error))
        between = _between(graph, [*members, *before, *after])
        behind = {t.name for op in (*members, *after) for t in op.outputs}
        for op in between:
            late = any(t.name in behind for t in op.inputs)
            (after if late else before).append(op)
            behind |= {t.name for t in op.outputs} if late else set()
        for side in (before, after):
            side.sort(key=lambda op: graph.paths[id(op)])
    raise AssertionError("the last round returns or raises")


def _beside(graph: Graph, old: Sequence[Op], error: LayoutError) -> list[Op]:
    """Return the calls that use a result, or the one that made what a gradient is of."""
    name, inside = error.tensor.name, {id(inner) for op in old for inner in op.walk()}
    calls = [op for op in graph.top_level() if op.phase != "backward"]
    if error.gradient:
        beside = [op for op in calls if any(t.name == name for t in op.outputs)]
    else:
        beside = [op for op in calls if any(t.name == name for t in op.inputs)]
    beside = [op for op in beside if id(op) not in inside]
    returned = any(t.name == name for t in graph.returned or ())
    if not beside or returned or any(id(o) in inside for op in beside for o in op.walk()):
        raise error
    return beside


def _between(graph: Graph, members: Sequence[Op]) -> list[Op]:
    """Return the forward calls that use what members make, and make what members use."""
    inside = {id(inner) for op in members for inner in op.walk()}
    calls = [op for op in graph.top_level() if op.phase != "backward"]
    made = {t.name for op in members for t in op.outputs}
    after = []
    for op in calls:
        if id(op) not in inside and any(t.name in made for t in op.inputs):
            after.append(op)
            made |= {t.name for t in op.outputs}
    used = {t.name for op in members for t in op.inputs}
    found = []
    for op in reversed(after):
        if any(t.name in used for t in op.outputs):
            found.append(op)
            used |= {t.name for t in op.inputs}
    return found[::-1]


def _replaced(
    graph: Graph, members: Sequence[Op], new: Sequence[Op], by: str, assuming: str
) -> Both:
    found = backward_of(graph, members)
    region, needs = _target(graph, found, new)
    _place(graph, derive(region, needs, plain=True), region, found)
    derived = derive(region, needs)
    placing, swaps = _place(graph, derived, region, found)
    calls = _calls(derived, new)
    for call, op in calls:
        if len(call.outputs) == len(op.outputs):  # what hands back its operand makes nothing
            pairs = zip(call.outputs, op.outputs, strict=True)
            placing.called.update((a.name, b.name) for a, b in pairs)
    forward, nodes = _ops(placing, derived, calls, members, found.ops)
    _check(graph, members, found, region, (forward, nodes), swaps)
    first = put_in_place(graph, [members], forward, by=by, assuming=assuming)
    last = exchanged(first.graph, found.leaves, nodes, by)
    whole = with_others(last.graph, swaps)
    again = {id(op): now for (_, op), now in zip(calls, first.ops, strict=True) if op in members}
    legal = f"{first.legal}; {LEGAL}"
    return Both(Fusion(whole, (*first.ops, *last.ops), (), legal, first.assumed), again)


def _calls(derived: Derived, new: Sequence[Op]) -> list[tuple[Op, Op]]:
    """Return each derived forward call with the new op that it is."""
    names = [[op.name for op in ops] for ops in (derived.forward, new)]
    if names[0] != names[1]:
        ran = ", ".join(names[0]) or "nothing"
        raise RefusedError(f"this version of torch runs {ran} for the new ops")
    return list(zip(derived.forward, new, strict=True))


def _ops(
    placing: Placing,
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
    graph: Graph, derived: Derived, region: Region, found: Backward
) -> tuple[Placing, list[Swap]]:
    """Find places for what was derived; return also the gradients that become others' bytes."""
    placing = Placing(set(graph.by_name), {t.buffer for t in graph.by_name.values()})
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


def _outputs(placing: Placing, derived: Derived, old: Region) -> None:
    """Let the derived outputs be those of the old ops, which must share bytes with nothing else."""
    held = {t.buffer for t in old.inputs}
    for theirs, mine in zip(derived.outputs, old.outputs, strict=True):
        if mine.buffer in held and placing.is_own(theirs):
            raise RefusedError(f"%{mine.name} would no longer share the bytes of an operand")
        placing.made(theirs, mine)


def _gradients(placing: Placing, derived: Derived, region: Region, found: Backward) -> list[Swap]:
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
    gains = Gains(graph, [*forward, *backward], old)
    gains.reads.clear()
    gains.check(span[0], span[-1])


def _span(graph: Graph, ops: Sequence[Op]) -> range:
    """Return the places from the first to the last leaf of some ops."""
    places = [graph.places[id(leaf)] for op in ops for leaf in op.leaves()]
    return range(min(places, default=0), max(places, default=-1) + 1)


def with_backward(graph: Graph, removal: Removal) -> Removal:
    """Return the removal of forward ops with that of their backward, which hands its gradient on.

    Raises ``RefusedError`` where the backward is not found as a whole, or makes other gradients.
    """
    if len(removal.swaps) != 1:
        raise RefusedError("with its backward, one result must stand for another: using %x for %y")
    old, new = removal.swaps[0]
    found = backward_of(graph, removal.ops)
    gradients = {found.region.inputs[i].name: t for i, t in found.gradients.items()}
    others = gradients.keys() - {new.name}
    if others or new.name not in gradients or [t.name for t in found.region.outputs] != [old.name]:
        lost = min(others, default=new.name)
        raise RefusedError(f"%{lost} has a gradient of its own, or none is made for it")
    handed = (gradients[new.name], found.cotangents[0])
    return Removal((*removal.ops, *found.leaves), (*removal.swaps, handed))
