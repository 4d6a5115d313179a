"""``repeat`` runs a block until it changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.diagnostics import Diagnostic
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import block
from irgraph.language.expressions.values import format_count
from irgraph.language.running.report import Entry
from irgraph.language.running.settle import run_block
from irgraph.language.running.state import Frame
from irgraph.language.statement import Statement, check_block

MOST_TURNS = 1000


@dataclass(frozen=True)
class Repeat(Statement):
    """``repeat at most N { ... }``."""

    most: int
    body: tuple[Statement, ...]

    def __str__(self) -> str:
        return f"repeat at most {self.most} {block(self.body)}"

    def check(self, check: Checker) -> None:
        """Check the number of turns, and the block."""
        if self.most > MOST_TURNS:
            check.note(f"a block can be repeated at most {MOST_TURNS} times", self.place)
        check_block(self.body, check.inner())

    def run(self, frame: Frame) -> Entry | None:
        """Run the block again and again; the last turn, which changes nothing, is not reported.

        Where there is no such turn, a warning says so.
        """
        state = frame.state
        for turn in range(self.most):
            before, start = state.graph, len(state.entries)
            run_block(self.body, frame.inner())
            if state.graph is before:
                # all that a last turn says is that there is nothing left, or the same again
                del state.entries[start if turn else len(state.entries) :]
                return None
        message = (
            f"turn {self.most} of {self.most} still changed something: there may be more to do"
        )
        more = f"repeat at most {min(10 * self.most, MOST_TURNS)}"
        hint = more if self.most < MOST_TURNS else "repeat it once more"
        told = Diagnostic(message, self.place, hint=hint, severity="warning")
        done = format_count(self.most, "turn")
        return replace(frame.entry(self), matched=self.most, done=done, warnings=(told,))
