"""``reorder`` moves ops in the launch order, or to another stream."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from irgraph.diagnostics import Diagnostic
from irgraph.ir.op import Op
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import Anchor, assuming_clause, clause, join_words
from irgraph.language.expressions.values import format_count
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of, nothing_matched
from irgraph.language.statement import Statement
from irgraph.verbs.refusal import CrossedError
from irgraph.verbs.reorder import reorder
from irgraph.verbs.streams import new_events


@dataclass(frozen=True)
class Reorder(Statement):
    """``reorder selection before selection``, or ``earliest on stream copy``."""

    selection: Selection
    to: Anchor | str
    stream: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        tail = join_words(clause("on stream", self.stream), assuming_clause(self.assuming))
        return join_words("reorder", self.selection, self.to, tail)

    def check(self, check: Checker) -> None:
        """Check the selection and the anchor."""
        check.selection(self.selection)
        if isinstance(self.to, Anchor):
            check.anchor(self.to)

    def run(self, frame: Frame) -> Entry:
        """Move what matches, one by one where all matches are meant."""
        selected = frame.select_whole(self.selection)
        made = frame.entry_of(self, selected, self.selection)
        groups = [selected.members(match) for match in selected.matches]
        if not any(groups):
            return made
        if isinstance(self.to, str):
            return self._moved(frame, groups, self.to, None, made)
        found = frame.select(self.to.selection, all_=True)
        if not found.matches:
            lacking: Diagnostic = nothing_matched(found, self.to.selection)
            return replace(made, warnings=(*made.warnings, lacking))
        match = found.matches[-1 if self.to.nth == "last" else 0]
        anchor = found.op(match.ops[-1] if self.to.side == "after" else match.ops[0])
        if len(found.matches) > 1 and not self.to.nth:
            made = replace(made, done=f" {self.to.side} the first of {len(found.matches)} matches")
        return self._moved(frame, groups, self.to.side, anchor, made)

    def _moved(
        self,
        frame: Frame,
        groups: Sequence[Sequence[Op]],
        to: str,
        anchor: Op | None,
        made: Entry,
    ) -> Entry:
        """Move the ops of each match; ``made.done`` says beside which of several anchors."""
        before = frame.state.graph
        refusals = Refusals(frame, self.place, self.selection.many)
        while True:
            ops = [op for group in groups for op in group]
            if not ops:
                return replace(made, done="", refused=tuple(refusals.found))
            try:
                done = reorder(before, ops, to, anchor, stream=self.stream, assuming=self.assuming)
                break
            except CrossedError as error:
                groups = _others(groups, error, refusals)
        frame.state.graph = done.graph
        message = f"{format_count(len(ops), 'op')} moved"
        if len(done.moved_ops) < len(ops):
            message = f"{len(done.moved_ops)} of {format_count(len(ops), 'op')} moved"
        message += made.done
        if self.stream:
            events = format_count(new_events(before, done.graph), "event")
            they = "they run" if len(ops) > 1 else "it runs"
            message += f"; {they} on stream {self.stream} now, with {events}"
        assumed = () if done.assumed is None else (f"{call_of(done.assumed)}: {self.assuming}",)
        return replace(
            made,
            done=message,
            legal=("no dependence is crossed",),
            assumptions=assumed,
            refused=tuple(refusals.found),
            moved=len(ops) if self.stream else len(done.moved_ops),
        )


def _others(
    groups: Sequence[Sequence[Op]], error: CrossedError, refusals: Refusals
) -> list[Sequence[Op]]:
    """Refuse the matches whose ops may not move; return the others."""
    why = {id(op): refused for moved, refused in error.refusals for op in moved.walk()}
    kept: list[Sequence[Op]] = []
    for group in groups:
        found = next((op for op in group for inner in op.walk() if id(inner) in why), None)
        if found is None:
            kept.append(group)
        else:
            reason = next(why[id(inner)] for inner in found.walk() if id(inner) in why)
            refusals.add(reason, f"{call_of(found)} is not moved")
    return kept
