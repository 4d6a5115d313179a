"""``compile`` lets regions run as what ``torch.compile`` makes of them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.language.expressions.values import format_count
from irgraph.language.optional_selection import OptionalSelection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals

LEGAL = "the ops stay as they are, in an order that keeps every dependence"


@dataclass(frozen=True)
class Compile(OptionalSelection):
    """``compile selection``, or ``compile`` for all but the optimizer's ops."""

    def run(self, frame: Frame) -> Entry:
        """Make calls of compiled code of what matches."""
        from irgraph.verbs.compiled import compile_regions  # imports torch

        entry, chosen = self.select_ops(frame)
        done = compile_regions(frame.state.graph, chosen)
        frame.state.graph = done.graph
        refusals = Refusals(frame, self.place, True)
        refusals.add_each(done.excluded, "is not compiled")
        if not done.calls:
            said = "nothing changed: fewer than two ops in a row can be compiled"
            return replace(entry, done=said, refused=tuple(refusals.found))
        inside = sum(1 for call in done.calls for _ in call.leaves())
        shared, kernels = done.fused
        fused = f"{shared} of them in {format_count(kernels, 'generated kernel')}"
        return replace(
            entry,
            made=len(done.calls),
            moved=inside,
            done=f"{format_count(inside, 'op')} in {format_count(len(done.calls), 'call')}, {fused}",
            legal=(LEGAL,),
            refused=tuple(refusals.found),
        )
