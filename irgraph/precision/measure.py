"""Execution and simulation of plans: the loss of accuracy and the gain of each."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan, fail
from irgraph.execute import LIMIT, execute
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.prepared import sources_of
from irgraph.ir.ranks import is_collective
from irgraph.language import load_script, run
from irgraph.precision.candidates import Candidate, Plan, script
from irgraph.precision.data import RANDOM_SOURCE, Data
from irgraph.precision.metrics import (
    auc,
    decibels,
    divergence,
    entropy,
    is_binary,
    l2,
    loss_increase,
    normalized_entropy,
    shift_vector,
)
from irgraph.precision.predictions import predictions_of, with_logits
from irgraph.precision.values import check_labels
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import Prediction, predict

RANGE_RATIO, RANGE_COUNT = 2**-0.25, 17
"""Ratio and number of the ranges that are tried for a tensor, down to 1/16 of the largest."""

MIN_LOGIT_RANGE = 1e-6
"""Minimum difference of logits between samples; constant logits cannot distinguish formats."""

AIMS = ("time", "active", "parameters", "links")
"""Quantities that a plan reduces: the step's time, the device's time, the bytes of parameters, or
the bytes over links (between host and device, from slower tiers, to other ranks)."""


class Errors(Struct, frozen=True):
    """Errors of a plan's predictions relative to the reference, over all batches.

    Attributes:
        kl: mean Kullback-Leibler divergence of a prediction in nats.
        share: ``kl`` over the mean entropy of the reference's predictions.
        logits: normalised L2 error of the logits.
        ops: normalised L2 error of ops' results, by name.
        rise: relative increase of the log loss, and its standard error; ``None`` without labels.
    """

    kl: float
    share: float
    logits: float
    ops: Mapping[str, float]
    rise: tuple[float, float] | None = None


class SimulatedStep(Struct, frozen=True):
    """A simulated step: its time and the device's in us, bytes of parameters and over links."""

    time: float
    active: float
    parameters: float
    links: float


