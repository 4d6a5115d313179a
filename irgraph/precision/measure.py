"""Plans, executed and simulated: what each costs in accuracy, and what it gains."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from irgraph.diagnostics import Place, fail
from irgraph.execute import LIMIT, execute
from irgraph.ir.effects import is_view
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.prepared import sources_of
from irgraph.ir.op import Op
from irgraph.language import load_script, run
from irgraph.precision.candidates import Candidate, Plan, script
from irgraph.precision.data import Data
from irgraph.precision.metrics import (
    auc,
    divergence,
    entropy,
    l2,
    leaning,
    normalized_entropy,
    rise,
    sqnr,
)
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import Prediction, predict

SQUASHING = ("sigmoid", "_softmax", "softmax", "_log_softmax", "log_softmax")
"""Ops that make predictions of logits, which are compared before them."""

SHARE, SHARES = 2**-0.25, 17
"""Ranges that are tried for a tensor: each is so much of the one before, down to a sixteenth."""

AIMS = ("time", "active", "parameters")
"""What a plan makes less: the step's time, the device's, or the bytes of parameters."""


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
    """A simulated step: its time, that of the device (us), and bytes of parameters."""

    time: float
    active: float
    parameters: float


class Bench:
    """Runs plans of one model: each is executed and simulated once, and remembered."""

    def __init__(self, graph: Graph, known: Sequence[Candidate], data: Data,
                 options: PredictOptions, output: str = "",
                 limit: int = LIMIT) -> None:  # fmt: skip
        """Execute the reference; tensors of one execution may take ``limit`` bytes.

        Raises:
            IrgraphError: an op cannot be executed, the step returns no predictions, or they are not
                finite or as many as the labels (exit code 2).
        """
        self.graph, self.known, self.data, self.options = graph, known, data, options
        self.limit = limit
        self.logits = logits_of(graph, output)
        results = {name for one in known for name in (*one.results, *one.rows)}
        self.batches = list(data.batches)
        self.reference = self._executed(graph, {self.logits, *results}, keep=True)
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
            held = found[self.logits]
            if not bool(held.isfinite().all()):
                hint = "are the parameters and the batches finite?"
                message = f"batch {number + 1}: the model predicts nan or infinity (%{self.logits})"
                raise fail(message, Place(self.data.source), hint=hint, exit_code=2)
            labels = _tensor(self.data.labels[number]) if self.data.labels else held
            if labels.numel() != held.numel():
                said = f"{labels.numel()} labels for {held.numel()} predictions"
                raise fail(f"batch {number + 1}: {said}", Place(self.data.source), exit_code=2)

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
                self._moved[key[0]] = _joined(changed, self.logits) - self.joined()
        return self._errors[key]

    def added(self, plan: Plan) -> float:
        """Return the divergence, nats, that logits have to which each format alone adds its error.

        Unlike the sum of the divergences of single formats it has what their errors have in common.
        """
        for pair in plan.items():
            self.errors(dict([pair]))
        reference = self.joined()
        moved = sum((self._moved[pair].double() for pair in plan.items()), reference.double())
        return divergence(reference, moved)

    def common(self, one: tuple[int, str], other: tuple[int, str]) -> float:
        """Return what two formats together take more than each alone, nats, to second order.

        Below zero where the errors that they make of logits cancel; 0 where a format overflows.
        """
        for pair in (one, other):
            self.errors(dict([pair]))
            if pair not in self._leaning:
                self._leaning[pair] = leaning(self.joined(), self._moved[pair])
        found = float(self._leaning[one].dot(self._leaning[other]))
        return found if math.isfinite(found) else 0.0

    def compared(self, graph: Graph, named: Sequence[str] = ()) -> Errors:
        """Execute a rewritten model, and hold its predictions against the reference's."""
        return self._held(self._changed(graph, named), named)

    def _changed(self, graph: Graph, named: Sequence[str]) -> list[dict[str, Any]]:
        if self.logits not in graph.by_name:
            raise fail(f"the rewritten model lacks %{self.logits}", exit_code=2)
        return self._executed(graph, {self.logits, *named})

    def _held(self, changed: Sequence[Mapping[str, Any]], named: Sequence[str]) -> Errors:
        """Hold the predictions of a changed model against the reference's."""
        first, second = (_joined(found, self.logits) for found in (self.reference, changed))
        kl, base = divergence(first, second), entropy(first)
        kl = math.inf if math.isnan(kl) else kl  # a format overflows
        ops = {name: l2(_joined(self.reference, name), _joined(changed, name)) for name in named}
        labels = [_tensor(one) for one in self.data.labels]
        rises = rise(first, second, _cat(labels)) if labels else None
        return Errors(kl, kl / base if base else 0.0, l2(first, second), ops, rises)

    def joined(self) -> Any:  # noqa: ANN401  (a tensor)
        """Return the reference's logits of all batches."""
        return _joined(self.reference, self.logits)

    def noise(self, name: str, plan: Plan) -> float:
        """Return an op's signal to noise under a plan, decibels."""
        changed = self._executed(self.rewritten(plan), {name})
        return sqnr(_joined(self.reference, name), _joined(changed, name))

    def accuracy(self) -> dict[str, float]:
        """Return normalised entropy and AUC of the reference, where there are labels."""
        if not self.data.labels:
            return {}
        logits = _joined(self.reference, self.logits)
        labels = _cat([_tensor(one) for one in self.data.labels])
        return {"normalized_entropy": normalized_entropy(logits, labels),
                "auc": auc(logits, labels)}  # fmt: skip

    def simulated(self, plan: Plan) -> Simulated:
        """Simulate a plan's step and return its figures."""
        key = tuple(sorted(plan.items()))
        if key not in self._simulated:
            graph = self.rewritten(plan)
            found = predict(graph, self.options)
            held = sum(d.tensor.nbytes for d in graph.tensors if d.role == "param")
            self.predictions[key] = found
            figures = Simulated(found.step_time, found.timeline.active_time, float(held))
            self._simulated[key] = figures
        return self._simulated[key]

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
        known = graph.by_name.keys() | sources_of(graph).keys()
        for number, batch in enumerate(self.batches):
            given = {name: value for name, value in batch.items() if name in known}
            result = execute(graph, given, seed=number, dims=self.data.dims, limit=self.limit)
            if keep:
                self.batches[number] = {**result.initial, **batch}
            values = result.values
            found.append({name: values[name].clone() for name in wanted if name in values})
        return found


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


