"""Step time and peak memory of a case, from decoders with few layers.

A decoder's layers are equal: two captures with few layers give the time and memory of a layer and
of all else, both of which grow linearly with the number of layers.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from costmodels.evaluate.llm.case import LlmCase, RankLayout
from costmodels.evaluate.llm.programs import micro_batch, sharded_step, split_layers
from costmodels.evaluate.llm.update import rank_work
from irgraph.ir.graph import Graph
from irgraph.predict.prediction import Prediction, predict

MIN_LAYERS = 2
"""Layers of the smaller capture: the first prefetch and the last reduction are in it."""

BACKWARD = 2 / 3
"""Share of the backward pass in forward and backward: two of three passes of the products."""

STATE_BYTES, HALF_BYTES, GRADIENT_BYTES = 12, 2, 4
"""Bytes of a parameter: float32 copy and two moments, 16-bit copy, float32 gradient."""

GIB = 2.0**30


class StepPrediction(Struct, frozen=True):
    """Predicted step.

    Attributes:
        time: milliseconds.
        interval: ends of the 90 % interval.
        memory: peak GiB of the fullest rank.
        parts: milliseconds by cause.
    """

    time: float
    interval: tuple[float, float]
    memory: float
    parts: dict[str, float]


class Line(Struct, frozen=True):
    """A figure that grows linearly with the number of layers: the sum of both parts.

    Attributes:
        layer: figure of a layer.
        rest: figure of all else.
    """

    layer: float
    rest: float

    def total(self, layers: float) -> float:
        """Return the figure of a number of layers."""
        return self.layer * layers + self.rest


class PredictionPair(Struct, frozen=True):
    """Predictions of two decoders that differ in their number of layers.

    Attributes:
        layers: the two numbers of layers.
        fewer: prediction of the first.
        more: prediction of the second.
    """

    layers: tuple[int, int]
    fewer: Prediction
    more: Prediction

    def line(self, fewer: float, more: float) -> Line:
        """Return the line through figures of the two."""
        layer = (more - fewer) / (self.layers[1] - self.layers[0])
        return Line(layer, fewer - layer * self.layers[0])

    @property
    def time(self) -> Line:
        """Milliseconds of a step."""
        line = self.line(self.fewer.step_time, self.more.step_time)
        return Line(line.layer / 1e3, line.rest / 1e3)

    @property
    def update(self) -> Line:
        """Milliseconds of the kernels of the optimizer."""
        return self.line(_update_time(self.fewer) / 1e3, _update_time(self.more) / 1e3)

    @property
    def reserved(self) -> Line:
        """Bytes that torch's allocator reserves."""
        return self.line(self.fewer.reserved_bytes or 0, self.more.reserved_bytes or 0)

    @property
    def activations(self) -> Line:
        """Bytes of activations at the peak."""
        return self.line(_activations(self.fewer), _activations(self.more))


def predict_case(case: LlmCase, keep: Path | None = None) -> StepPrediction:
    """Return the prediction of a case; ``keep`` caches captured programs."""
    if case.layout.sharding in ("fsdp", "retained"):
        return _predict_sharded(case, keep)
    return _predict_micro_batches(case, keep)


def layer_counts(case: LlmCase) -> tuple[int, int]:
    """Return the layers of the two captures: whole periods of the recomputed blocks."""
    period = 2 if case.shape.recompute == "alternate" else 1
    return MIN_LAYERS, MIN_LAYERS + period


def _predict_pair(case: LlmCase, fewer: Graph, more: Graph) -> PredictionPair:
    predictions = [predict(graph, case.card, software=case.software) for graph in (fewer, more)]
    return PredictionPair(layer_counts(case), *predictions)


def _predict_sharded(case: LlmCase, keep: Path | None) -> StepPrediction:
    """Return the prediction of a step with sharded parameters, captured with its overlap."""
    fewer, more = (sharded_step(case, count, keep) for count in layer_counts(case))
    pair = _predict_pair(case, fewer, more)
    layers = case.shape.layers
    update = pair.update.total(layers)
    passes = case.rounds * (pair.time.total(layers) - update)
    parts = {"passes": passes, "update": update}
    return _step_prediction(pair, parts, pair.reserved.total(layers))


def _predict_micro_batches(case: LlmCase, keep: Path | None) -> StepPrediction:
    """Return the prediction of a step of micro-batches on tensor and pipeline ranks."""
    layout, layers = case.layout, case.shape.layers // case.layout.stages
    fewer, more = (micro_batch(case, count, keep) for count in layer_counts(case))
    pair = _predict_pair(case, fewer, more)
    # the head is split by vocabulary, which `shard` gathers before a loss: its work is divided
    outer = pair.time.rest / layout.tensor
    outer_bytes = pair.activations.rest / layout.tensor
    if layout.tensor > 1:
        pair = _predict_pair(case, split_layers(fewer, case), split_layers(more, case))
    parameters = rank_parameters(case)
    work = rank_work(case, parameters)
    stage = layers * pair.time.layer + work.accumulation
    transfers = 2 * work.transfer
    hidden = BACKWARD * stage if layout.overlaps else 0.0
    parts = {
        "passes": case.rounds * (stage + outer + transfers * layout.chunks),
        "bubble": (layout.stages - 1) * (stage / layout.chunks + transfers),
        "reduction": max(work.reduction - hidden, 0.0),
        "update": work.optimizer + work.gathering,
    }
    stored = layers * pair.activations.layer
    first = min(layout.stages, case.rounds) * stored
    last = stored + outer_bytes
    memory = parameters * bytes_per_parameter(layout) + max(first, last)
    return _step_prediction(pair, parts, memory)


def rank_parameters(case: LlmCase) -> int:
    """Return the number of parameters of the first or last rank of a pipeline."""
    layout, shape = case.layout, case.shape
    layers = shape.layers // layout.stages
    tables = 1 if layout.stages == 1 or shape.is_tied else 2
    parameters = layers * shape.block_parameters + shape.outer_parameters // tables
    return parameters // layout.tensor


def bytes_per_parameter(layout: RankLayout) -> float:
    """Return the bytes of a parameter with its gradient and the optimizer's state."""
    shares = layout.data if layout.sharding == "zero1" else 1
    return HALF_BYTES + GRADIENT_BYTES + STATE_BYTES / shares


def _step_prediction(
    pair: PredictionPair, parts: dict[str, float], memory: float
) -> StepPrediction:
    """Return a prediction with the relative interval of the larger capture."""
    time = sum(parts.values())
    low, high = (end / pair.more.step_time * time for end in pair.more.interval)
    return StepPrediction(time, (low, high), memory / GIB, parts)


def _update_time(prediction: Prediction) -> float:
    ops = [op for op in prediction.priced.graph.ops if op.phase == "optimizer"]
    return sum(kernel.time for op in ops for kernel in prediction.priced.of(op))


def _activations(prediction: Prediction) -> float:
    return float(prediction.memory.by_kind.get("activations", 0))
