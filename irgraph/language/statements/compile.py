"""``compile`` replaces regions with calls of the code that ``torch.compile`` generates."""

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
        """Replace the ops that match with calls of compiled code."""
        from irgraph.verbs.compiled import compile_regions  # imports torch

        entry, ops = self.select_ops(frame)
        done = compile_regions(frame.state.graph, ops)
        frame.state.graph = done.graph
        refusals = Refusals(frame, self.place, True)
        refusals.add_each(done.excluded, "is not compiled")
        if not done.calls:
            message = "nothing changed: fewer than two ops in a row can be compiled"
            return replace(entry, done=message, refused=tuple(refusals.diagnostics))
        compiled_count = sum(1 for call in done.calls for _ in call.leaves())
        calls_text = format_count(len(done.calls), "call")
        fused_count, kernels = done.fused
        fused_text = f"{fused_count} of them in {format_count(kernels, 'generated kernel')}"
        return replace(
            entry,
            made=len(done.calls),
            moved=compiled_count,
            done=f"{format_count(compiled_count, 'op')} in {calls_text}, {fused_text}",
            legal=(LEGAL,),
            refused=tuple(refusals.diagnostics),
        )
