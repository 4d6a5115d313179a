"""The calls of each step of a loop: the typical steps, and the additional calls of others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

OMITTED = "not part of the model"
"""End of a note on unusual steps."""

MAX_NAMES = 3
"""Maximum number of operators that a note names."""

Calls = tuple[str, ...]
"""Names of a step's calls on the device, in order."""


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

    def notes(self) -> list[str]:
        """Return a sentence for each kind of unusual step."""
        compared = self._steps[1:]
        unusual = [i for i, calls in enumerate(compared) if calls != self._usual()]
        if not unusual:
            return []
        gaps = {after - before for before, after in pairwise(unusual)}
        if len(gaps) == 1:
            return [self._note(f"1 in {gaps.pop()} steps", compared[unusual[-1]])]
        kinds = Counter(compared[i] for i in unusual)
        count = len(compared)
        return [self._note(f"{n} of {count} steps", calls) for calls, n in kinds.items()]

    def _usual(self) -> Calls:
        """Return the calls of most steps, of the first kind if kinds are equally frequent."""
        return Counter(self._steps[1:]).most_common(1)[0][0]

    def _note(self, share: str, calls: Sequence[str]) -> str:
        ending = "s" if share.startswith("1 ") else ""
        more, fewer = Counter(calls), Counter(self._usual())
        added, removed = more - fewer, fewer - more
        if not added and not removed:
            return f"{share} make{ending} calls in another order: {OMITTED}"
        texts = [f"also run{ending} {_listed(added)}"] if added else []
        texts += [f"leave{ending} out {_listed(removed)}"] if removed else []
        return f"{share} {' and '.join(texts)}: {OMITTED}"


def _listed(counts: Counter[str]) -> str:
    """Return a number of calls with the most frequent operators."""
    names = [f"{n} {name.partition('::')[2]}" for name, n in counts.most_common(MAX_NAMES)]
    more = ", ..." if len(counts) > MAX_NAMES else ""
    total = counts.total()
    return f"{total} call{'s' * (total > 1)} ({', '.join(names)}{more})"
