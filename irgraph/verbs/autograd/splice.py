"""Replacement of forward ops and of their backward by new ops and the new ops' backward."""

from __future__ import annotations

from collections.abc import Container, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.autograd.derive import Derived, derive
from irgraph.verbs.autograd.find_backward import backward_of
from irgraph.verbs.autograd.legality import check_swap, check_unwritten
from irgraph.verbs.autograd.match_backward import Backward
from irgraph.verbs.autograd.nodes import Swap
from irgraph.verbs.autograd.region import ForwardRegion, as_region, is_float, results_of, same_type
from irgraph.verbs.autograd.tensor_mapping import (
    LayoutError,
    NameAllocator,
    SharedGradientError,
    TensorMapping,
    shared_module,
)
from irgraph.verbs.extra_accesses import ExtraAccesses
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import Removal
from irgraph.verbs.replace import check_users


class Splice(Struct, frozen=True):
    """Forward ops and their backward, with their replacements.

    Attributes:
        members: the forward ops.
        leaves: the leaves of their backward.
        forward: the ops that replace ``members``.
        nodes: the ops that replace ``leaves``.
        swaps: gradients, with the tensors that replace them in their users.
        companions: positions in ``forward`` of members that are called again, with these members.
    """

    members: Sequence[Op]
    leaves: Sequence[Op]
    forward: Sequence[Op]
    nodes: Sequence[Op]
    swaps: Sequence[Swap]
    companions: Sequence[tuple[int, Op]]


def splice(
    graph: Graph,
    members: Sequence[Op],
    new: Sequence[Op],
    tensor_names: Container[str],
    buffer_names: Container[str],
) -> Splice:
    """Return the result of replacing forward ops with ``new``.

    ``tensor_names`` are used names of tensors, ``buffer_names`` used names of buffers. Raises
    ``RefusedError`` as ``ReplacementBatch.replace`` does, and ``AdjacentCallError`` if other calls
    must be replaced as well.
    """
    backward = backward_of(graph, members)
    region, needs = _new_region(graph, backward, new)
    _map_tensors((tensor_names, buffer_names), derive(region, needs, plain=True), region, backward)
    derived = derive(region, needs)
    mapping, swaps = _map_tensors((tensor_names, buffer_names), derived, region, backward)
    calls = _calls(derived, new)
    for call, op in calls:
        if len(call.outputs) == len(op.outputs):  # a call that returns its operand has no result
            pairs = zip(call.outputs, op.outputs, strict=True)
            mapping.preferred_names.update((a.name, b.name) for a, b in pairs)
    forward, nodes = _ops(mapping, derived, calls, members, backward.ops)
    _check_replacement(graph, members, backward, region, (forward, nodes), swaps)
    companions = tuple((i, op) for i, (_, op) in enumerate(calls) if op in members)
    return Splice(members, backward.leaves, forward, nodes, swaps, companions)


def _calls(derived: Derived, new: Sequence[Op]) -> list[tuple[Op, Op]]:
    """Return each derived forward call with its new op."""
    names = [[op.name for op in ops] for ops in (derived.forward, new)]
    if names[0] != names[1]:
        run = ", ".join(names[0]) or "nothing"
        raise RefusedError(f"this version of torch runs {run} for the new ops")
    return list(zip(derived.forward, new, strict=True))


