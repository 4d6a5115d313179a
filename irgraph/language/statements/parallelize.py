"""``parallelize`` runs independent groups of ops concurrently on several streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from irgraph.diagnostics import Diagnostic, fail
from irgraph.ir.op import Op
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import assuming_clause, clause, join_words
from irgraph.language.expressions.nodes import Expression
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.patterns.nodes import Selection
from irgraph.language.patterns.select import SelectionResult
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, call_of, illegal, nothing_matched, refusal
from irgraph.language.statement import Statement
from irgraph.verbs.parallelize import dependent_groups, parallelize
from irgraph.verbs.streams import new_events

MAX_STREAMS = 128


@dataclass(frozen=True)
class Parallelize(Statement):
    """``parallelize selection, selection over n streams assuming "..."``."""

    selections: tuple[Selection, ...]
    streams: Expression
    assuming: str = ""

    def __str__(self) -> str:
        groups = clause("parallelize", self.selections)
        return join_words(groups, "over", self.streams, "streams", assuming_clause(self.assuming))

    def check(self, check: Checker) -> None:
        """Check the selections and the number of streams."""
        for selection in self.selections:
            check.selection(selection)
        check.kinds.require("number", self.streams, "a number of streams")

    def run(self, frame: Frame) -> Entry:
        """Distribute the groups over streams."""
        streams = frame.value(self.streams)
        if (
            not isinstance(streams, int)
            or isinstance(streams, bool)
            or not 1 < streams <= MAX_STREAMS
        ):
            message = f"the number of streams must be from 2 to {MAX_STREAMS}, not {spell(streams)}"
            raise fail(message, self.streams.place)
        results = [(selection, frame.select_whole(selection)) for selection in self.selections]
        total = sum(selected.total for _, selected in results)
        first = any(len(selected.matches) < selected.total for _, selected in results)
        warnings = [nothing_matched(selected, s) for s, selected in results if not selected.total]
        groups: Sequence[Sequence[Op]] = _groups([selected for _, selected in results])
        if len(groups) == 1:
            message = "parallelize needs two or more groups"
            warnings.append(Diagnostic(message, self.place, severity="warning"))
        entry = replace(frame.entry(self), matched=total, first=first, warnings=tuple(warnings))
        before = frame.state.graph
        if len(groups) > 1:
            groups, refused = self._independent_groups(frame, groups)
            entry = replace(entry, refused=refused)
        if len(groups) < 2:
            return entry
        after = frame.state.graph = parallelize(before, groups, streams)
        events = format_count(new_events(before, after), "event")
        done = f"{len(groups)} groups over {min(streams, len(groups))} streams with {events}"
        return replace(
            entry,
            done=done,
            legal=("no group depends on another",),
            moved=total - len(entry.refused) if after is not before else 0,
        )

    def _independent_groups(
        self, frame: Frame, groups: Sequence[Sequence[Op]]
    ) -> tuple[list[Sequence[Op]], tuple[Diagnostic, ...]]:
        """Return the groups that may run concurrently, and the refusals of the others.

        Raises ``IrgraphError`` if fewer than two of several selections remain.
        """
        graph = frame.state.graph
        dependent = dependent_groups(graph, groups)
        if len(self.selections) > 1 and len(groups) - len(dependent) < 2:
            consequence = "the groups cannot run in parallel"
            raise illegal(refusal(next(iter(dependent.values())), consequence, self.place, graph))
        refused = tuple(
            refusal(error, f"{call_of(groups[i][0])} does not run in parallel", self.place, graph)
            for i, error in dependent.items()
        )
        return [group for i, group in enumerate(groups) if i not in dependent], refused


def _groups(selections: Sequence[SelectionResult]) -> list[list[Op]]:
    """Return the ops of each selection, or the ops of each match of a single selection."""
    if len(selections) == 1:
        return [selections[0].members(match) for match in selections[0].matches]
    return [selected.ops for selected in selections if selected.ops]
