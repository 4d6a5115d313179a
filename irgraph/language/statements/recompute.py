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
"""What is run once more together: its name, its ops, and which leaves are its backward."""


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
        """Let each module, or each match, run once more."""
        selected = frame.select_whole(self.selection)
        several = self.selection.many or isinstance(self.selection.pattern, Module)
        refusals = Refusals(frame, self.place, several)
        work = Recomputing(frame.state.graph)
        made: list[Op] = []
        held = 0
        nothing: list[tuple[NothingToRecomputeError, str]] = []
        entry = frame.entry_of(self, selected, self.selection)
        for name, ops, own in self._segments(frame, selected):
            with refusals.attempt(f"{name} is not recomputed"):
                try:
                    copies, nbytes = work.add(ops, own)
                except NothingToRecomputeError as error:
                    nothing.append((error, name))
                    continue
                made += copies
                held += nbytes
        frame.state.graph = work.commit()
        for why, name in nothing if not made else ():
            refusals.add(why, f"{name} is not recomputed")
        if not made:
            return replace(entry, refused=tuple(refusals.found))
        return replace(
            entry,
            made=len(made),
            done=f"{len(made)} ops run once more, {held / MIB:.3g} MiB are not kept for them",
            legal=("the same ops on the same values; only the backward pass reads the copies",),
            refused=tuple(refusals.found),
        )

    def _segments(self, frame: Frame, selected: SelectionResult) -> list[Segment]:
        """Return the segments in launch order: modules as far as the path says, or matches."""
        pattern = self.selection.pattern
        if not isinstance(pattern, Module):
            members = [selected.members(match) for match in selected.matches]
            return [(call_of(ops[0]), ops, _anything) for ops in members]
        path = str(frame.names[pattern.path]) if pattern.is_name else pattern.path
        depth = path.count(".") + 1
        graph, rounds = frame.state.graph, _rounds(frame.state.graph)
        found: dict[tuple[str, int], list[Op]] = {}
        for op in selected.ops:
            name = ".".join(op.module.split(".")[:depth])
            place = graph.places[id(next(op.leaves()))]
            found.setdefault((name, bisect_right(rounds, place)), []).append(op)
        return [(f"module {quote(name)}", ops, _of(name)) for (name, _), ops in found.items()]


def _rounds(graph: Graph) -> list[int]:
    """Return the places of leaves at which forward passes begin that follow a backward pass.

    Where gradients are accumulated, a module runs once more in each; each has its own backward.
    """
    found, late = [], False
    for op in graph.top_level():
        backward = op.phase == "backward"
        if late and not backward:
            found.append(graph.places[id(next(op.leaves()))])
        late = backward
    return found


def _anything(_: Op) -> bool:
    return True


def _of(module: str) -> Callable[[Op], bool]:
    return lambda leaf: is_below(leaf.module, module)
