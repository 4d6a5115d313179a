"""Costs of conversions and of work, by which the way to run a call on ranks is chosen."""

from __future__ import annotations

from msgspec import Struct

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.flops import flops
from irgraph.ops.places import ONCE, Place

LINK = 10
"""Bytes through memory in the time of one byte between ranks: about 3 TB/s to 300 GB/s."""

FLOPS_PER_BYTE = 50
"""Operations in the time of one byte through memory, between those in f32 and on tensor cores."""


class Cost(Struct, frozen=True, order=True):
    """The cost of a choice: bytes that should never be gathered, then time.

    Attributes:
        exposed: bytes of activations, and of parameters that ranks share for good, that would be
            complete on every rank. All later work on them would be done by every rank.
        time: bytes through memory in the time of conversions and work.
    """

    exposed: float = 0.0
    time: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        """Return the sum of both."""
        return Cost(self.exposed + other.exposed, self.time + other.time)


FREE = Cost()

GATHERED, RETAINED, NEVER, DATA = "gathered", "retained", "never", "data"
"""Origins of tensors: parameters that are gathered for use in each phase of the step, once for all
phases, or never; all other tensors."""

EXPOSURE = {GATHERED: 0.0, RETAINED: 0.0, DATA: 1.0, NEVER: 1e6}
"""Weight of a byte that is gathered, by the tensor's origin."""


def conversion_cost(
    tensor: Tensor, current: Place, place: Place, ranks: int, origin: str = DATA
) -> Cost:
    """Return the cost of a tensor in another place."""
    size = float(tensor.distinct * tensor.itemsize)
    rescaling = size if current.factor != place.factor else 0.0
    kinds = current.kind, place.kind
    remote = LINK * size * (ranks - 1) / ranks
    if kinds in (("same", "split"), ("same", "same"), ("partial", "partial")):
        is_copied = place.kind == "split" and place.outer != ONCE
        return Cost(time=rescaling + 2 * size / ranks * is_copied)
    if kinds == ("same", "partial"):
        return Cost(time=size + rescaling)
    if kinds == ("partial", "same"):
        return Cost(time=2 * remote)
    if kinds == ("partial", "split"):
        return Cost(time=remote)
    # blocks of one axis in other runs are gathered
    if kinds == ("split", "split") and (current.axis != place.axis or current.outer == place.outer):
        is_moved = current.axis != place.axis
        exposed = EXPOSURE[origin] * size if is_moved and origin == NEVER else 0.0
        return Cost(exposed, (remote + 2 * size) / ranks * is_moved + rescaling / ranks)
    return Cost(EXPOSURE[origin] * size, remote + size + rescaling / ranks)


def owed_cost(tensor: Tensor, place: Place, ranks: int) -> float:
    """Return the time of the sum that completes a result, 0 if it needs none."""
    if place.kind != "partial":
        return 0.0
    return 2 * LINK * float(tensor.distinct * tensor.itemsize) * (ranks - 1) / ranks


def flops_of(op: Op) -> float:
    """Return the operations of a call in bytes through memory, 0 if it is no product."""
    return (flops(op) or 0) / FLOPS_PER_BYTE


def traffic(tensors: tuple[Tensor, ...], places: tuple[Place, ...], ranks: int) -> float:
    """Return the bytes of a rank's tensors."""
    total = 0.0
    for tensor, place in zip(tensors, places, strict=True):
        size = float(tensor.distinct * tensor.itemsize)
        total += size / ranks if place.kind in ("split", "own") else size
    return total
