"""Definition of a search space: plain records for pricing and scripts."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from irgraph.ir.graph import Graph
from irgraph.predict.options import PredictOptions
from irgraph.tuning.axes import Axis


class SpaceDefinition(Struct, frozen=True, eq=False):
    """Variants of a step, and their limits.

    Attributes:
        graph: the step.
        axes: axes of points, each after the axes that it depends on.
        limits: limits by figure: maxima of ``memory.peak`` in bytes or ``device`` (the device's
            memory), ``step.time`` and ``gpu.active`` in microseconds, and ``price`` in USD per
            million samples; the minimum of ``throughput`` in samples per second.
        prices: price of each device in USD per hour, by its name on the axis, for ``price``.
        samples: the dimension that counts samples; ``""`` if there is none: then there is neither
            ``throughput`` nor ``price``.
        options: options of predictions; sizes, device, host and ranks are set by a point.
        passes: names of the passes in the space, in the order of their application.
        pass_path: further folders of passes.
        left_out: reasons for requested passes that are not in the space, by name.
    """

    graph: Graph
    axes: tuple[Axis, ...]
    limits: Mapping[str, float | str] = field(default_factory=dict)
    prices: Mapping[str, float] = field(default_factory=dict)
    samples: str = ""
    options: PredictOptions = field(default_factory=PredictOptions)
    passes: tuple[str, ...] = ()
    pass_path: tuple[str, ...] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)
