"""``reorder`` moves ops within the launch order, or to another stream."""

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
    destination: Anchor | str
    stream: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        tail = join_words(clause("on stream", self.stream), assuming_clause(self.assuming))
        return join_words("reorder", self.selection, self.destination, tail)

    def check(self, check: Checker) -> None:
        """Check the selection and the anchor."""
        check.selection(self.selection)
        if isinstance(self.destination, Anchor):
            check.anchor(self.destination)

    def run(self, frame: Frame) -> Entry:
        """Move the ops that match, each match independently."""
        selected = frame.select_whole(self.selection)
        entry = frame.entry_of(self, selected, self.selection)
        groups = [selected.members(match) for match in selected.matches]
        if not any(groups):
            return entry
        if isinstance(self.destination, str):
            return self._move(frame, groups, self.destination, None, entry)
        anchors = frame.select(self.destination.selection, all_=True)
        if not anchors.matches:
            warning: Diagnostic = nothing_matched(anchors, self.destination.selection)
            return replace(entry, warnings=(*entry.warnings, warning))
        match = anchors.matches[-1 if self.destination.nth == "last" else 0]
        anchor = anchors.op(match.ops[-1] if self.destination.side == "after" else match.ops[0])
        if len(anchors.matches) > 1 and not self.destination.nth:
            entry = replace(
                entry, done=f" {self.destination.side} the first of {len(anchors.matches)} matches"
            )
        return self._move(frame, groups, self.destination.side, anchor, entry)

    def _move(
        self,
        frame: Frame,
        groups: Sequence[Sequence[Op]],
        side: str,
        anchor: Op | None,
        entry: Entry,
    ) -> Entry:
        """Move the ops of each match; ``entry.done`` names the anchor used of several."""
        before = frame.state.graph
        refusals = Refusals(frame, self.place, self.selection.many)
        while True:
            ops = [op for group in groups for op in group]
            if not ops:
                return replace(entry, done="", refused=tuple(refusals.diagnostics))
            try:
                done = reorder(
                    before, ops, side, anchor, stream=self.stream, assuming=self.assuming
                )
                break
            except CrossedError as error:
                groups = _refuse_matches(groups, error, refusals)
        frame.state.graph = done.graph
        message = f"{format_count(len(ops), 'op')} moved"
        if len(done.moved_ops) < len(ops):
            message = f"{len(done.moved_ops)} of {format_count(len(ops), 'op')} moved"
        message += entry.done
        if self.stream:
            events = format_count(new_events(before, done.graph), "event")
            they = "they run" if len(ops) > 1 else "it runs"
            message += f"; {they} on stream {self.stream} now, with {events}"
        assumed = () if done.assumed is None else (f"{call_of(done.assumed)}: {self.assuming}",)
        return replace(
            entry,
            done=message,
            legal=("no dependence is crossed",),
            assumptions=assumed,
            refused=tuple(refusals.diagnostics),
            moved=len(ops) if self.stream else len(done.moved_ops),
        )


def _refuse_matches(
    groups: Sequence[Sequence[Op]], error: CrossedError, refusals: Refusals
) -> list[Sequence[Op]]:
    """Refuse the matches whose ops may not move; return the others."""
    refusal_by_op = {op: refusal for moved_op, refusal in error.refusals for op in moved_op.walk()}
    remaining: list[Sequence[Op]] = []
    for group in groups:
        refused_op = next(
            (op for op in group for inner in op.walk() if inner in refusal_by_op), None
        )
        if refused_op is None:
            remaining.append(group)
        else:
            reason = next(
                refusal_by_op[inner] for inner in refused_op.walk() if inner in refusal_by_op
            )
            refusals.add(reason, f"{call_of(refused_op)} is not moved")
    return remaining
