"""The places that a plan fixes before propagation chooses all others."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from irgraph.ir.op import Op
from irgraph.ops.places import Place


class BlockUpdates(Struct, frozen=True):
    """Updates of complete parameters by blocks: of each a rank updates its own (ZeRO).

    Attributes:
        scope: the optimizer's step.
        parameters: the place of each parameter inside the scope, by name.
        gradients: the places of gradients that are terms of sums when the scope begins, by name.
    """

    scope: Op
    parameters: Mapping[str, Place]
    gradients: Mapping[str, Place]


class FixedPlaces(Struct, frozen=True):
    """The places that a plan fixes.

    Attributes:
        ranks: number of ranks.
        split_dims: names of the dimensions that are split over ranks.
        places: places of the tensors that exist before the step, if not the same on all ranks.
        pins: places that computed tensors get as soon as they exist, by name.
        origins: origins of parameters (``costs.GATHERED``, ``RETAINED`` or ``NEVER``), by name.
        sums_results: whether results of the step are summed over ranks.
        updates: updates by blocks, ``None`` if there are none.
        has_local_norms: whether batch norms use the statistics of each rank's own samples.
    """

    ranks: int
    split_dims: frozenset[str] = frozenset()
    places: Mapping[str, Place] = {}
    pins: Mapping[str, Place] = {}
    origins: Mapping[str, str] = {}
    sums_results: bool = False
    updates: BlockUpdates | None = None
    has_local_norms: bool = False
