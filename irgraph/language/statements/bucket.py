"""``bucket`` makes sums over ranks together, up to a size."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.diagnostics import fail
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import clause, join_words
from irgraph.language.expressions.nodes import Expression
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals
from irgraph.language.statement import Statement
from irgraph.verbs.bucket import bucket, buckets, check_bucket


@dataclass(frozen=True)
class Bucket(Statement):
    """``bucket selection up to size as name``."""

    selection: Selection
    limit: Expression
    named: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        return join_words("bucket", self.selection, "up to", self.limit, clause("as", self.named))

    def check(self, check: Checker) -> None:
        """Check the selection and the size."""
        check.selection(self.selection)
        check.kinds.require("bytes", self.limit, "a size", "as in 25MiB")
        check.name_ops(self.named, self.place)

    def run(self, frame: Frame) -> Entry:
        """Make buckets of what matches."""
        limit = frame.value(self.limit)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit < 1:
            raise fail(f"a bucket holds a size such as 25MiB, not {spell(limit)}", self.limit.place)
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, True)
        chosen = refusals.passing(selected.ops, check_bucket, "is not bucketed")
        graph = frame.state.graph
        found = [one for one in buckets(graph, chosen, int(limit)) if len(one.members) > 1]
        frame.state.graph, made = bucket(graph, found, caller=frame.caller or "bucket")
        frame.name_ops(self.named, made, self.selection)
        entry = frame.entry_of(self, selected, self.selection)
        members = sum(len(one.members) for one in found)
        if not made:
            return replace(entry, refused=tuple(refusals.found))
        return replace(
            entry,
            replaced=members,
            made=len(made),
            done=f"{format_count(members, 'sum')} in {format_count(len(made), 'bucket')}, "
            f"{len(chosen) - members} alone",
            legal=("consumers of a sum, and waits for it, come after its whole bucket",),
            refused=tuple(refusals.found),
        )
