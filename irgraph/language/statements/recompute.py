"""``recompute`` runs forward ops once more for the backward pass, which then holds less memory."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import join_words
from irgraph.language.patterns.nodes import Module, Selection
from irgraph.language.patterns.select import SelectionResult, is_below
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.text.printer import quote
from irgraph.verbs.recompute import NothingToRecomputeError, Recomputing

MIB = 2**20

Segment = tuple[str, list[Op], Callable[[Op], bool]]
"""Ops that are recomputed together: a name, the ops, and the predicate of their backward leaves."""


@dataclass(frozen=True)
class Recompute(Statement):
    """``recompute selection``."""

    selection: Selection

    def __str__(self) -> str:
        """Return the statement's text."""
        return join_words("recompute", self.selection)

    def check(self, check: Checker) -> None:
        """Check the selection."""
        check.selection(self.selection)

    def run(self, frame: Frame) -> Entry:
        """Recompute each module, or each match, for the backward pass."""
        selected = frame.select_whole(self.selection)
        are_several = self.selection.many or isinstance(self.selection.pattern, Module)
        refusals = Refusals(frame, self.place, are_several)
        work = Recomputing(frame.state.graph)
        new_ops: list[Op] = []
        saved_bytes = 0
        failures: list[tuple[NothingToRecomputeError, str]] = []
        entry = frame.entry_of(self, selected, self.selection)
        for name, ops, is_backward in self._segments(frame, selected):
            with refusals.attempt(f"{name} is not recomputed"):
                try:
                    copies, nbytes = work.add(ops, is_backward)
                except NothingToRecomputeError as error:
                    failures.append((error, name))
                    continue
                new_ops += copies
                saved_bytes += nbytes
        frame.state.graph = work.commit()
        for failure, name in failures if not new_ops else ():
            refusals.add(failure, f"{name} is not recomputed")
        if not new_ops:
            return replace(entry, refused=tuple(refusals.diagnostics))
        return replace(
            entry,
            made=len(new_ops),
            done=(
                f"{len(new_ops)} ops run once more, "
                f"{saved_bytes / MIB:.3g} MiB are not kept for them"
            ),
            legal=("the same ops on the same values; only the backward pass reads the copies",),
            refused=tuple(refusals.diagnostics),
        )

    def _segments(self, frame: Frame, selected: SelectionResult) -> list[Segment]:
        """Return the segments in launch order: modules as deep as the path, or matches."""
        pattern = self.selection.pattern
        if not isinstance(pattern, Module):
            members = [selected.members(match) for match in selected.matches]
            return [(call_of(ops[0]), ops, _always) for ops in members]
        path = str(frame.names[pattern.path]) if pattern.is_name else pattern.path
        depth = path.count(".") + 1
        graph, round_starts = frame.state.graph, _round_starts(frame.state.graph)
        ops_by_segment: dict[tuple[str, int], list[Op]] = {}
        for op in selected.ops:
            name = ".".join(op.module.split(".")[:depth])
            position = graph.places[next(op.leaves())]
            ops_by_segment.setdefault((name, bisect_right(round_starts, position)), []).append(op)
        return [
            (f"module {quote(name)}", ops, _in_module(name))
            for (name, _), ops in ops_by_segment.items()
        ]


def _round_starts(graph: Graph) -> list[int]:
    """Return the positions of the first leaves of forward passes that follow a backward pass.

    If gradients are accumulated, a module runs in each of these rounds, with its own backward.
    """
    starts, was_backward = [], False
    for op in graph.top_level():
        is_backward = op.phase == "backward"
        if was_backward and not is_backward:
            starts.append(graph.places[next(op.leaves())])
        was_backward = is_backward
    return starts


def _always(_: Op) -> bool:
    return True


def _in_module(module: str) -> Callable[[Op], bool]:
    return lambda leaf: is_below(leaf.module, module)
