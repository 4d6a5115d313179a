"""The calls of each step of a loop: the typical steps, and the additional calls of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from irgraph.ir.rarer_steps import INCLUDED, OMITTED

MAX_NAMES = 3
"""Maximum number of operators that a note names."""

Calls = tuple[str, ...]
"""Names of a step's calls on the device, in order."""


class RarerKind(NamedTuple):
    """A kind of steps that is rarer than the usual one.

    Attributes:
        calls: the calls of such a step.
        share: its share of all steps.
    """

    calls: Calls
    share: Fraction


class StepHistory:
    """The calls of the steps of a loop, in order; the first step warms up and is not compared."""

    def __init__(self) -> None:
        self.current: list[str] = []
        self._steps: list[Calls] = []

    def end_step(self) -> None:
        """End a step, whose calls are in ``current``."""
        self._steps.append(tuple(self.current))
        self.current.clear()

    def is_typical(self, step: int) -> bool:
        """Return whether a step makes the same calls as most steps."""
        return not self._steps[1:] or self._steps[step] == self._usual()

    def rarer_kinds(self) -> list[RarerKind]:
        """Return the kinds of steps that are rarer than the usual one, with their shares.

        Unusual steps at equal distances are one kind, represented by the last of them:
        the first may also create the state of an optimizer.
        """
        compared = self._steps[1:]
        unusual = [i for i, calls in enumerate(compared) if calls != self._usual()]
        gaps = {after - before for before, after in pairwise(unusual)}
        if len(gaps) == 1 and gaps != {1}:
            return [RarerKind(compared[unusual[-1]], Fraction(1, gaps.pop()))]
        kinds = Counter(compared[i] for i in unusual)
        return [RarerKind(calls, Fraction(n, len(compared))) for calls, n in kinds.items()]

    def notes(self, included: Container[Calls] = ()) -> list[str]:
        """Return a sentence for each kind of unusual step; the model has the ``included`` kinds."""
        count = len(self._steps) - 1
        lines = []
        for kind in self.rarer_kinds():
            is_periodic = kind.share.numerator == 1 and len(self.rarer_kinds()) == 1
            period = kind.share.denominator
            share = f"1 in {period}" if is_periodic else f"{int(kind.share * count)} of {count}"
            ending = INCLUDED if kind.calls in included else OMITTED
            lines.append(self._note(f"{share} steps", kind.calls, ending))
        return lines

    @property
    def last(self) -> Calls:
        """The calls of the last step that ended."""
        return self._steps[-1]

    def _usual(self) -> Calls:
        """Return the calls of most steps, of the first kind if kinds are equally frequent."""
        return Counter(self._steps[1:]).most_common(1)[0][0]

    def _note(self, share: str, calls: Calls, ending_text: str) -> str:
        ending = "s" if share.startswith("1 ") else ""
        more, fewer = Counter(calls), Counter(self._usual())
        added, removed = more - fewer, fewer - more
        if not added and not removed:
            return f"{share} make{ending} calls in another order: {ending_text}"
        texts = [f"also run{ending} {_listed(added)}"] if added else []
        texts += [f"leave{ending} out {_listed(removed)}"] if removed else []
        return f"{share} {' and '.join(texts)}: {ending_text}"


def _listed(counts: Counter[str]) -> str:
    """Return a number of calls with the most frequent operators."""
    names = [f"{n} {name.partition('::')[2]}" for name, n in counts.most_common(MAX_NAMES)]
    more = ", ..." if len(counts) > MAX_NAMES else ""
    total = counts.total()
    return f"{total} call{'s' * (total > 1)} ({', '.join(names)}{more})"
