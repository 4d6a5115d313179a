"""``capture`` launches consecutive ops together, as CUDA graphs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.language.expressions.values import format_count
from irgraph.language.optional_selection import OptionalSelection
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals
from irgraph.verbs.capture import MIN_LAUNCHES, capture


@dataclass(frozen=True)
class Capture(OptionalSelection):
    """``capture selection``, or ``capture`` for all of the step."""

    def run(self, frame: Frame) -> Entry:
        """Capture the ops that match in CUDA graphs."""
        entry, ops = self.select_ops(frame)
        done = capture(frame.state.graph, ops)
        frame.state.graph = done.graph
        refusals = Refusals(frame, self.place, True)
        refusals.add_each(done.excluded, "stays outside the graphs")
        if not done.launches:
            message = f"nothing changed: fewer than {MIN_LAUNCHES} ops in a row launch something"
            return replace(entry, done=message, refused=tuple(refusals.diagnostics))
        captured_count = sum(1 for launch in done.launches for _ in launch.leaves())
        graphs_text = format_count(len(done.launches), "graph")
        copies_text = f", {done.copies} copied in" if done.copies else ""
        return replace(
            entry,
            made=len(done.launches) + done.copies,
            moved=captured_count,
            done=f"{format_count(captured_count, 'op')} in {graphs_text}{copies_text}",
            legal=("the host takes no part in them, and their inputs stay at the same addresses",),
            refused=tuple(refusals.diagnostics),
        )
