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

MAX_TURNS = 1000


@dataclass(frozen=True)
class Repeat(Statement):
    """``repeat at most N { ... }``."""

    max_turns: int
    body: tuple[Statement, ...]

    def __str__(self) -> str:
        return f"repeat at most {self.max_turns} {block(self.body)}"

    def check(self, check: Checker) -> None:
        """Check the number of turns, and the block."""
        if self.max_turns > MAX_TURNS:
            check.note(f"a block can be repeated at most {MAX_TURNS} times", self.place)
        check_block(self.body, check.inner())

    def run(self, frame: Frame) -> Entry | None:
        """Run the block until a turn changes nothing; this last turn is not reported.

        If there is no such turn, the entry has a warning.
        """
        state = frame.state
        for turn in range(self.max_turns):
            before, start = state.graph, len(state.entries)
            run_block(self.body, frame.inner())
            if state.graph is before:
                # the entries of a last turn only repeat that nothing is left
                del state.entries[start if turn else len(state.entries) :]
                return None
        turn_text = f"turn {self.max_turns} of {self.max_turns}"
        message = f"{turn_text} still changed something: there may be more to do"
        more = f"repeat at most {min(10 * self.max_turns, MAX_TURNS)}"
        hint = more if self.max_turns < MAX_TURNS else "repeat it once more"
        warning = Diagnostic(message, self.place, hint=hint, severity="warning")
        done = format_count(self.max_turns, "turn")
        return replace(frame.entry(self), matched=self.max_turns, done=done, warnings=(warning,))
