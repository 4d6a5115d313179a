"""``parallelize`` lets independent groups of ops run side by side."""

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

MOST_STREAMS = 128


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
        """Spread the groups over streams."""
        streams = frame.value(self.streams)
        if (
            not isinstance(streams, int)
            or isinstance(streams, bool)
            or not 1 < streams <= MOST_STREAMS
        ):
            message = (
                f"the number of streams must be from 2 to {MOST_STREAMS}, not {spell(streams)}"
            )
            raise fail(message, self.streams.place)
        found = [(selection, frame.select_whole(selection)) for selection in self.selections]
        total = sum(selected.total for _, selected in found)
        first = any(len(selected.matches) < selected.total for _, selected in found)
        lacking = [nothing_matched(selected, s) for s, selected in found if not selected.total]
        groups: Sequence[Sequence[Op]] = _groups([selected for _, selected in found])
        if len(groups) == 1:
            message = "parallelize needs two or more groups"
            lacking.append(Diagnostic(message, self.place, severity="warning"))
        made = replace(frame.entry(self), matched=total, first=first, warnings=tuple(lacking))
        before = frame.state.graph
        if len(groups) > 1:
            groups, refused = self._independent(frame, groups)
            made = replace(made, refused=refused)
        if len(groups) < 2:
            return made
        after = frame.state.graph = parallelize(before, groups, streams)
        events = format_count(new_events(before, after), "event")
        done = f"{len(groups)} groups over {min(streams, len(groups))} streams with {events}"
        return replace(
            made, done=done, legal=("no group depends on another",), moved=total - len(made.refused)
        )

    def _independent(
        self, frame: Frame, groups: Sequence[Sequence[Op]]
    ) -> tuple[list[Sequence[Op]], tuple[Diagnostic, ...]]:
        """Return the groups that may run side by side, and why others are left as they are.

        Where that leaves a single one of several selections, it is an error.
        """
        graph = frame.state.graph
        alone = dependent_groups(graph, groups)
        if len(self.selections) > 1 and len(groups) - len(alone) < 2:
            what = "the groups cannot run in parallel"
            raise illegal(refusal(next(iter(alone.values())), what, self.place, graph))
        refused = tuple(
            refusal(why, f"{call_of(groups[i][0])} does not run in parallel", self.place, graph)
            for i, why in alone.items()
        )
        return [group for i, group in enumerate(groups) if i not in alone], refused


def _groups(found: Sequence[SelectionResult]) -> list[list[Op]]:
    """Return the ops of each selection, or, of a single one, those of each match."""
    if len(found) == 1:
        return [found[0].members(match) for match in found[0].matches]
    return [one.ops for one in found if one.ops]
