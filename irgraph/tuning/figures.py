"""Figures of points of a search space, priced in batches: each structure and each point once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from irgraph.backend import DeviceFacts, backend
from irgraph.diagnostics import IrgraphError, fail
from irgraph.ir.loading import batches_per_step
from irgraph.predict.prediction import Prediction, predict
from irgraph.predict.variants import predict_variants
from irgraph.schedule.memory.peak import workspace
from irgraph.tuning.axes import Point
from irgraph.tuning.definition import SpaceDefinition
from irgraph.tuning.limits import DEVICE, FIGURES, excess
from irgraph.tuning.script import calls_of
from irgraph.tuning.structures import Structure, Structures

Key = tuple[tuple[str, ...], str, str, str, tuple[tuple[str, int], ...]]
"""Key of figures: calls of passes, ranks, host, device and sizes."""

HOUR = 3600e6
"""One hour in microseconds."""


class PointFigures(Struct, frozen=True):
    """Figures of a point of a search space.

    Attributes:
        point: choices of the point.
        values: available figures by name: ``step.time`` and ``gpu.active`` in microseconds,
            ``memory.peak`` in bytes of tensors, workspace and context, ``throughput`` in samples
            per second (of all ranks, each with its own batch), ``price`` in USD per million
            samples.
        refused: reason why there are no figures, ``""`` if there are.
        excess: relative excess over each limit; 0 or less if the limit is met.
    """

    point: Point
    values: Mapping[str, float]
    refused: str = ""
    excess: Mapping[str, float] = field(default_factory=dict)

    @property
    def feasible(self) -> bool:
        """Whether there are figures, and they meet all limits."""
        return not self.refused and all(share <= 0 for share in self.excess.values())

    def text(self) -> str:
        """Return the figures with their units, or the reason why there are none."""
        if self.refused:
            return self.refused
        return ", ".join(f"{name} {FIGURES[name].text(v)}" for name, v in self.values.items())


class Pricing:
    """Pricing of the points of one space, with a cache.

    Attributes:
        structures: steps after the passes.
    """

    def __init__(self, space: SpaceDefinition) -> None:
        self.space = space
        self.structures = Structures(space.graph, space.pass_path)
        self._devices: dict[str, DeviceFacts] = {}
        self._results: dict[Key, tuple[float, float, int] | str] = {}
        self._choices = {axis.kind: axis for axis in space.axes}

    def figures(self, points: Sequence[Point]) -> list[PointFigures]:
        """Return the figures of points, in order."""
        keys = [self._key(point) for point in points]
        groups: dict[Key, dict[Key, None]] = defaultdict(dict)
        for key in keys:
            if key not in self._results:
                calls, ranks, host, device, _ = key
                groups[calls, ranks, host, device, ()][key] = None
        for group in groups.values():
            self._price(list(group))
        return [self._point_figures(point, key) for point, key in zip(points, keys, strict=True)]

    def prediction(self, point: Point) -> Prediction:
        """Return the prediction of one point; raises ``IrgraphError`` if it is refused."""
        calls, ranks, host, device, sizes = self._key(point)
        structure = self.structures.variant(calls)
        if structure.refused:
            raise fail(structure.refused)
        options = replace(self.space.options, device=device, host=host, ranks=ranks or None)
        return predict(structure.graph, options, dims=dict(sizes))

    def _key(self, point: Point) -> Key:
        sizes = tuple(
            (axis.name, int(point[axis.name]))
            for axis in self.space.axes
            if axis.kind == "size" and axis.name in point
        )
        places = (self._choice_of_kind(point, kind) for kind in ("ranks", "host", "device"))
        return (calls_of(self.space, point), *places, sizes)  # type: ignore[return-value]

    def _choice_of_kind(self, point: Point, kind: str) -> str:
        axis = self._choices.get(kind)
        if axis is None:
            return ""
        return str(point.get(kind, "" if kind == "ranks" else axis.choices[0]))

    def _price(self, keys: Sequence[Key]) -> None:
        """Price points that differ only in their sizes."""
        structure = self.structures.variant(keys[0][0])
        if structure.refused:
            self._results.update(dict.fromkeys(keys, structure.refused))
            return
        try:
            self._results.update(self._price_sizes(structure, keys))
        except IrgraphError as error:
            if len(keys) == 1:
                self._results[keys[0]] = error.diagnostics[0].message
            for key in keys if len(keys) > 1 else ():
                self._price([key])

    def _price_sizes(
        self, structure: Structure, keys: Sequence[Key]
    ) -> dict[Key, tuple[float, float, int]]:
        _, ranks, host, device, _ = keys[0]
        sizes = [dict(key[-1]) for key in keys]
        options = replace(self.space.options, host=host, ranks=ranks or None)
        variants = predict_variants(structure.graph, [device], sizes, options)
        assert structure.peaks is not None
        columns = {
            name: np.array([point_sizes[name] for point_sizes in sizes], np.int64)
            for name in sizes[0]
        }
        peaks = np.broadcast_to(structure.peaks.bytes_at(columns), (len(keys),))
        rows = zip(variants.step_time[0], variants.active_time[0], peaks, strict=True)
        return {
            key: (float(step), float(active), int(peak))
            for key, (step, active, peak) in zip(keys, rows, strict=True)
        }

    def _point_figures(self, point: Point, key: Key) -> PointFigures:
        cached = self._results[key]
        if isinstance(cached, str):
            return PointFigures(point, {}, cached)
        step, active, peak = cached
        _, ranks, _, device, sizes = key
        facts = self._facts(device)
        needed = peak + workspace(facts.architecture)
        values = {"step.time": step, "gpu.active": active, "memory.peak": float(needed)}
        samples = {**self.space.graph.dims, **dict(sizes)}.get(self.space.samples, 0)
        count = _rank_count(ranks)
        samples *= count * batches_per_step(self.space.graph)
        if samples and step:
            values["throughput"] = samples / step * 1e6
        if samples and device in self.space.prices:
            values["price"] = self.space.prices[device] * count * step / HOUR / samples * 1e6
        return PointFigures(point, values, "", self._excess(values, facts))

    def _excess(self, values: Mapping[str, float], facts: DeviceFacts) -> dict[str, float]:
        excess_by_limit = {}
        for name, bound in self.space.limits.items():
            limit_value = facts.memory_bytes if bound == DEVICE else float(bound)
            excess_by_limit[name] = (
                excess(name, values[name], limit_value) if name in values else 1.0
            )
        return excess_by_limit

    def _facts(self, device: str) -> DeviceFacts:
        if device not in self._devices:
            self._devices[device] = backend().device(device)
        return self._devices[device]


def _rank_count(ranks: str) -> int:
    """Return the number of ranks of ``8`` or ``2x8``, 1 if the text is empty."""
    machines, _, per_machine = ranks.rpartition("x")
    return int(machines or 1) * int(per_machine or 1)