class PrecisionBench:
    """Test bench for plans of one model: each is executed and simulated once, and cached."""

    def __init__(
        self,
        graph: Graph,
        candidates: Sequence[Candidate],
        data: Data,
        options: PredictOptions,
        output: str = "",
        limit: int = LIMIT,
        placements: Sequence[str] = (),
    ) -> None:
        """Execute the reference; tensors of one execution may use ``limit`` bytes.

        ``placements`` are placements of tables in simulations: arguments of the statement
        ``place``, which does not change results.

        Raises:
            IrgraphError: an op cannot be executed, the step returns no predictions, or they are not
                finite, or their number differs from the labels' (exit code 2).
        """
        self.graph, self.candidates, self.data, self.options = graph, candidates, data, options
        _check_single_rank(graph)
        self.limit = limit
        self.placement_script = "".join(f"place {placement}\n" for placement in placements)
        self.prediction_tensors = predictions_of(graph, output)
        self.logits = self.prediction_tensors.logits
        results = {
            name for candidate in candidates for name in (*candidate.results, *candidate.rows)
        }
        self.batches = list(data.batches)
        self.reference = self._execute(graph, {*self.logits, *results}, store_initial=True)
        self._check_reference()
        self.ranges = _ranges(
            self.reference, {name for candidate in candidates for name in candidate.rows}
        )
        self._errors: dict[tuple[tuple[int, str], ...], Errors] = {}
        self._logit_shifts: dict[tuple[int, str], Any] = {}
        self._shift_vectors: dict[tuple[int, str], Any] = {}
        self._simulated: dict[tuple[tuple[int, str], ...], SimulatedStep] = {}
        self.predictions: dict[tuple[tuple[int, str], ...], Prediction] = {}

    def _check_reference(self) -> None:
        """Raise ``IrgraphError`` for reference predictions that are not finite or lack labels."""
        for number, values in enumerate(self.reference):
            for name in self.logits:
                if not bool(values[name].isfinite().all()):
                    hint = "are the parameters and the batches finite?"
                    message = f"batch {number + 1}: the model predicts nan or infinity (%{name})"
                    raise fail(message, SourceSpan(self.data.source), hint=hint, exit_code=2)
            if self.data.labels:
                span = SourceSpan(f"{self.data.source}: batch {number + 1}")
                check_labels(_tensor(self.data.labels[number]), values[self.logits[0]], span)

    def rewritten_graph(self, plan: Plan) -> Graph:
        """Return the model with a plan's formats."""
        text = script(self.candidates, plan, self.ranges)
        return run(load_script(text), self.graph).graph if text else self.graph

    def errors(self, plan: Plan) -> Errors:
        """Execute a plan on the data and return its errors."""
        key = tuple(sorted(plan.items()))
        if key not in self._errors:
            result_names = [name for number in plan for name in self.candidates[number].results]
            changed_values = self._execute_rewritten(self.rewritten_graph(plan), result_names)
            self._errors[key] = self._errors_of_values(changed_values, result_names)
            if len(key) == 1:
                changed_logits = self._all_logits(changed_values)
                self._logit_shifts[key[0]] = [
                    b - a for a, b in zip(self.reference_logits(), changed_logits, strict=True)
                ]
        return self._errors[key]

    def additive_divergence(self, plan: Plan) -> float:
        """Return the divergence in nats of the logits with the summed errors of all single formats.

        Unlike the sum of the divergences of single formats, it includes interactions of errors.
        """
        for pair in plan.items():
            self.errors(dict([pair]))
        total = 0.0
        for index, reference in enumerate(self.reference_logits()):
            shifts = (self._logit_shifts[pair][index].double() for pair in plan.items())
            total += divergence(reference, sum(shifts, reference.double()))
        return total

    def interaction(self, first: tuple[int, str], second: tuple[int, str]) -> float:
        """Return the joint divergence of two formats minus their own, in nats, to second order.

        It is negative if their errors of logits cancel, and 0 if a format overflows.
        """
        for pair in (first, second):
            self.errors(dict([pair]))
            if pair not in self._shift_vectors:
                parts = map(shift_vector, self.reference_logits(), self._logit_shifts[pair])
                self._shift_vectors[pair] = _cat(list(parts))
        product = float(self._shift_vectors[first].dot(self._shift_vectors[second]))
        return product if math.isfinite(product) else 0.0

    def compare(self, graph: Graph, result_names: Sequence[str] = ()) -> Errors:
        """Execute a rewritten model, and return the errors of its predictions."""
        return self._errors_of_values(self._execute_rewritten(graph, result_names), result_names)

    def _execute_rewritten(self, graph: Graph, result_names: Sequence[str]) -> list[dict[str, Any]]:
        for name in (n for n in self.logits if n not in graph.by_name):
            raise fail(f"the rewritten model lacks %{name}", exit_code=2)
        return self._execute(graph, {*self.logits, *result_names})

    def _errors_of_values(
        self, changed_values: Sequence[Mapping[str, Any]], result_names: Sequence[str]
    ) -> Errors:
        """Return the errors of a rewritten model's values relative to the reference."""
        first, second = self.reference_logits(), self._all_logits(changed_values)
        kl, base = sum(map(divergence, first, second)), self.entropy()
        kl = math.inf if math.isnan(kl) else kl  # a format overflows
        ops = {
            name: l2(_concatenate(self.reference, name), _concatenate(changed_values, name))
            for name in result_names
        }
        labels = [_tensor(label) for label in self.data.labels]
        rises = loss_increase(first[0], second[0], _cat(labels)) if labels else None
        logits = l2(
            *(_cat([tensor.flatten() for tensor in tensors]) for tensors in (first, second))
        )
        share = kl / base if base else (math.inf if kl else 0.0)
        return Errors(kl, share, logits, ops, rises)

    def reference_logits(self) -> list[Any]:
        """Return the reference's logits of all batches, a tensor for each prediction."""
        return self._all_logits(self.reference)

    def _all_logits(self, batch_values: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [_concatenate(batch_values, name) for name in self.logits]

    def constant_predictions(self) -> list[str]:
        """Return the names of predictions that are equal for all samples, which hide errors."""
        pairs = zip(self.logits, self.reference_logits(), strict=True)
        return [
            n
            for n, logits in pairs
            if len(logits) > 1 and float((logits - logits[:1]).abs().max()) < MIN_LOGIT_RANGE
        ]

    def entropy(self) -> float:
        """Return the mean entropy of the reference's predictions in nats, summed over outputs."""
        return sum(map(entropy, self.reference_logits()))

    def noise(self, name: str, plan: Plan) -> float:
        """Return the signal-to-noise ratio of an op that a plan changes, in decibels."""
        return decibels(self.errors(plan).ops[name])

    def accuracy(self) -> dict[str, float]:
        """Return normalised entropy and AUC of the reference, nothing without labels."""
        if not self.data.labels:
            return {}
        logits = _concatenate(self.reference, self.logits[0])
        labels = _cat([_tensor(label) for label in self.data.labels])
        metrics = {"normalized_entropy": normalized_entropy(logits, labels)}
        return {**metrics, "auc": auc(logits, labels)} if is_binary(logits) else metrics

    def simulate(self, plan: Plan) -> SimulatedStep:
        """Simulate a plan's step and return its figures."""
        key = tuple(sorted(plan.items()))
        if key not in self._simulated:
            graph = self.rewritten_graph(plan)
            parameter_bytes = float(
                sum(d.tensor.nbytes for d in graph.tensors if d.role == "param")
            )
            prediction = predict(self.with_placements(graph), self.options)
            self.predictions[key] = prediction
            links = sum(kernel.link_bytes for kernel in prediction.kernels())
            figures = SimulatedStep(
                prediction.step_time, prediction.timeline.active_time, parameter_bytes, links
            )
            self._simulated[key] = figures
        return self._simulated[key]

    def with_placements(self, graph: Graph) -> Graph:
        """Return a model with the placements of its tables for simulations."""
        return (
            run(load_script(self.placement_script, "--place"), graph).graph
            if self.placement_script
            else graph
        )

    def prediction(self, plan: Plan) -> Prediction:
        """Return the prediction of a plan's step."""
        self.simulate(plan)
        return self.predictions[tuple(sorted(plan.items()))]

    def _execute(
        self, graph: Graph, names: set[str], *, store_initial: bool = False
    ) -> list[dict[str, Any]]:
        """Return values by name for each batch.

        With ``store_initial`` later executions start from the same initial values: random values
        depend on the ops that read them, so a rewritten model would draw different ones.
        """
        batch_values = []
        graph = with_logits(graph, self.logits)
        input_names = graph.by_name.keys() | sources_of(graph).keys()
        for number, batch in enumerate(self.batches):
            inputs = {name: value for name, value in batch.items() if name in input_names}
            with _batch_note(number, self.data):
                result = execute(graph, inputs, seed=number, dims=self.data.dims, limit=self.limit)
            if store_initial:
                self.batches[number] = {**result.initial, **batch}
            values = result.values
            batch_values.append({name: values[name].clone() for name in names if name in values})
        return batch_values


@contextmanager
def _batch_note(number: int, data: Data) -> Iterator[None]:
    """Add a note with the batch to errors of an execution."""
    try:
        yield
    except IrgraphError as error:
        if data.source == RANDOM_SOURCE:
            raise
        (first, *rest), text = error.diagnostics, f"with batch {number + 1} of {data.source}"
        note = Diagnostic(text, severity="note")
        annotated = dataclasses.replace(first, notes=(*first.notes, note))
        raise IrgraphError((annotated, *rest), error.exit_code) from error


def _check_single_rank(graph: Graph) -> None:
    """Raise ``IrgraphError`` for one of several ranks, whose collectives cannot run."""
    op = next((leaf for leaf in graph.leaves() if is_collective(leaf)), None)
    if op is not None:
        hint = (
            "search formats of the whole step, and shard it; the statement quantize brings "
            'exchanges to "bf16", and irgraph check WHOLE RANK0 RANK1 … runs all ranks'
        )
        raise fail(
            f"{op.name} exchanges with other ranks, which do not run", hint=hint, exit_code=2
        )


def _ranges(batch_values: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Return the ranges of tensors over all batches that round them with the least squared error.

    The largest absolute value and fractions of it are tried: a few large elements may be clipped.
    """
    from irgraph.execute.narrow.preparation import squared_error

    ranges: dict[str, float] = {}
    for name in (n for n in names if all(n in values for values in batch_values)):
        elements = _concatenate(batch_values, name).float().flatten()
        largest = float(elements.abs().max()) if elements.numel() else 0.0
        shares = [largest * RANGE_RATIO**step for step in range(RANGE_COUNT)]
        ranges[name] = min(shares, key=lambda r: squared_error(elements, r)) if largest else 1.0
    return ranges


def _concatenate(batch_values: Sequence[Mapping[str, Any]], name: str) -> Any:  # noqa: ANN401  (a tensor)
    return _cat([values[name] for values in batch_values])


def _cat(parts: Sequence[Any]) -> Any:  # noqa: ANN401  (a tensor)
    import torch

    return torch.cat([part.reshape(1) if not part.dim() else part for part in parts])


def _tensor(value: Any) -> Any:  # noqa: ANN401  (a tensor)
    import torch

    return torch.as_tensor(value)
