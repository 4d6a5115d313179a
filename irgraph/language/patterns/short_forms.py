"""Short forms in scripts: bare columns, NCCL's names, and copies by their direction."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from irgraph.ir.op import Op
from irgraph.language.expressions.nodes import Attribute, Item, ListOf, Literal, Splat, Variable
from irgraph.language.patterns.nodes import Bound, ListTemplate, NamedArgument, NewOp, Part, Rest
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait

ALL_REDUCE = "nccl.all_reduce"
"""In a template: the sum over all processes, which torch launches as ``c10d.allreduce_``; or
another ``reduce_op``."""

LAYER_NORM = "aten.layer_norm"

WORLD_ARGUMENTS = (("process_group", "world"), ("reduce_op", "sum"), ("sparse_indices", None))
"""Further arguments of ``c10d.allreduce_``."""


def copies() -> frozenset[str]:
    """Return the names of ops that copy between memories if their result is on another device."""
    return names_with(Trait.COPY)


def expand_short_forms(new: NewOp) -> NewOp:
    """Return a template's op with short forms expanded.

    A bare column ``*%w`` becomes the list ``[*%w]``; ``nccl.all_reduce(%g!)`` becomes the call by
    which torch launches it; a layer norm without a shape gets the size of the last axis.
    """
    if new.op == ALL_REDUCE:
        new = _expand_all_reduce(new)
    if new.op == LAYER_NORM:
        new = _expand_layer_norm(new)
    return replace(new, parts=_wrap_columns(new.parts), results=_wrap_columns(new.results))


def _wrap_columns(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(ListTemplate((p,), place=p.place) if isinstance(p, Splat) else p for p in parts)


def _expand_all_reduce(new: NewOp) -> NewOp:
    tensors = tuple(part for part in new.parts if not isinstance(part, (NamedArgument, Rest)))
    named_arguments = {
        name: NamedArgument(name, Literal(value, place=new.place), place=new.place)
        for name, value in WORLD_ARGUMENTS
    }
    arguments = (part for part in new.parts if isinstance(part, NamedArgument))
    named_arguments.update({part.name: part for part in arguments})
    operands = (
        tensors if any(isinstance(p, ListTemplate) for p in tensors) else (ListTemplate(tensors),)
    )
    return replace(new, op="c10d.allreduce_", parts=(*operands, *named_arguments.values()))


def _expand_layer_norm(new: NewOp) -> NewOp:
    first, *remaining = new.parts or (None,)
    argument_names = {part.name for part in remaining if isinstance(part, NamedArgument)}
    has_positional = any(not isinstance(part, NamedArgument) for part in remaining)
    if not isinstance(first, Bound) or has_positional or "normalized_shape" in argument_names:
        return new
    shape = Attribute(Variable(first.name, place=first.place), "shape", place=first.place)
    last = Item(shape, Literal(-1, place=first.place), place=first.place)
    shape_argument = NamedArgument(
        "normalized_shape", ListOf((last,), place=first.place), place=first.place
    )
    return replace(new, parts=(first, shape_argument, *remaining))


def pattern_names(op: Op) -> Iterator[str]:
    """Yield the names by which patterns may call an op: its own, and its direction if it copies.

    ``memcpy.h2d`` and ``memcpy.d2h`` are copies from host to device memory and back.
    """
    yield op.name
    if op.name in copies() and op.operands and op.outputs:
        from_host, to_host = (t.device == "cpu" for t in (op.inputs[0], op.outputs[0]))
        if from_host != to_host:
            yield "memcpy.h2d" if from_host else "memcpy.d2h"
