"""Rarer steps of a loop: recorded when they recur, after the usual step is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from msgspec.structs import replace

from irgraph.capture.common.result import Capture
from irgraph.capture.common.symbolic import other_sizes, with_symbolic_batch
from irgraph.capture.live.batches import BatchSizes
from irgraph.capture.live.typical_step import Calls, StepHistory
from irgraph.ir.rarer_steps import with_share

MAX_STEPS = 24
"""Maximum number of steps of a loop that continues until its rarer steps recur."""


class RarerSteps:
    """The captures of rarer steps, by kind and in order of the sizes at which they are needed.

    A kind is needed at the captured batch size, at another one, and at the first size again, to
    separate numbers of the batch from counters that change from step to step.
    """

    def __init__(self, history: StepHistory, sizes: BatchSizes) -> None:
        self.is_recording = False
        self._history, self._sizes = history, sizes
        self._captures: dict[Calls, list[Capture]] = defaultdict(list)
        self._steps = self._steps_at_size = 0

    def continue_loop(self) -> bool:
        """Return whether the loop continues for rarer steps; choose the size of the next step."""
        kinds = [kind.calls for kind in self._history.rarer_kinds()]
        counts = [len(self._captures[calls]) for calls in kinds]
        sizes = self._needed_sizes()
        missing = [count for count in counts if count < len(sizes)]
        self._steps += 1
        self.is_recording = bool(missing) and self._steps <= MAX_STEPS
        if self.is_recording:
            self._choose_size(sizes[min(missing)])
        return self.is_recording

    def _needed_sizes(self) -> Sequence[int]:
        batch = self._sizes.batch
        if self._sizes.is_fixed:
            return (batch,)
        return (batch, other_sizes(batch)[0], batch) if self._sizes.plan else (0,)

    def _choose_size(self, size: int) -> None:
        is_new = size != self._sizes.later_size
        self._steps_at_size = 0 if is_new else self._steps_at_size + 1
        self._sizes.later_size = size

    def is_needed(self) -> bool:
        """Return whether the step that ended last is a rarer one that is needed at its size."""
        calls = self._history.last
        sizes = self._needed_sizes()
        count = len(self._captures[calls])
        is_rarer = any(calls == kind.calls for kind in self._history.rarer_kinds())
        # a loader that is ahead has fetched the batches of the first steps at another size
        is_settled = self._steps_at_size >= self._sizes.ahead
        is_missing = count < len(sizes) and sizes[count] == self._sizes.later_size
        return is_rarer and is_settled and is_missing

    def add(self, captured: Capture) -> None:
        """Store the capture of the step that ended last."""
        self._captures[self._history.last].append(captured)

    @property
    def included(self) -> Collection[Calls]:
        """The kinds of which there is a capture."""
        return [calls for calls, captures in self._captures.items() if captures]

    def merged(self) -> list[Capture]:
        """Return a capture of each kind, with its share."""
        merged = []
        for kind in self._history.rarer_kinds():
            if self._captures[kind.calls]:
                captured = self._merge(self._captures[kind.calls])
                graph = with_share(captured.graph, kind.share)
                merged.append(replace(captured, graph=graph))
        return merged

    def _merge(self, captures: Sequence[Capture]) -> Capture:
        """Return a step whose sizes follow the batch, if it was captured at all needed sizes."""
        captured, *others = captures
        sizes = self._needed_sizes()
        if len(sizes) == 1 or len(captures) < len(sizes):
            return captured
        other, repeat = others
        return with_symbolic_batch(
            captured, sizes[0], {sizes[1]: other}.__getitem__, sizes[1:2], repeat.graph
        )
