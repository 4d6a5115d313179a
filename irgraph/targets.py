"""What scripts may ask about a device: ``op.time``, and the figures that a sweep reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from costmodels.price import price
from costmodels.sheet import DeviceSheet, load_device
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.prediction import predict


@dataclass(frozen=True)
class Predicted:
    """A device as the cost models know it, with a host that feeds it."""

    device: str
    host: str
    sheet: DeviceSheet

    def time(self, op: Op) -> float:
        """Return an op's device time in microseconds."""
        return sum(k.time for k in price(Graph(op.name, ops=(op,)), self.sheet).of(op))

    def measure(self, graph: Graph) -> Mapping[str, float]:
        """Return the figures of ``irgraph.language.kinds.MEASURES`` for a step."""
        found = predict(graph, self.device, self.host, measured=False)
        return {
            "step.time": found.step_time,
            "gpu.active": found.timeline.active_time,
            "gpu.utilization": found.utilization,
        }


def target(device: str, host: str = "v100") -> Predicted:
    """Return a device by its name or the path of its sheet.

    Raises ``IrgraphError`` where there is none.
    """
    return Predicted(device, host, load_device(device))
