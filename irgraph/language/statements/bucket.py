"""``bucket`` combines sums over ranks in buckets of a maximum size."""

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
    ops_name: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        return join_words(
            "bucket", self.selection, "up to", self.limit, clause("as", self.ops_name)
        )

    def check(self, check: Checker) -> None:
        """Check the selection and the size."""
        check.selection(self.selection)
        check.kinds.require("bytes", self.limit, "a size", "as in 25MiB")
        check.name_ops(self.ops_name, self.place)

    def run(self, frame: Frame) -> Entry:
        """Combine the sums that match in buckets."""
        limit = frame.value(self.limit)
        if isinstance(limit, bool) or not isinstance(limit, (int, float)) or limit < 1:
            raise fail(f"a bucket holds a size such as 25MiB, not {spell(limit)}", self.limit.place)
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, True)
        sums = refusals.accepted_ops(selected.ops, check_bucket, "is not bucketed")
        graph = frame.state.graph
        filled_buckets = [
            candidate
            for candidate in buckets(graph, sums, int(limit))
            if len(candidate.members) > 1
        ]
        frame.state.graph, new_ops = bucket(graph, filled_buckets, caller=frame.caller or "bucket")
        frame.name_ops(self.ops_name, new_ops, self.selection)
        entry = frame.entry_of(self, selected, self.selection)
        sum_count = sum(len(filled.members) for filled in filled_buckets)
        if not new_ops:
            return replace(entry, refused=tuple(refusals.diagnostics))
        return replace(
            entry,
            replaced=sum_count,
            made=len(new_ops),
            done=f"{format_count(sum_count, 'sum')} in {format_count(len(new_ops), 'bucket')}, "
            f"{len(sums) - sum_count} alone",
            legal=("consumers of a sum, and waits for it, come after its whole bucket",),
            refused=tuple(refusals.diagnostics),
        )
