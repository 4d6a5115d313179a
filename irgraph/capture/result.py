"""What a front end returns."""

from __future__ import annotations

from dataclasses import dataclass

from irgraph.ir.graph import Graph


@dataclass(frozen=True, slots=True)
class Capture:
    """A captured step and what to know about it.

    Attributes:
        graph: the step.
        notes: what was assumed, left out or repaired, one sentence each.
        differing: ops whose form on the accelerator differs from what was captured, one line each.
        links: pairs of origins, a backward op's and that of the forward op it belongs to.
        health: what was repaired in the Kineto trace that was read with it, as lines of text.
    """

    graph: Graph
    notes: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    health: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """Return 3 where a trace had to be repaired, 0 where it was clean."""
        return 3 if self.health else 0