def _ops(
    mapping: TensorMapping,
    derived: Derived,
    calls: Sequence[tuple[Op, Op]],
    members: Sequence[Op],
    backward: Sequence[Op],
) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Return the derived ops as ops of the graph; companions stay in their modules."""
    companions = [op for _, op in calls if op in members]
    module = shared_module([op for op in members if op not in companions] or members)
    modules = {o.origin: op.module for call, op in calls for o in call.walk() if op in companions}
    forward = mapping.ops(derived.forward, members[0], lambda op: modules.get(op.origin, module))
    links = {node: modules.get(call, module) for node, call in derived.links.items()}
    nodes = mapping.ops(derived.backward, backward[0], lambda op: links.get(op.origin, module))
    return forward, nodes


def _map_tensors(
    used_names: tuple[Container[str], Container[str]],
    derived: Derived,
    region: ForwardRegion,
    backward: Backward,
) -> tuple[TensorMapping, list[Swap]]:
    """Map derived tensors to the graph; return the mapping, and the swaps of shared gradients."""
    mapping = TensorMapping(NameAllocator(used_names[0]), NameAllocator(used_names[1]))
    mapping.bind_inputs(derived.inputs, region.inputs)
    pairs = zip(derived.cotangents, backward.cotangents, strict=True)
    for output, (derived_cotangent, cotangent) in zip(backward.region.outputs, pairs, strict=True):
        if derived_cotangent is not None and cotangent is None:
            raise RefusedError(f"%{output.name} would get a gradient that it did not have")
        if derived_cotangent is not None and cotangent is not None:
            mapping.bind_inputs([derived_cotangent], [cotangent])
    _bind_outputs(mapping, derived, backward.region)
    return mapping, _bind_gradients(mapping, derived, region, backward)


def _new_region(
    graph: Graph, backward: Backward, new: Sequence[Op]
) -> tuple[ForwardRegion, tuple[int, ...]]:
    """Return the new ops as a region, and the positions of inputs whose gradient is needed."""
    old = backward.region
    results = results_of(new)
    missing = [t for t in old.outputs if t.name not in results]
    if missing:
        raise RefusedError(f"the new ops do not make %{missing[0].name}, which later ops use")
    region = as_region(graph, new, old.outputs)
    needed = {old.inputs[i].name for i in backward.needs}
    old_names = {t.name for t in old.inputs}
    needs = tuple(i for i, t in enumerate(region.inputs) if t.name in needed)
    unused = needed - {t.name for t in region.inputs}
    if unused:
        raise RefusedError(f"%{min(unused)} would get no gradient: the new ops do not use it")
    for tensor in region.inputs:
        is_constant = graph.lasting.get(tensor.buffer, "param") != "param"
        if is_float(tensor) and tensor.name not in old_names and not is_constant:
            raise RefusedError(f"%{tensor.name} would get a gradient that it did not have")
    return replace(region, cotangents=backward.cotangents), needs


def _bind_outputs(mapping: TensorMapping, derived: Derived, old: ForwardRegion) -> None:
    """Map the derived outputs to the outputs of the old ops; refuse a lost alias of an operand."""
    input_buffers = {t.buffer for t in old.inputs}
    for derived_tensor, tensor in zip(derived.outputs, old.outputs, strict=True):
        if tensor.buffer in input_buffers and mapping.is_own(derived_tensor):
            raise RefusedError(f"%{tensor.name} would no longer share the bytes of an operand")
        mapping.bind_result(derived_tensor, tensor)


def _bind_gradients(
    mapping: TensorMapping, derived: Derived, region: ForwardRegion, backward: Backward
) -> list[Swap]:
    """Map the derived gradients to the old gradients; return swaps of the remaining ones.

    A gradient that shares bytes with another gradient cannot retain its buffer.
    """
    old = {backward.region.inputs[i].name: t for i, t in backward.gradients.items()}
    foreign = {t.buffer for t in (*filter(None, backward.cotangents), *backward.region.inputs)}
    pairs = [
        (tensor, gradient, old[tensor.name])
        for tensor, gradient in zip(region.inputs, derived.gradients, strict=True)
        if tensor.name in old
    ]
    passed = {t.name for t in filter(None, backward.cotangents)}
    sources: dict[str, Tensor] = {}
    swaps: dict[str, Swap] = {}
    for tensor, derived_gradient, current in pairs:
        if derived_gradient is None:
            raise RefusedError(f"%{current.name} would not be made: the new ops give no gradient")
        if derived_gradient.strides != current.strides:
            reason = f"the gradient of %{tensor.name} would be laid out otherwise"
            raise LayoutError(reason, tensor, gradient=True)
        fits = derived_gradient.offset <= current.offset and current.buffer not in foreign
        if mapping.is_own(derived_gradient) and fits and current.name not in sources:
            mapping.bind_result(derived_gradient, current)
        new = mapping.tensor(derived_gradient)
        is_passed = current.name in passed and new != current
        if is_passed or sources.setdefault(current.name, new) != new:
            # the operands of a sum have one gradient, which is the sum's own
            reason = f"the gradient of %{tensor.name} is also that of other tensors"
            raise SharedGradientError(reason, tensor, gradient=True)
        if new != current:
            swaps[current.name] = (current, new)
    return list(swaps.values())


def _check_replacement(
    graph: Graph,
    members: Sequence[Op],
    old_backward: Backward,
    region: ForwardRegion,
    new_ops: tuple[Sequence[Op], Sequence[Op]],
    swaps: Sequence[Swap],
) -> None:
    """Refuse a replacement that other ops could observe."""
    old = [*members, *old_backward.leaves]
    removed = {leaf for op in old for leaf in op.leaves()}
    forward, backward = ([leaf for op in ops for leaf in op.leaves()] for ops in new_ops)
    for swap in swaps:
        check_swap(graph, removed, swap)
    rewired = Op("", (), tuple(old_gradient for old_gradient, _ in swaps))
    check_users(graph, old, [*forward, *backward, rewired])
    span = _span(graph, old)
    saved = {t.buffer for t in (*region.inputs, *results_of(members).values())}
    check_unwritten(graph, removed, span, saved, [*old_backward.leaves, *forward, *backward])
    cotangent_buffers = {t.buffer for t in filter(None, old_backward.cotangents)}
    check_unwritten(graph, removed, _span(graph, old_backward.leaves), cotangent_buffers, backward)
    extra = ExtraAccesses(graph, [*forward, *backward], old)
    extra.reads.clear()
    extra.check(span[0], span[-1])


def _span(graph: Graph, ops: Sequence[Op]) -> range:
    """Return the positions from the first to the last leaf of some ops."""
    positions = [graph.places[leaf] for op in ops for leaf in op.leaves()]
    return range(min(positions, default=0), max(positions, default=-1) + 1)


def with_backward(graph: Graph, removal: Removal) -> Removal:
    """Return the removal of forward ops and of their backward, which passes its gradient on.

    Parameters that they used get a gradient of zeros. Raises ``RefusedError`` if the backward is
    not found completely, or computes other gradients.
    """
    if len(removal.swaps) != 1:
        raise RefusedError("with its backward, one result must stand for another: using %x for %y")
    old, new = removal.swaps[0]
    backward = backward_of(graph, removal.ops)
    gradients = {backward.region.inputs[i].name: t for i, t in backward.gradients.items()}
    zeroed = [(t, backward.region.inputs[i]) for i, t in backward.gradients.items()]
    zeroed = [(t, source) for t, source in zeroed if source.name != new.name]
    refused = [source.name for t, source in zeroed if not _may_be_zeros(graph, t, source)]
    cotangent = backward.cotangents[0]
    if (
        refused
        or cotangent is None
        or new.name not in gradients
        or [t.name for t in backward.region.outputs] != [old.name]
    ):
        name = min(refused, default=new.name)
        raise RefusedError(f"%{name} has a gradient of its own, or none is made for it")
    gradient_swap = (gradients[new.name], cotangent)
    ops = (*removal.ops, *backward.leaves)
    return Removal(ops, (*removal.swaps, gradient_swap), tuple(zeroed))


def _may_be_zeros(graph: Graph, gradient: Tensor, source: Tensor) -> bool:
    """Return whether zeros may replace a gradient: a parameter's, in its own memory."""
    declared = any(d.role == "param" and d.tensor.name == source.name for d in graph.tensors)
    return declared and same_type(gradient, source) and gradient.offset == 0
