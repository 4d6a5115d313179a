"""What a search space is: plain records, which pricing and scripts read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from irgraph.ir.graph import Graph
from irgraph.predict.options import PredictOptions
from irgraph.tuning.axes import Axis


class SpaceDefinition(Struct, frozen=True, eq=False):
    """Which variants of a step may be chosen, and what they must keep to.

    Attributes:
        graph: the step.
        axes: what a point chooses, each behind those that it depends on.
        limits: by figure, what a variant must keep to: ``memory.peak`` in bytes or ``device`` (what
            its device has), ``step.time`` and ``gpu.active`` in microseconds, ``price`` in USD for
            a million samples, each at most; ``throughput`` in samples a second, at least.
        prices: USD an hour of each device, by its name on the axis, for the figure ``price``.
        samples: the dimension that counts samples; ``""`` where none does: then there is neither
            ``throughput`` nor ``price``.
        options: of predictions; sizes, device, host and ranks are those of a point.
        passes: names of those that take part, in the order in which they are applied.
        pass_path: further folders of passes.
        left_out: passes that were asked for and do not take part, each with why.
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
