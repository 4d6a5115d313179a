"""Collectives between ranks: tensors of other ranks in the same positions."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.ops.call import Call
from irgraph.ops.kinds.lists import by_position
from irgraph.ops.meaning import Meaning
from irgraph.ops.operator import CollectiveKind, Trait, no_meaning, operators
from irgraph.ops.patterns import pattern

LINEAR_REDUCTIONS = ("sum", "avg")


def _reduction(call: Call) -> Meaning | None:
    """Return the meaning of a reduction over ranks by element, which is linear if it is a sum."""
    meaning = by_position(call)
    is_linear = call.arguments.get("reduce_op") in LINEAR_REDUCTIONS
    if meaning is None or not is_linear or len(call.inputs) != 1:
        return meaning
    return replace(meaning, linear=(frozenset({0}),))


BLOCKS = "_ *x -> _ *x"

_BLOCKS = pattern(BLOCKS, "input")
"""A collective that concatenates or exchanges blocks along the first axis."""


def _scattered(call: Call) -> Meaning | None:
    """Return the meaning of a reduction of which each rank gets a block along the first axis."""
    meaning = _BLOCKS(call)
    is_linear = call.arguments.get("reduce_op") in LINEAR_REDUCTIONS
    return meaning if is_linear or meaning is None else replace(meaning, linear=())


FUNCTIONAL = "_c10d_functional"

OPERATORS = {
    **operators(
        by_position,
        "allreduce_ allreduce_coalesced_",
        library="c10d",
        collective=CollectiveKind.ALL_REDUCE,
    ),
    **operators(
        _reduction,
        "all_reduce all_reduce_coalesced",
        library=FUNCTIONAL,
        in_place=True,
        collective=CollectiveKind.ALL_REDUCE,
    ),
    **operators(by_position, "broadcast_", library="c10d", collective=CollectiveKind.BROADCAST),
    **operators(
        no_meaning,
        "broadcast",
        library=FUNCTIONAL,
        in_place=True,
        collective=CollectiveKind.BROADCAST,
    ),
    **operators(by_position, "reduce_", library="c10d", collective=CollectiveKind.REDUCE),
    **operators(
        _BLOCKS,
        "all_gather_into_tensor",
        library=FUNCTIONAL,
        text=BLOCKS,
        collective=CollectiveKind.ALL_GATHER_BASE,
    ),
    **operators(
        no_meaning,
        "all_gather_into_tensor_coalesced",
        library=FUNCTIONAL,
        collective=CollectiveKind.ALL_GATHER_BASE,
    ),
    **operators(
        no_meaning,
        "_allgather_base_ allgather_into_tensor_coalesced_",
        library="c10d",
        collective=CollectiveKind.ALL_GATHER_BASE,
    ),
    **operators(
        no_meaning,
        "allgather_ allgather_coalesced_",
        library="c10d",
        collective=CollectiveKind.ALL_GATHER,
    ),
    **operators(
        _scattered,
        "reduce_scatter_tensor",
        library=FUNCTIONAL,
        text=BLOCKS,
        collective=CollectiveKind.REDUCE_SCATTER,
    ),
    **operators(
        no_meaning,
        "reduce_scatter_tensor_coalesced",
        library=FUNCTIONAL,
        collective=CollectiveKind.REDUCE_SCATTER,
    ),
    **operators(
        no_meaning,
        "reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_",
        library="c10d",
        collective=CollectiveKind.REDUCE_SCATTER,
    ),
    **operators(
        _BLOCKS,
        "all_to_all_single",
        library=FUNCTIONAL,
        text=BLOCKS,
        collective=CollectiveKind.ALL_TO_ALL,
    ),
    **operators(
        no_meaning,
        "alltoall_ alltoall_base_",
        library="c10d",
        collective=CollectiveKind.ALL_TO_ALL,
    ),
    **operators(no_meaning, "send recv_", library="c10d", collective=CollectiveKind.MESSAGE),
    **operators(
        no_meaning,
        "barrier",
        library="c10d",
        traits=[Trait.BARRIER],
        collective=CollectiveKind.BARRIER,
    ),
    **operators(no_meaning, "monitored_barrier_", library="c10d", traits=[Trait.BARRIER]),
    **operators(
        pattern("*x -> *x", "tensor"),
        "wait_tensor",
        library=FUNCTIONAL,
        text="*x -> *x",
        traits=[Trait.WAIT],
    ),
    **operators(no_meaning, "wait_tensor", library="c10d_functional", traits=[Trait.WAIT]),
}
