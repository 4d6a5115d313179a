"""Edits of one session, previewed, applied and undone, each with its predicted effect.

Models are rewritten and predicted only by the public functions of ``irgraph``, so a script can do
everything that the page can.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import irgraph
from irgraph import (
    Diagnostic,
    Difference,
    Entry,
    Graph,
    IrgraphError,
    Prediction,
    PredictOptions,
)
from irgraph.ir.op import Op

SOURCE = "script"
"""Name of the script's text in messages."""

DECLARING_WORDS = re.compile(r"\b(?:as|find|let|pass|sweep|target)\b")
"""Words of statements that affect later ones: names, passes, and the device of their prices."""

MAX_ATTEMPTS = 8
"""Maximum number of cached attempts: an attempt is usually previewed before it is applied."""


@dataclass(frozen=True, repr=False)
class Revision:
    """The model after an edit; the first has no text.

    Attributes:
        text: the statements of the edit.
        graph: the model.
        total: comparable predictions of the first model and of this one.
        entries: the effects of the statements.
        warnings: about names that the script never uses.
    """

    text: str
    graph: Graph
    total: Difference
    entries: tuple[Entry, ...] = ()
    warnings: tuple[Diagnostic, ...] = ()

    @property
    def prediction(self) -> Prediction:
        """The prediction of this model."""
        return self.total.after

    @cached_property
    def numbers(self) -> dict[Op, int]:
        """The index of each op among all ops in launch order, outer before inner."""
        return {op: position for position, op in enumerate(self.graph.walk())}


@dataclass(frozen=True, repr=False)
class Attempt:
    """Result of statements on the present model.

    Attributes:
        text: the statements.
        step: the model after them, ``None`` if they are refused or invalid.
        problems: the reasons for it; their lines count from the first of ``text``.
        is_invalid: whether the statements cannot be parsed, or have unknown names.
    """

    text: str
    step: Revision | None = None
    problems: tuple[Diagnostic, ...] = ()
    is_invalid: bool = False


class Session:
    """A model, and the edits that were applied to it one after the other.

    Args:
        graph: the model.
        options: the device, the host and all other options of predictions.
        pass_path: further folders of passes.
    """

    def __init__(
        self, graph: Graph, options: PredictOptions | None = None, pass_path: Sequence[str] = ()
    ) -> None:
        first = irgraph.predict(graph, options)
        self.pass_path = tuple(pass_path)
        self._steps = [Revision("", graph, Difference(first, first))]
        self._position = 0
        self._attempts: dict[tuple[int, str], Attempt] = {}

    @property
    def step(self) -> Revision:
        """The present model."""
        return self._steps[self._position]

    @property
    def first(self) -> Revision:
        """The model that the session began with."""
        return self._steps[0]

    @property
    def edits(self) -> list[Revision]:
        """The edits that led to the present model, in order."""
        return self._steps[1 : self._position + 1]

    @property
    def undone_edits(self) -> list[Revision]:
        """The undone edits that ``move`` can apply again, the next one first."""
        return self._steps[self._position + 1 :]

    def attempt(self, text: str) -> Attempt:
        """Return the result of statements on the present model, without applying them.

        A refusal is a result, with all its reasons.
        """
        key = self._position, text
        if key not in self._attempts:
            while len(self._attempts) >= MAX_ATTEMPTS:
                del self._attempts[next(iter(self._attempts))]
            self._attempts[key] = self._evaluate(text)
        return self._attempts[key]

    def apply(self, text: str) -> Attempt:
        """Apply statements to the present model if they are legal; undone edits are dropped."""
        attempt = self.attempt(text)
        if attempt.step is not None:
            self._steps[self._position + 1 :] = [attempt.step]
            self._position += 1
            self._attempts.clear()
        return attempt

    def move(self, count: int) -> None:
        """Undo edits (negative) or apply undone ones again, as far as there are any."""
        self._position = min(max(self._position + count, 0), len(self._steps) - 1)
        self._attempts.clear()

    def script(self) -> str:
        """Return the script of all edits.

        Raises ``IrgraphError`` if it would not rewrite the first model into the present one.
        """
        text = _concatenate([step.text for step in self.edits])
        if text and self._run(text, self.first.graph).graph != self.step.graph:
            message = "the script as a whole makes another model than its parts did"
            hint = "undo to where it last could be saved"
            raise IrgraphError([Diagnostic(message, hint=hint)], 70)
        return text

    def difference(self, step: Revision) -> Difference | None:
        """Return the difference by an edit, ``None`` if the predictions use different times."""
        if self.step is self.first:
            return step.total
        measured_remarks = [revision.total.before.measured for revision in (self.step, step)]
        is_comparable = measured_remarks[0] == measured_remarks[1]
        return Difference(self.step.prediction, step.prediction) if is_comparable else None

    def _evaluate(self, text: str) -> Attempt:
        earlier_texts = [step.text for step in self.edits]
        starts_over = any(DECLARING_WORDS.search(part) for part in [*earlier_texts, text]) and bool(
            earlier_texts
        )
        earlier_script = _concatenate(earlier_texts) if starts_over else ""
        earlier_entries = sum(len(step.entries) for step in self.edits) if starts_over else 0
        try:
            graph = self.first.graph if starts_over else self.step.graph
            outcome = self._run(earlier_script + text, graph)
            total = self._total(outcome.graph)
        except IrgraphError as error:
            problems = _shift_lines(error.diagnostics, earlier_script)
            return Attempt(text, problems=problems, is_invalid=error.exit_code != 1)
        reports = [applied.report for applied in outcome.applied]
        entries = tuple(entry for report in reports for entry in report.entries)[earlier_entries:]
        unused = tuple(line for report in reports for line in report.unused)
        return Attempt(
            text,
            Revision(text, outcome.graph, total, entries, _shift_lines(unused, earlier_script)),
        )

    def _total(self, graph: Graph) -> Difference:
        """Return the difference from the first model; for the present model it is known."""
        if graph is self.step.graph:
            return self.step.total
        return irgraph.diff(self.first.prediction, graph)

    def _run(self, text: str, graph: Graph) -> irgraph.Outcome:
        options = self.first.prediction.options
        return irgraph.run_script(graph, text, device=options, pass_path=self.pass_path)


def _concatenate(texts: Sequence[str]) -> str:
    return "".join(text.rstrip() + "\n" for text in texts)


def _shift_lines(problems: Sequence[Diagnostic], earlier_script: str) -> tuple[Diagnostic, ...]:
    """Return diagnostics with lines that count from the end of an earlier text on."""
    lines, text = earlier_script.count("\n"), len(earlier_script)

    def shift(diagnostic: Diagnostic) -> Diagnostic:
        span = diagnostic.place
        if span is not None and span.source == SOURCE and span.line > lines:
            span = replace(span, line=span.line - lines, text=span.text[text:])
        return replace(diagnostic, place=span, notes=tuple(map(shift, diagnostic.notes)))

    return tuple(map(shift, problems))
