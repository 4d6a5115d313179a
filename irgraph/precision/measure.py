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
from irgraph.precision.data import DRAWN, Data
from irgraph.precision.metrics import (
    auc,
    decibels,
    divergence,
    entropy,
    l2,
    leaning,
    normalized_entropy,
    rise,
    single,
)
from irgraph.precision.predictions import predictions_of, with_logits
from irgraph.precision.values import check_labels
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import Prediction, predict

SHARE, SHARES = 2**-0.25, 17
"""Ranges that are tried for a tensor: each is so much of the one before, down to a sixteenth."""

ALIKE = 1e-6
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


class Simulated(Struct, frozen=True):
    """A simulated step: its time, that of the device (us), bytes of parameters and over links."""

    time: float
    active: float
    parameters: float
    links: float


class Bench:
    """Runs plans of one model: each is executed and simulated once, and remembered."""

    def __init__(
        self,
        graph: Graph,
        known: Sequence[Candidate],
        data: Data,
        options: PredictOptions,
        output: str = "",
        limit: int = LIMIT,
        places: Sequence[str] = (),
    ) -> None:
        """Execute the reference; tensors of one execution may take ``limit`` bytes.

        ``places`` say where tables lie when a plan is simulated: each is what follows ``place`` in
        a script, which leaves what is computed as it is.

        Raises:
            IrgraphError: an op cannot be executed, the step returns no predictions, or they are not
                finite or as many as the labels (exit code 2).
        """
        self.graph, self.known, self.data, self.options = graph, known, data, options
        _check_alone(graph)
        self.limit = limit
        self.places = "".join(f"place {each}\n" for each in places)
        self.predicted = predictions_of(graph, output)
        self.logits = self.predicted.logits
        results = {name for one in known for name in (*one.results, *one.rows)}
        self.batches = list(data.batches)
        self.reference = self._executed(graph, {*self.logits, *results}, keep=True)
        self._check()
        self.ranges = _ranges(self.reference, {name for one in known for name in one.rows})
        self._errors: dict[tuple[tuple[int, str], ...], Errors] = {}
        self._moved: dict[tuple[int, str], Any] = {}
        self._leaning: dict[tuple[int, str], Any] = {}
        self._simulated: dict[tuple[tuple[int, str], ...], Simulated] = {}
        self.predictions: dict[tuple[tuple[int, str], ...], Prediction] = {}

    def _check(self) -> None:
        """Refuse predictions that nothing can be held against."""
        for number, found in enumerate(self.reference):
            for name in self.logits:
                if not bool(found[name].isfinite().all()):
                    hint = "are the parameters and the batches finite?"
                    message = f"batch {number + 1}: the model predicts nan or infinity (%{name})"
                    raise fail(message, SourceSpan(self.data.source), hint=hint, exit_code=2)
            if self.data.labels:
                where = SourceSpan(f"{self.data.source}: batch {number + 1}")
                check_labels(_tensor(self.data.labels[number]), found[self.logits[0]], where)

    def rewritten(self, plan: Plan) -> Graph:
        """Return the model with a plan's formats."""
        text = script(self.known, plan, self.ranges)
        return run(load_script(text), self.graph).graph if text else self.graph

    def errors(self, plan: Plan) -> Errors:
        """Execute a plan on the data and return its errors."""
        key = tuple(sorted(plan.items()))
        if key not in self._errors:
            named = [name for number in plan for name in self.known[number].results]
            changed = self._changed(self.rewritten(plan), named)
            self._errors[key] = self._held(changed, named)
            if len(key) == 1:
                now = self._all(changed)
                self._moved[key[0]] = [b - a for a, b in zip(self.joined(), now, strict=True)]
        return self._errors[key]

    def added(self, plan: Plan) -> float:
        """Return the divergence, nats, that logits have to which each format alone adds its error.

        Unlike the sum of the divergences of single formats it has what their errors have in common.
        """
        for pair in plan.items():
            self.errors(dict([pair]))
        found = 0.0
        for place, reference in enumerate(self.joined()):
            shifts = (self._moved[pair][place].double() for pair in plan.items())
            found += divergence(reference, sum(shifts, reference.double()))
        return found

    def common(self, one: tuple[int, str], other: tuple[int, str]) -> float:
        """Return what two formats together take more than each alone, nats, to second order.

        Below zero where the errors that they make of logits cancel; 0 where a format overflows.
        """
        for pair in (one, other):
            self.errors(dict([pair]))
            if pair not in self._leaning:
                parts = map(leaning, self.joined(), self._moved[pair])
                self._leaning[pair] = _cat(list(parts))
        found = float(self._leaning[one].dot(self._leaning[other]))
        return found if math.isfinite(found) else 0.0

    def compared(self, graph: Graph, named: Sequence[str] = ()) -> Errors:
        """Execute a rewritten model, and hold its predictions against the reference's."""
        return self._held(self._changed(graph, named), named)

    def _changed(self, graph: Graph, named: Sequence[str]) -> list[dict[str, Any]]:
        for name in (n for n in self.logits if n not in graph.by_name):
            raise fail(f"the rewritten model lacks %{name}", exit_code=2)
        return self._executed(graph, {*self.logits, *named})

    def _held(self, changed: Sequence[Mapping[str, Any]], named: Sequence[str]) -> Errors:
        """Hold the predictions of a changed model against the reference's."""
        first, second = self.joined(), self._all(changed)
        kl, base = sum(map(divergence, first, second)), self.entropy()
        kl = math.inf if math.isnan(kl) else kl  # a format overflows
        ops = {name: l2(_joined(self.reference, name), _joined(changed, name)) for name in named}
        labels = [_tensor(one) for one in self.data.labels]
        rises = rise(first[0], second[0], _cat(labels)) if labels else None
        logits = l2(*(_cat([one.flatten() for one in each]) for each in (first, second)))
        share = kl / base if base else (math.inf if kl else 0.0)
        return Errors(kl, share, logits, ops, rises)

    def joined(self) -> list[Any]:
        """Return the reference's logits of all batches, a tensor for each prediction."""
        return self._all(self.reference)

    def _all(self, found: Sequence[Mapping[str, Any]]) -> list[Any]:
        return [_joined(found, name) for name in self.logits]

    def alike(self) -> list[str]:
        """Return the names of predictions that are the same for all samples: errors hardly show."""
        pairs = zip(self.logits, self.joined(), strict=True)
        return [
            n for n, held in pairs if len(held) > 1 and float((held - held[:1]).abs().max()) < ALIKE
        ]

    def entropy(self) -> float:
        """Return the mean entropy of the reference's predictions, nats; several add up."""
        return sum(map(entropy, self.joined()))

    def noise(self, name: str, plan: Plan) -> float:
        """Return the signal to noise of an op that a plan changes, decibels."""
        return decibels(self.errors(plan).ops[name])

    def accuracy(self) -> dict[str, float]:
        """Return normalised entropy and AUC of the reference, where there are labels."""
        if not self.data.labels:
            return {}
        logits = _joined(self.reference, self.logits[0])
        labels = _cat([_tensor(one) for one in self.data.labels])
        found = {"normalized_entropy": normalized_entropy(logits, labels)}
        return {**found, "auc": auc(logits, labels)} if single(logits) else found

    def simulated(self, plan: Plan) -> Simulated:
        """Simulate a plan's step and return its figures."""
        key = tuple(sorted(plan.items()))
        if key not in self._simulated:
            graph = self.rewritten(plan)
            held = float(sum(d.tensor.nbytes for d in graph.tensors if d.role == "param"))
            found = predict(self.served(graph), self.options)
            self.predictions[key] = found
            links = sum(kernel.link_bytes for kernel in found.kernels())
            figures = Simulated(found.step_time, found.timeline.active_time, held, links)
            self._simulated[key] = figures
        return self._simulated[key]

    def served(self, graph: Graph) -> Graph:
        """Return a model with its tables where they lie when it is simulated."""
        return run(load_script(self.places, "--place"), graph).graph if self.places else graph

    def prediction(self, plan: Plan) -> Prediction:
        """Return the prediction of a plan's step."""
        self.simulated(plan)
        return self.predictions[tuple(sorted(plan.items()))]

    def _executed(
        self, graph: Graph, wanted: set[str], *, keep: bool = False
    ) -> list[dict[str, Any]]:
        """Return values by name for each batch; with ``keep`` others start from what this did.

        What is drawn follows from the ops that read it: a rewritten model would draw otherwise.
        """
        found = []
        graph = with_logits(graph, self.logits)
        known = graph.by_name.keys() | sources_of(graph).keys()
        for number, batch in enumerate(self.batches):
            given = {name: value for name, value in batch.items() if name in known}
            with _of_batch(number, self.data):
                result = execute(graph, given, seed=number, dims=self.data.dims, limit=self.limit)
            if keep:
                self.batches[number] = {**result.initial, **batch}
            values = result.values
            found.append({name: values[name].clone() for name in wanted if name in values})
        return found


