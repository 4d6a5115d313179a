"""What scripts may ask about a device: ``op.time``, and the figures that a sweep reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from costmodels.collectives.peers import doubts, with_ranks
from costmodels.price import price
from costmodels.sheet import DeviceSheet, load_device
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.language.evaluate import NoValueError
from irgraph.prediction import predict


@dataclass(frozen=True)
class Predicted:
    """A device as the cost models know it, with a host that feeds it.

    ``ranks`` and ``fabric`` say who takes part in collectives; ``None``: as each model says.
    """

    device: str
    host: str
    sheet: DeviceSheet
    ranks: int | str | None = None
    fabric: str | None = None

    def time(self, op: Op) -> float:
        """Return an op's device time in microseconds.

        Raises ``NoValueError`` for a collective of which nothing says who takes part.
        """
        graph = self._with_ranks(Graph(op.name, ops=(op,)))
        for line in doubts(graph, self.sheet.name):
            raise NoValueError(line)
        return sum(k.time for k in price(graph, self.sheet).of(op))

    def measure(self, graph: Graph) -> Mapping[str, float]:
        """Return the figures of ``irgraph.language.kinds.MEASURES`` for a step."""
        found = predict(self._with_ranks(graph), self.device, self.host, measured=False)
        return {
            "step.time": found.step_time,
            "gpu.active": found.timeline.active_time,
            "gpu.utilization": found.utilization,
        }

    def doubts(self, graph: Graph) -> Sequence[str]:
        """Return what makes those figures doubtful: collectives that have no time."""
        return doubts(self._with_ranks(graph), self.sheet.name)

    def _with_ranks(self, graph: Graph) -> Graph:
        return with_ranks(graph, self.ranks, self.fabric)


def target(
    device: str, host: str = "v100", ranks: int | str | None = None, fabric: str | None = None
) -> Predicted:
    """Return a device by its name or the path of its sheet.

    Raises ``IrgraphError`` where there is none.
    """
    return Predicted(device, host, load_device(device), ranks, fabric)
