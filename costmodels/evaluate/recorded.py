"""Device times of recorded steps compared with their prices, by family."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from costmodels.devices.library import load_device
from costmodels.evaluate.traced_residuals import Residual
from costmodels.pricing.price import price
from irgraph.capture.kineto.lower.measured import lower_with_times
from irgraph.ir.cost import Kernel, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.measured_times import op_time
from irgraph.ir.op import Op

STEPS = {
    "MLP of 21 layers, RTX 2080 Ti": ("mlp_RTX2080Ti", "rtx-2080-ti"),
    "ResNet-18, RTX 2080 Ti": ("resnet18_RTX2080Ti", "rtx-2080-ti"),
}
"""Folders of an execution trace and a Kineto trace of the same steps, and the device's sheet
(facebookresearch/param, MIT)."""


def recorded_residuals(folder: Path) -> list[Residual]:
    """Return measured and predicted times of each recorded step, by family and in total."""
    result = []
    for name, (trace_folder, device) in STEPS.items():
        paths = (folder / "traces" / trace_folder / f"{kind}.json.gz" for kind in ("et", "kineto"))
        captured, _ = lower_with_times(*map(str, paths))
        result += _by_family(name, captured.graph, device)
    return result


def _by_family(name: str, graph: Graph, device: str) -> list[Residual]:
    priced = price(graph, load_device(device))
    groups: dict[str, list[tuple[float, float, float]]] = {}
    for op, kernels in _priced_ops(graph.ops, priced):
        measured = measured_time(op)
        time, spread = (sum(getattr(k, n) for k in kernels) for n in ("time", "spread"))
        if measured and kernels:
            family = max(kernels, key=lambda k: k.time).family
            groups.setdefault(family, []).append((measured, time, spread))
    rows = [_row(name, family, entries) for family, entries in groups.items()]
    rows.sort(key=lambda row: -row.measured)
    return [*rows, _row(name, "total", [entry for entries in groups.values() for entry in entries])]


def _priced_ops(ops: tuple[Op, ...], priced: Priced) -> Iterator[tuple[Op, tuple[Kernel, ...]]]:
    """Yield each priced op with its kernels."""
    for op in ops:
        if op in priced.kernels:
            yield op, priced.kernels[op]
        else:
            yield from _priced_ops(op.body, priced)


def measured_time(op: Op) -> float:
    """Return the measured microseconds of device work of an op and of the ops inside it."""
    time = op_time(op)
    return (time.value if time is not None else 0.0) + sum(map(measured_time, op.body))


def _row(trace: str, group: str, entries: list[tuple[float, float, float]]) -> Residual:
    return Residual(
        trace,
        group,
        len(entries),
        sum(measured for measured, _, _ in entries),
        sum(time for _, time, _ in entries),
        sum(abs(time - measured) for measured, time, _ in entries),
        sum(abs(time - measured) <= spread for measured, time, spread in entries),
    )
