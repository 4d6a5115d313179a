"""``deprune`` restores the pruned rows of tables when they are loaded."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from irgraph.language.checking.checker import Checker
from irgraph.language.expressions.values import format_count
from irgraph.language.patterns.nodes import Selection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.verbs.deprune import check_deprune, deprune, refused_sharing

LEGAL = "a row of zeros adds nothing, as a pruned row did"
MIB = 2**20


@dataclass(frozen=True)
class Deprune(Statement):
    """``deprune selection``."""

    selection: Selection

    def __str__(self) -> str:
        """Return the statement's text."""
        return f"deprune {self.selection}"

    def check(self, check: Checker) -> None:
        """Check the selection."""
        check.selection(self.selection)

    def run(self, frame: Frame) -> Entry:
        """Expand the tables of the lookups that match."""
        graph = frame.state.graph
        selected = frame.select_whole(self.selection)
        refusals = Refusals(frame, self.place, self.selection.many)
        lookups = refusals.accepted_ops(
            selected.ops, partial(check_deprune, graph), "keeps its mapping"
        )
        while conflicts := refused_sharing(graph, lookups):
            for op, error in conflicts:
                with refusals.attempt(f"{call_of(op)} keeps its mapping"):
                    raise error
                lookups.remove(op)
        done = deprune(graph, lookups)
        frame.state.graph = done.graph
        size = f"parameters take {done.added_bytes / MIB:.3g} MiB more"
        sizes_text = f"{size}, mappings of {done.freed_bytes / MIB:.3g} MiB gone"
        if not lookups:
            sizes_text = "nothing changed"
        return replace(
            frame.entry_of(self, selected, self.selection),
            done=f"{format_count(len(lookups), 'lookup')}, {sizes_text}",
            replaced=len(lookups),
            made=len(done.ops),
            legal=(LEGAL,) if lookups else (),
            refused=tuple(refusals.diagnostics),
        )
