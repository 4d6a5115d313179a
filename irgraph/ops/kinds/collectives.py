"""Collectives between ranks: tensors of other ranks in the same positions."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.ops.call import Call
from irgraph.ops.kinds.lists import by_position
from irgraph.ops.meaning import Meaning
from irgraph.ops.operator import Trait, no_meaning, operators
from irgraph.ops.patterns import pattern

LINEAR_REDUCTIONS = ("sum", "avg")


def _reduction(call: Call) -> Meaning | None:
    """Return the meaning of a reduction over ranks by element, which is linear if it is a sum."""
    meaning = by_position(call)
    is_linear = call.arguments.get("reduce_op") in LINEAR_REDUCTIONS
    if meaning is None or not is_linear or len(call.inputs) != 1:
        return meaning
    return replace(meaning, linear=(frozenset({0}),))


_BLOCKS = pattern("_ *x -> _ *x", "input")
"""A collective that concatenates or exchanges blocks along the first axis."""


def _scattered(call: Call) -> Meaning | None:
    """Return the meaning of a reduction of which each rank gets a block along the first axis."""
    meaning = _BLOCKS(call)
    is_linear = call.arguments.get("reduce_op") in LINEAR_REDUCTIONS
    return meaning if is_linear or meaning is None else replace(meaning, linear=())


OPERATORS = {
    **operators(by_position, "allreduce_ allreduce_coalesced_ broadcast_ reduce_", library="c10d"),
    **operators(
        _reduction,
        "all_reduce all_reduce_coalesced",
        library="_c10d_functional",
        in_place=True,
    ),
    **operators(
        pattern("*x -> *x", "tensor"),
        "wait_tensor",
        library="_c10d_functional",
        text="*x -> *x",
        traits=[Trait.WAIT],
    ),
    **operators(no_meaning, "wait_tensor", library="c10d_functional", traits=[Trait.WAIT]),
    **operators(no_meaning, "barrier monitored_barrier_", library="c10d", traits=[Trait.BARRIER]),
    **operators(
        _BLOCKS,
        "all_gather_into_tensor all_to_all_single",
        library="_c10d_functional",
        text="_ *x -> _ *x",
    ),
    **operators(
        _scattered,
        "reduce_scatter_tensor",
        library="_c10d_functional",
        text="_ *x -> _ *x",
    ),
}
