"""Targets of scripts: ``op.time``, and the figures that a sweep reports.

Both are predictions of the graph so far by cost models only: mixed with measured times, the error
of a model would look like the effect of a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Unpack

from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.ir.cost import Priced
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.language.expressions.evaluate import EvaluationError
from irgraph.predict.caveats import untimed_collectives
from irgraph.predict.options import PredictFields, PredictOptions, apply_options, predict_options
from irgraph.predict.power import within_power
from irgraph.predict.prediction import DEFAULT_DEVICE, predict


class PredictionTarget:
    """A device and the other options of predictions for scripts."""

    def __init__(self, options: PredictOptions) -> None:
        self.options = options
        self._times: _Times | None = None

    def time(self, graph: Graph, op: Op) -> float:
        """Return the device time that ``predict`` counts for an op of a graph, microseconds.

        An op inside one that is priced as a whole (``aten.addmm`` in ``aten.linear``) has the time
        that it would have on its own: the times of such parts need not add up.

        Raises ``EvaluationError`` for a collective whose ranks are unknown.
        """
        return self._times_of(graph).time(op)

    def measure(self, graph: Graph) -> Mapping[str, float]:
        """Return the figures of ``irgraph.language.expressions.kinds.MEASURES`` for a step."""
        prediction = predict(graph, self.options)
        return {
            "step.time": prediction.step_time,
            "gpu.active": prediction.timeline.active_time,
            "gpu.utilization": prediction.utilization,
        }

    def doubts(self, graph: Graph) -> Sequence[str]:
        """Return warnings about those figures: collectives without a time."""
        return untimed_collectives(self._times_of(graph).priced(0))

    def _times_of(self, graph: Graph) -> _Times:
        """Return the times of a graph; the times of the last graph are cached."""
        if self._times is None or self._times.graph is not graph:
            self._times = _Times(graph, self.options)
        return self._times


class _Times:
    """The device times of a graph's ops, priced together on first use."""

    def __init__(self, graph: Graph, options: PredictOptions) -> None:
        self.graph = graph
        self._options = options
        self._levels: list[tuple[Priced, frozenset[Op]]] = []

    def priced(self, level: int) -> Priced:
        """Return the priced graph with ``level`` levels of composite ops expanded."""
        while len(self._levels) <= level:
            graph = apply_options(self.graph, self._options)
            if self._levels:
                last, _ = self._levels[-1]
                graph = replace(graph, ops=tuple(_expand(last.graph.ops, last)))
            device = self._options.device or DEFAULT_DEVICE
            priced = within_power(backend().price(graph, device, self._options))
            self._levels.append((priced, frozenset(_inner_ops(priced))))
        return self._levels[level][0]

    def time(self, op: Op) -> float:
        if op not in self.graph.paths:
            raise EvaluationError(f"{op.name} is not in the model")
        level, priced = 0, self.priced(0)
        while op in self._levels[level][1]:
            level += 1
            priced = self.priced(level)
        for line in untimed_collectives(priced, op.walk()):
            raise EvaluationError(line)
        return sum(kernel.time for kernel in priced.of(op))


def _inner_ops(priced: Priced) -> Iterator[Op]:
    """Yield the ops inside ops that are priced as a whole."""
    for op in priced.graph.walk():
        if op in priced.kernels:
            for child in op.body:
                yield from child.walk()


def _expand(ops: Iterable[Op], priced: Priced) -> Iterator[Op]:
    """Yield ops, with ops that are priced as a whole replaced by their bodies."""
    for op in ops:
        if op in priced.kernels:
            yield from op.body or (op,)
        else:
            yield replace(op, body=tuple(_expand(op.body, priced)))


def target(
    options: PredictOptions | str | None = None, **changes: Unpack[PredictFields]
) -> PredictionTarget:
    """Return the target of scripts for the device of some options, ``v100`` by default.

    Graphs keep their own sizes: ``dims`` of the options is ignored.

    Raises ``IrgraphError`` if there is no such device.
    """
    chosen = predict_options(options, **changes)
    device = chosen.device or DEFAULT_DEVICE
    backend().device(device)
    return PredictionTarget(replace(chosen, device=device, dims={}, measured=False))
