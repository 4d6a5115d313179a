"""The calls of each step of a loop: the typical steps, and the additional calls of others."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Container, Sequence
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
        is_periodic: whether such steps have equal distances.
    """

    calls: Calls
    share: Fraction
    is_periodic: bool


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

        The first unusual step is of the kind of all others if it has their distance: it may also
        create the state of an optimizer.
        """
        compared, usual = self._steps[1:], self._usual()
        steps_by_kind: dict[Calls, list[int]] = defaultdict(list)
        unusual = [step for step, calls in enumerate(compared) if calls != usual]
        for step in unusual:
            steps_by_kind[compared[step]].append(step)
        count = len(compared)
        if _period(unusual, count) and len({compared[step] for step in unusual[1:]}) == 1:
            steps_by_kind = {compared[unusual[-1]]: unusual}
        return [
            RarerKind(calls, Fraction(1, period), True)
            if (period := _period(steps, count))
            else RarerKind(calls, Fraction(len(steps), count), False)
            for calls, steps in steps_by_kind.items()
        ]

    def notes(self, included: Container[Calls] = ()) -> list[str]:
        """Return a sentence for each kind of unusual step; the model has the ``included`` kinds."""
        count = len(self._steps) - 1
        lines = []
        for calls, share, is_periodic in self.rarer_kinds():
            number = f"1 in {share.denominator}" if is_periodic else f"{share * count} of {count}"
            ending = INCLUDED if calls in included else OMITTED
            lines.append(self._note(f"{number} steps", calls, ending))
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


def _period(steps: Sequence[int], count: int) -> int:
    """Return the distance of steps among ``count``, 0 if they recur at no single distance."""
    distances = {after - before for before, after in pairwise(steps)}
    distance = distances.pop() if len(distances) == 1 else 0
    is_regular = distance > 1 and steps[0] <= distance and count <= steps[-1] + distance
    return distance if is_regular else 0


def _listed(counts: Counter[str]) -> str:
    """Return a number of calls with the most frequent operators."""
    names = [f"{n} {name.partition('::')[2]}" for name, n in counts.most_common(MAX_NAMES)]
    more = ", ..." if len(counts) > MAX_NAMES else ""
    total = counts.total()
    return f"{total} call{'s' * (total > 1)} ({', '.join(names)}{more})"
