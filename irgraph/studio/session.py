"""The edits of one session: what was tried, applied, undone; each with what it is worth.

It computes nothing itself: models are rewritten and predicted by the public functions of
``irgraph``, so a script can do all that the page can.
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

SOURCE = "script"
"""What messages call the text of the script."""

CARRIED = re.compile(r"\b(?:as|find|let|pass|sweep|target)\b")
"""Words of statements that matter to later ones: names, passes, and the device that prices them."""

KEPT = 8
"""Attempts whose results are kept: one that is applied was tried just before."""


@dataclass(frozen=True, repr=False)
class Revision:
    """The model after an edit; the first has no text.

    Attributes:
        text: the statements of the edit.
        graph: the model.
        total: the first model and this one, predicted so that they can be compared.
        entries: what the statements did.
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
    def numbers(self) -> dict[int, int]:
        """The place of each op among all ops in launch order, outer before inner; by its ``id``."""
        return {id(op): at for at, op in enumerate(self.graph.walk())}


@dataclass(frozen=True, repr=False)
class Attempt:
    """What statements would do to the present model.

    Attributes:
        text: the statements.
        step: the model after them, ``None`` where they are refused or wrong.
        problems: why, then; their lines count from the first of ``text``.
        wrong: whether the statements cannot be read, or name what is not there.
    """

    text: str
    step: Revision | None = None
    problems: tuple[Diagnostic, ...] = ()
    wrong: bool = False


class Session:
    """A model, and the edits that were applied to it one after the other.

    Args:
        graph: the model.
        options: the device, the host and all else that predictions depend on.
        pass_path: further folders of passes.
    """

    def __init__(
        self, graph: Graph, options: PredictOptions | None = None, pass_path: Sequence[str] = ()
    ) -> None:
        first = irgraph.predict(graph, options)
        self.pass_path = tuple(pass_path)
        self._steps = [Revision("", graph, Difference(first, first))]
        self._at = 0
        self._tried: dict[tuple[int, str], Attempt] = {}

    @property
    def step(self) -> Revision:
        """The present model."""
        return self._steps[self._at]

    @property
    def first(self) -> Revision:
        """The model that the session began with."""
        return self._steps[0]

    @property
    def done(self) -> list[Revision]:
        """The edits that led to the present model, in order."""
        return self._steps[1 : self._at + 1]

    @property
    def undone(self) -> list[Revision]:
        """The edits that ``redo`` would apply again, the next one first."""
        return self._steps[self._at + 1 :]

    def attempt(self, text: str) -> Attempt:
        """Return what statements would do to the present model; nothing is kept of it.

        A refusal is a result, with all its reasons.
        """
        key = self._at, text
        if key not in self._tried:
            while len(self._tried) >= KEPT:
                del self._tried[next(iter(self._tried))]
            self._tried[key] = self._attempted(text)
        return self._tried[key]

    def apply(self, text: str) -> Attempt:
        """Apply statements to the present model, where they are legal; what was undone is lost."""
        found = self.attempt(text)
        if found.step is not None:
            self._steps[self._at + 1 :] = [found.step]
            self._at += 1
            self._tried.clear()
        return found

    def move(self, by: int) -> None:
        """Undo edits (negative) or apply undone ones again, as far as there are any."""
        self._at = min(max(self._at + by, 0), len(self._steps) - 1)
        self._tried.clear()

    def script(self) -> str:
        """Return the script of all edits.

        Raises ``IrgraphError`` where it would not make the present model of the first one.
        """
        text = _joined([step.text for step in self.done])
        if text and self._run(text, self.first.graph).graph != self.step.graph:
            message = "the script as a whole makes another model than its parts did"
            hint = "undo to where it last could be saved"
            raise IrgraphError([Diagnostic(message, hint=hint)], 70)
        return text

    def difference(self, step: Revision) -> Difference | None:
        """Return what an edit changes, ``None`` where the predictions rest on different times."""
        if self.step is self.first:
            return step.total
        rests = [one.total.before.measured for one in (self.step, step)]
        same = rests[0] == rests[1]
        return Difference(self.step.prediction, step.prediction) if same else None

    def _attempted(self, text: str) -> Attempt:
        earlier = [step.text for step in self.done]
        carried = any(CARRIED.search(part) for part in [*earlier, text]) and bool(earlier)
        before = _joined(earlier) if carried else ""
        skipped = sum(len(step.entries) for step in self.done) if carried else 0
        try:
            graph = self.first.graph if carried else self.step.graph
            ran = self._run(before + text, graph)
            total = self._total(ran.graph)
        except IrgraphError as error:
            problems = _from(error.diagnostics, before)
            return Attempt(text, problems=problems, wrong=error.exit_code != 1)
        reports = [done.report for done in ran.applied]
        entries = tuple(entry for report in reports for entry in report.entries)[skipped:]
        unused = tuple(line for report in reports for line in report.unused)
        return Attempt(text, Revision(text, ran.graph, total, entries, _from(unused, before)))

    def _total(self, graph: Graph) -> Difference:
        """Return what changed since the session began; a model that is there is known."""
        if graph is self.step.graph:
            return self.step.total
        return irgraph.diff(self.first.prediction, graph)

    def _run(self, text: str, graph: Graph) -> irgraph.Outcome:
        options = self.first.prediction.options
        return irgraph.run_script(graph, text, device=options, pass_path=self.pass_path)


def _joined(texts: Sequence[str]) -> str:
    return "".join(text.rstrip() + "\n" for text in texts)


def _from(problems: Sequence[Diagnostic], before: str) -> tuple[Diagnostic, ...]:
    """Return diagnostics with lines that count from the end of an earlier text on."""
    lines, text = before.count("\n"), len(before)

    def moved(one: Diagnostic) -> Diagnostic:
        place = one.place
        if place is not None and place.source == SOURCE and place.line > lines:
            place = replace(place, line=place.line - lines, text=place.text[text:])
        return replace(one, place=place, notes=tuple(map(moved, one.notes)))

    return tuple(map(moved, problems))
