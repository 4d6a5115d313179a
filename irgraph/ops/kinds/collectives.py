"""Collectives between ranks: tensors of other ranks in the same positions."""

from __future__ import annotations

from irgraph.ops.kinds.lists import by_position
from irgraph.ops.operator import operators

OPERATORS = {
    **operators(by_position, "allreduce_ allreduce_coalesced_ broadcast_ reduce_", library="c10d"),
}
