"""Plans, executed and simulated: what each costs in accuracy, and what it gains."""

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
"""Ranges that are tried for a tensor: each is so much of the one before, down to a sixteenth."""

MIN_LOGIT_RANGE = 1e-6
"""Logits that differ by less between all samples are of no use to tell formats apart."""

AIMS = ("time", "active", "parameters", "links")
"""What a plan makes less: the step's time, the device's, the bytes of parameters, or those that
cross links (between host and device, from slower tiers, to other ranks)."""


class Errors(Struct, frozen=True):
    """How far a plan's predictions are from the reference's, over all batches.

    Attributes:
        kl: mean Kullback-Leibler divergence of a prediction, nats.
        share: the same over the mean entropy of the reference's predictions.
        logits: normalised L2 error of the logits.
        ops: by result, the normalised L2 error of what an op makes.
        rise: where there are labels, the share by which the log loss rises, and its standard
            error; else nothing.
    """

    kl: float
    share: float
    logits: float
    ops: Mapping[str, float]
    rise: tuple[float, float] | None = None


class SimulatedStep(Struct, frozen=True):
    """A simulated step: its time, that of the device (us), bytes of parameters and over links."""

    time: float
    active: float
    parameters: float
    links: float


class PrecisionBench:
    """Runs plans of one model: each is executed and simulated once, and remembered."""

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
        """Execute the reference; tensors of one execution may take ``limit`` bytes.

        ``placements`` say where tables lie when a plan is simulated: each is what follows ``place`` in
        a script, which leaves what is computed as it is.

        Raises:
            IrgraphError: an op cannot be executed, the step returns no predictions, or they are not
                finite or as many as the labels (exit code 2).
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
        """Refuse predictions that nothing can be held against."""
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
        """Return the divergence, nats, that logits have to which each format alone adds its error.

        Unlike the sum of the divergences of single formats it has what their errors have in common.
        """
        for pair in plan.items():
            self.errors(dict([pair]))
        total = 0.0
        for index, reference in enumerate(self.reference_logits()):
            shifts = (self._logit_shifts[pair][index].double() for pair in plan.items())
            total += divergence(reference, sum(shifts, reference.double()))
        return total

    def interaction(self, first: tuple[int, str], second: tuple[int, str]) -> float:
        """Return what two formats together take more than each alone, nats, to second order.

        Below zero where the errors that they make of logits cancel; 0 where a format overflows.
        """
        for pair in (first, second):
            self.errors(dict([pair]))
            if pair not in self._shift_vectors:
                parts = map(shift_vector, self.reference_logits(), self._logit_shifts[pair])
                self._shift_vectors[pair] = _cat(list(parts))
        product = float(self._shift_vectors[first].dot(self._shift_vectors[second]))
        return product if math.isfinite(product) else 0.0

    def compare(self, graph: Graph, result_names: Sequence[str] = ()) -> Errors:
        """Execute a rewritten model, and hold its predictions against the reference's."""
        return self._errors_of_values(self._execute_rewritten(graph, result_names), result_names)

    def _execute_rewritten(self, graph: Graph, result_names: Sequence[str]) -> list[dict[str, Any]]:
        for name in (n for n in self.logits if n not in graph.by_name):
            raise fail(f"the rewritten model lacks %{name}", exit_code=2)
        return self._execute(graph, {*self.logits, *result_names})

    def _errors_of_values(
        self, changed_values: Sequence[Mapping[str, Any]], result_names: Sequence[str]
    ) -> Errors:
        """Hold the predictions of a changed model against the reference's."""
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
        """Return the names of predictions that are the same for all samples: errors hardly show."""
        pairs = zip(self.logits, self.reference_logits(), strict=True)
        return [
            n
            for n, logits in pairs
            if len(logits) > 1 and float((logits - logits[:1]).abs().max()) < MIN_LOGIT_RANGE
        ]

    def entropy(self) -> float:
        """Return the mean entropy of the reference's predictions, nats; several add up."""
        return sum(map(entropy, self.reference_logits()))

    def noise(self, name: str, plan: Plan) -> float:
        """Return the signal to noise of an op that a plan changes, decibels."""
        return decibels(self.errors(plan).ops[name])

    def accuracy(self) -> dict[str, float]:
        """Return normalised entropy and AUC of the reference, where there are labels."""
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
        """Return a model with its tables where they lie when it is simulated."""
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
        """Return values by name for each batch; with ``store_initial`` others start from what this did.

        What is drawn follows from the ops that read it: a rewritten model would draw otherwise.
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
    """Say of which batch an execution failed."""
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
    """Refuse a rank of several, whose exchanges nothing answers."""
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

    Tried are the largest absolute value, and shares of it: a few large elements may be cut off.
    """
    from irgraph.execute.narrow.ops import squared_error

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
