"""Pricing the collectives of a step: which op exchanges how many bytes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from costmodels.collectives.load import find_curve
from irgraph.ir.cost import Kernel, Priced
from irgraph.ir.op import Op, tensors_in

FAMILY = "collective"
"""Family of the kernels that exchange data between ranks."""

OPS = {
    "c10d.allreduce_": "all_reduce",
    "c10d.allreduce_coalesced_": "all_reduce",
    "c10d.alltoall_": "all_to_allv",
    "c10d.alltoall_base_": "all_to_allv",
    "c10d.allgather_": "all_gather",
    "c10d._allgather_base_": "all_gather_base",
    "c10d.allgather_into_tensor_coalesced_": "all_gather_base",
    "c10d.reduce_scatter_": "reduce_scatter",
    "c10d._reduce_scatter_base_": "reduce_scatter",
    "c10d.broadcast_": "broadcast",
    "c10d.reduce_": "reduce",
    "_c10d_functional.all_reduce": "all_reduce",
    "_c10d_functional.all_reduce_": "all_reduce",
    "_c10d_functional.all_to_all_single": "all_to_allv",
    "_c10d_functional.all_gather_into_tensor": "all_gather_base",
    "_c10d_functional.reduce_scatter_tensor": "reduce_scatter",
    "_c10d_functional.broadcast": "broadcast",
    "_c10d_functional.broadcast_": "broadcast",
}
"""Collectives by the ops that start them."""

INTERVAL = 1.645 / 0.798
"""From a mean absolute error to half a 90 % interval, if errors are normal."""


def message_bytes(op: Op) -> int:
    """Return the bytes of an op's message as its collective's curve counts them.

    All that a rank holds of it: the larger of what goes in and what comes out. For an uneven
    all-to-all that is the largest of what the rank sends or receives.
    """
    first, *others = op.operands or ((),)
    written = sum(t.nbytes for t in tensors_in((first,)))
    rest = sum(t.nbytes for t in (*tensors_in(others), *op.outputs))
    return max(written, rest)


def collective_kernel(op: Op, ranks: int, platform: str) -> Kernel:
    """Return what an op of ``OPS`` runs on the device of each of ``ranks`` ranks."""
    kind, size = OPS[op.name], message_bytes(op)
    curve = find_curve(kind, ranks, platform)
    time = curve.time(size)
    spread = INTERVAL * curve.error * time
    name = f"{kind} of {ranks}, {size} B"
    formula = f"alpha + S / B + c sqrt(S); {curve.source}"
    return Kernel(name, FAMILY, time, spread, "heuristic", formula=formula)


def with_collectives(priced: Priced, ranks: int, platform: str = "v100") -> Priced:
    """Return a priced step with the collectives that no kernel family priced.

    ``ranks`` is how many take part in each.
    """
    found = {id(op): (collective_kernel(op, ranks, platform),) for op in _collectives(priced)}
    unknown = tuple(op for op in priced.unknown if id(op) not in found)
    return replace(priced, kernels={**priced.kernels, **found}, unknown=unknown)


def _collectives(priced: Priced) -> Iterable[Op]:
    return (op for op in priced.graph.walk() if op.name in OPS and id(op) not in priced.kernels)
