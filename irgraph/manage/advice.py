"""Advice on a step: the passes of the library that would make it faster, alone and combined."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

import passes
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.language import Pass, Script, load_pass, run
from irgraph.language.running.report import Outcome
from irgraph.language.statements.apply import Apply
from irgraph.manage.space import call_of
from irgraph.predict.difference import Difference, diff
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import Prediction, predict
from irgraph.predict.target import target
from irgraph.report.console import time_text

MIN_SAVING = 0.002
"""Share of the step below which a pass is not advised: models are less precise."""


class PassGain(Struct, frozen=True, dict=True):
    """A pass that changes a step.

    Attributes:
        name: of the pass.
        description: of the pass.
        outcome: the graph after the pass, and the report.
        difference: predictions before and after.
        is_changing: whether the pass declares that it changes results.
    """

    name: str
    description: str
    outcome: Outcome
    difference: Difference
    is_changing: bool

    def __repr__(self) -> str:
        """Return the pass, its saving and its legality, in one line."""
        return f"<PassGain {self.name}: saves {time_text(self.saved)}, {self.legality}>"

    @property
    def saved(self) -> float:
        """Time by which the step becomes shorter, microseconds."""
        return -self.difference.step_time_change

    @property
    def changes_results(self) -> bool:
        """Whether results change: on purpose, or because element types are narrower."""
        return self.is_changing or self._is_cast

    @property
    def _is_cast(self) -> bool:
        return any(entry.verb == "cast" and entry.changed for entry in self.outcome.report.entries)

    @property
    def legality(self) -> str:
        """Reason why the pass is legal, or its effect on results."""
        report = self.outcome.report
        if self.is_changing:
            return "changes results"
        if self._is_cast:
            return "narrower types"
        if report.assumptions:
            return f"assuming {report.assumptions[0]}"
        return "meaning not compared" if report.uncompared else "legal"

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values; times in microseconds."""
        return {
            "pass": self.name,
            "description": self.description,
            "saved_us": self.saved,
            "saved_interval_us": [-end for end in reversed(self.difference.interval)],
            "step_time_us": self.difference.after.step_time,
            "legality": self.legality,
        }


class Advice(Struct, frozen=True):
    """The passes that make a step faster.

    Attributes:
        before: the prediction of the step.
        gains: passes that make the step faster, the largest saving first.
        order: names of the passes of the best combination, in the order of their application.
        combined: predictions before and after all of ``order``; ``None`` without any.
        refused: passes that are illegal here, each with the reason.
    """

    before: Prediction
    gains: tuple[PassGain, ...]
    order: tuple[str, ...]
    combined: Difference | None
    refused: tuple[tuple[str, str], ...]

    def __repr__(self) -> str:
        """Return the passes of the combination and the step times, in one line."""
        after = (self.combined.after if self.combined else self.before).step_time
        times = f"{time_text(self.before.step_time)} to {time_text(after)}"
        return f"<Advice: {times} by {', '.join(self.order) or 'no pass'}>"

    @property
    def script(self) -> str:
        """The statements that apply ``order``."""
        return "".join(f"apply {name}()\n" for name in self.order)

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values; times in microseconds."""
        combined = self.combined
        return {
            "device": self.before.sheet.name,
            "host": self.before.host.name,
            "step_time_us": self.before.step_time,
            "step_time_interval_us": list(self.before.interval),
            "gains": [gain.summary() for gain in self.gains],
            "combined": {
                "passes": list(self.order),
                "step_time_us": (combined.after if combined else self.before).step_time,
                "saved_us": -combined.step_time_change if combined else 0.0,
                "saved_interval_us": (
                    [-end for end in reversed(combined.interval)] if combined else [0.0, 0.0]
                ),
            },
            "refused": dict(self.refused),
            "warnings": list(self.before.warnings),
        }


def advise(
    graph: Graph,
    options: PredictOptions | None = None,
    *,
    pass_path: Sequence[str] = (),
    min_saving: float = MIN_SAVING,
) -> Advice:
    """Try every pass that needs no argument, alone and in combination, and rank the savings.

    The combination is greedy: the pass that saves most is applied, then the others are tried on
    the result, until none saves ``min_saving`` of the step. Only passes that preserve results and
    save time on the original step take part in it.

    Raises ``IrgraphError`` if the step cannot be predicted.
    """
    options = options or PredictOptions()
    before = predict(graph, options)
    floor = min_saving * before.step_time
    trials = _Trials(options, tuple(pass_path))
    candidates = list(trials.candidates())
    gains = [trials.gain(declared, before) for declared in candidates]
    refused = tuple(trials.refused)
    faster = [gain for gain in gains if gain is not None and gain.saved > floor]
    faster.sort(key=lambda gain: -gain.saved)
    preserving = {gain.name for gain in faster if not gain.changes_results}
    usable = [declared for declared in candidates if declared.name in preserving]
    order, result = trials.combine(before, usable, floor)
    combined = diff(before, result) if order else None
    return Advice(before, tuple(faster), tuple(order), combined, refused)


class _Trials:
    """Runs of single passes.

    Attributes:
        options: of the predictions.
        pass_path: folders of further passes.
        refused: passes that were illegal so far, each with the reason.
    """

    def __init__(self, options: PredictOptions, pass_path: Sequence[str]) -> None:
        self.options = options
        self.pass_path = pass_path
        self.refused: list[tuple[str, str]] = []
        self._target = target(options)

    def candidates(self) -> Iterator[Pass]:
        """Yield the passes that need no argument."""
        for name in passes.names(self.pass_path):
            declared = load_pass(name, self.pass_path)
            if all(parameter.default is not None for parameter in declared.parameters):
                yield declared

    def gain(self, declared: Pass, before: Prediction) -> PassGain | None:
        """Return the effect of a pass, ``None`` if it changes nothing or is refused."""
        graph = before.priced.graph
        try:
            outcome = self.run(declared.name, graph)
        except IrgraphError as error:
            self.refused.append((declared.name, error.diagnostics[0].message))
            return None
        if outcome.graph is graph:
            return None
        difference = diff(before, outcome.graph)
        return PassGain(declared.name, declared.description, outcome, difference, declared.changing)

    def run(self, name: str, graph: Graph) -> Outcome:
        """Apply a pass."""
        script = Script(body=(Apply(call_of(name, {})),))
        return run(script, graph, pricer=self._target, paths=self.pass_path)

    def combine(
        self, before: Prediction, candidates: Sequence[Pass], floor: float
    ) -> tuple[list[str], Graph]:
        """Return the passes to apply, in order, and the graph after them."""
        order: list[str] = []
        while True:
            remaining = [declared for declared in candidates if declared.name not in order]
            gains = [self.gain(declared, before) for declared in remaining]
            best = max(filter(None, gains), key=lambda gain: gain.saved, default=None)
            if best is None or best.saved <= floor:
                return order, before.priced.graph
            order.append(best.name)
            before = predict(best.outcome.graph, before.options)
