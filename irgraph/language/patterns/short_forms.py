"""Short forms in scripts: bare columns, NCCL's names, and copies by their direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from irgraph.ir.op import Op
from irgraph.language.expressions.nodes import Attribute, Item, ListOf, Literal, Splat, Variable
from irgraph.language.patterns.nodes import Bound, ListTemplate, NamedArgument, NewOp, Part, Rest

ALL_REDUCE = "nccl.all_reduce"
"""In a template: the sum over all processes, which torch launches as ``c10d.allreduce_``."""

LAYER_NORM = "aten.layer_norm"

WORLD = (("process_group", "world"), ("reduce_op", "sum"), ("sparse_indices", None))
"""What ``c10d.allreduce_`` also takes."""

COPIES = ("aten.to", "aten._to_copy")
"""Ops that copy between memories where their result lies elsewhere than their operand."""


def spelled_out(new: NewOp) -> NewOp:
    """Return a template's op with short forms expanded.

    A bare column ``*%w`` is the list ``[*%w]``; ``nccl.all_reduce(%g!)`` is the call by which
    torch launches it; a layer norm that names no shape is one over the last axis.
    """
    if new.op == ALL_REDUCE:
        new = _all_reduce(new)
    if new.op == LAYER_NORM:
        new = _over_last_axis(new)
    return replace(new, parts=_listed(new.parts), results=_listed(new.results))


def _listed(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(ListTemplate((p,), place=p.place) if isinstance(p, Splat) else p for p in parts)


def _all_reduce(new: NewOp) -> NewOp:
    tensors = tuple(part for part in new.parts if not isinstance(part, (NamedArgument, Rest)))
    given = {part.name: part for part in new.parts if isinstance(part, NamedArgument)}
    for name, value in WORLD:
        given.setdefault(
            name, NamedArgument(name, Literal(value, place=new.place), place=new.place)
        )
    operands = (
        tensors if any(isinstance(p, ListTemplate) for p in tensors) else (ListTemplate(tensors),)
    )
    return replace(new, op="c10d.allreduce_", parts=(*operands, *given.values()))


def _over_last_axis(new: NewOp) -> NewOp:
    first, *others = new.parts or (None,)
    named = {part.name for part in others if isinstance(part, NamedArgument)}
    placed = any(not isinstance(part, NamedArgument) for part in others)
    if not isinstance(first, Bound) or placed or "normalized_shape" in named:
        return new
    shape = Attribute(Variable(first.name, place=first.place), "shape", place=first.place)
    last = Item(shape, Literal(-1, place=first.place), place=first.place)
    given = NamedArgument("normalized_shape", ListOf((last,), place=first.place), place=first.place)
    return replace(new, parts=(first, given, *others))


def called(op: Op) -> Iterator[str]:
    """Yield the names by which patterns may call an op: its own, and its kind.

    ``memcpy.h2d`` and ``memcpy.d2h`` are copies from host to device memory and back.
    """
    yield op.name
    if op.name in COPIES and op.operands and op.outputs:
        source, made = (t.device == "cpu" for t in (op.inputs[0], op.outputs[0]))
        if source != made:
            yield "memcpy.h2d" if source else "memcpy.d2h"