def logits_of(graph: Graph, output: str = "") -> str:
    """Return the name of the logits of what a step returns, or of ``output``.

    Raises:
        IrgraphError: it returns no floating-point tensor, or has none of that name (exit code 2).
    """
    makers: dict[str, Op] = {t.name: op for op in graph.leaves() for t in op.outputs}
    returned = [t.name for t in graph.returned or () if t.dtype.startswith(("f", "bf"))]
    name = output.removeprefix("%") or next(iter(returned), "")
    if name not in makers:
        what = f"no op makes %{name}" if name else "the step returns no predictions"
        raise fail(what, hint="name a tensor: --output NAME", exit_code=2)
    while name in makers:
        op = makers[name]
        if op.base in SQUASHING:
            return op.inputs[0].name
        if not (is_view(op) or op.base == "_to_copy") or not op.inputs:
            break
        name = op.inputs[0].name
    return output.removeprefix("%") or returned[0]


def _joined(found: Sequence[Mapping[str, Any]], name: str) -> Any:  # noqa: ANN401  (a tensor)
    return _cat([one[name] for one in found])


def _cat(parts: Sequence[Any]) -> Any:  # noqa: ANN401  (a tensor)
    import torch

    return torch.cat([part.reshape(1) if not part.dim() else part for part in parts])


def _tensor(value: Any) -> Any:  # noqa: ANN401  (a tensor)
    import torch

    return torch.as_tensor(value)