@contextmanager
def _of_batch(number: int, data: Data) -> Iterator[None]:
    """Say of which batch an execution failed."""
    try:
        yield
    except IrgraphError as error:
        if data.source == DRAWN:
            raise
        (first, *rest), about = error.diagnostics, f"with batch {number + 1} of {data.source}"
        note = Diagnostic(about, severity="note")
        named = dataclasses.replace(first, notes=(*first.notes, note))
        raise IrgraphError((named, *rest), error.exit_code) from error


def _check_alone(graph: Graph) -> None:
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


def _ranges(found: Sequence[Mapping[str, Any]], names: Iterable[str]) -> dict[str, float]:
    """Return the ranges of tensors over all batches that round them with the least squared error.

    Tried are the largest absolute value, and shares of it: a few large elements may be cut off.
    """
    from irgraph.execute.narrow.ops import squared_error

    ranges: dict[str, float] = {}
    for name in (n for n in names if all(n in one for one in found)):
        held = _joined(found, name).float().flatten()
        largest = float(held.abs().max()) if held.numel() else 0.0
        shares = [largest * SHARE**step for step in range(SHARES)]
        ranges[name] = min(shares, key=lambda r: squared_error(held, r)) if largest else 1.0
    return ranges


def _joined(found: Sequence[Mapping[str, Any]], name: str) -> Any:  # noqa: ANN401  (a tensor)
    return _cat([one[name] for one in found])


def _cat(parts: Sequence[Any]) -> Any:  # noqa: ANN401  (a tensor)
    import torch

    return torch.cat([part.reshape(1) if not part.dim() else part for part in parts])


def _tensor(value: Any) -> Any:  # noqa: ANN401  (a tensor)
    import torch

    return torch.as_tensor(value)
