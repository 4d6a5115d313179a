"""Compares two graphs on several draws and sizes, up to the first on which they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError, fail
from irgraph.execute.callables import span_of
from irgraph.execute.comparison import Trial, check_starts, compare, nan_share
from irgraph.execute.coverage import Observer
from irgraph.execute.machine import one_thread
from irgraph.execute.narrow.reference import format_effect, is_quantized, run_reference
from irgraph.execute.random_values import (
    CRITICAL,
    INFINITE,
    LARGE,
    SCALED,
    SIGNED,
    SMALL,
    TAME,
    TIED,
    UNDEFINED,
    WIDE,
)
from irgraph.execute.ranks.replicas import (
    average_gradients,
    needs_ranks,
    run_replicas,
    world_size,
)
from irgraph.execute.records import Compared, Comparison, Coverage, Result
from irgraph.execute.sizes import MAX_SMALL_SIZE, memory, small_sizes
from irgraph.execute.type_check import type_findings
from irgraph.execute.widen import short_types, widen_together
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ops.live_out import live_out

MANNERS = (SIGNED, WIDE, UNDEFINED, CRITICAL, TIED, LARGE, SMALL, INFINITE)
SIZES = (MAX_SMALL_SIZE, 5, 3, 5, 4, 3, 4, 3)
"""Sizes of dimensions without a specified size; draws use them, and ``MANNERS``, in turn."""

MAX_SEARCH_DRAWS = 8
"""Maximum number of further draws that search for sides of branches that none has reached."""

MAX_NAN_SHARE = 0.5
"""Largest share of nan among the live-out elements of a draw that shows more than nan."""

WIDTHS = ("f64", "f32")
"""Types that replace shorter floating types; the first for which torch has all kernels applies."""


class Draw(Struct, frozen=True):
    """One draw of values.

    Attributes:
        number: from 0.
        seed: of the values and of random ops.
        size: of dimensions without a specified size.
        manner: the way in which values are drawn.
    """

    number: int
    seed: int
    size: int
    manner: str

    def run_first(self, graph: Graph, run: Callable[[str], Result]) -> tuple[Result, str]:
        """Return the result of the first graph and the manner: tame if this one leads to nan."""
        first = run(self.manner)
        if self.manner in (UNDEFINED, INFINITE) or not _shows_nan(graph, first, self.manner):
            return first, self.manner
        return run(TAME), TAME


StartTrial = Callable[[Draw], tuple[Trial, Sequence[str]]]
"""Runs the first of two steps on a draw; returns the trial, and notes on it."""


class Draws(Struct, frozen=True):
    """A number of draws from a seed, in all manners or, unless ``wide``, of both signs only."""

    count: int
    seed: int
    wide: bool

    def draw(self, number: int) -> Draw:
        """Return a draw by its number; those beyond the count search for sides of branches."""
        manner = MANNERS[number % len(MANNERS)] if self.wide else SIGNED
        manner = SCALED if number >= self.count else manner
        seed = self.seed + 1_000_003 * number
        return Draw(number, seed, SIZES[number % len(SIZES)], manner)

    def compare(
        self, start: StartTrial, observer: Observer, second: Observer | None = None
    ) -> Comparison:
        """Compare two steps on each draw, up to the first on which they differ.

        ``observer`` observes the runs of the first graph, ``second`` the runs of the second. A draw
        is left out if the first graph cannot run on it, unless it is the first draw.
        """
        observers = [observer, *((second,) if second is not None else ())]
        comparisons: list[Comparison] = []
        notes: list[str] = []
        for number in range(self.count + MAX_SEARCH_DRAWS):
            searching = number >= self.count
            if searching and (self.count < len(MANNERS) or not _unexercised(observers)):
                break
            try:
                trial, remarks = start(self.draw(number))
            except IrgraphError as error:
                if number == 0:
                    raise
                if not searching:
                    notes.append(f"draw {number + 1} left out: {error.diagnostics[0].message}")
                continue
            if not observer.accept_sides() and searching and not _unexercised(observers[1:]):
                continue
            if second is not None:
                trial = replace(trial, inspect=second.inspector(trial.after))
            comparisons.append(compare(trial))
            notes += remarks
            for other in observers[1:]:
                other.accept_sides()
            if not comparisons[-1].same:
                break
        notes.append(self._text(comparisons))
        merged = _merge(comparisons, observer.coverage(), list(_sizes_first(notes)))
        return replace(merged, unexercised=_unexercised(observers))

    def _text(self, comparisons: Sequence[Comparison]) -> str:
        count = len(comparisons)
        text = f"{count} draw{'s' * (count > 1)} from seed {self.seed}"
        ended_early = not comparisons[-1].same and count < self.count
        return text + ": the first that differs is the last" * ended_early


def _unexercised(observers: Sequence[Observer]) -> list[str]:
    return [side for observer in observers for side in observer.unexercised]


def _shows_nan(graph: Graph, result: Result, manner: str) -> bool:
    """Return whether nan hides too many results: any nan, in draws of usual values."""
    share = nan_share(graph, result)
    return share > (0.0 if manner in (SIGNED, WIDE) else MAX_NAN_SHARE)


def _sizes_first(notes: Sequence[str]) -> Iterator[str]:
    """Yield each note once, and the notes on sizes as one: ``at B = 8; B = 5; B = 3``."""
    sizes = [note.removeprefix("at ") for note in notes if note.startswith("at ")]
    if sizes:
        yield "at " + "; ".join(dict.fromkeys(sizes))
    yield from dict.fromkeys(note for note in notes if not note.startswith("at "))


def _merge(
    comparisons: Sequence[Comparison], coverage: Coverage, notes: Sequence[str]
) -> Comparison:
    """Return the comparison of several draws, with the worst figures of each tensor."""
    worst: dict[tuple[str, str], Compared] = {}
    for compared_tensor in (tensor for comparison in comparisons for tensor in comparison.compared):
        previous = worst.setdefault((compared_tensor.kind, compared_tensor.name), compared_tensor)
        selected = max(previous, compared_tensor, key=_badness)
        changed = previous.changed or compared_tensor.changed
        worst[compared_tensor.kind, compared_tensor.name] = replace(selected, changed=changed)
    return replace(
        comparisons[-1], compared=list(worst.values()), notes=tuple(notes), coverage=coverage
    )


def _badness(tensor: Compared) -> tuple[bool, float]:
    return not tensor.same, tensor.absolute / tensor.allowed if tensor.allowed else tensor.absolute


class Trials(Struct, frozen=True):
    """Graphs and settings of a comparison; see ``irgraph.execute.compare``."""

    before: Graph
    after: Graph
    seed: int
    dims: Mapping[str, int]
    rows: int
    limit: int
    widen: bool

    @property
    def quantized(self) -> bool:
        """Whether the second graph has parameters in narrow formats, so that it is not widened."""
        return is_quantized(self.after)

    def run_draws(self, draws: int) -> Comparison:
        """Compare both graphs on several draws, up to the first on which they differ."""
        with one_thread():
            return self._run_draws(draws)

    def _run_draws(self, draws: int) -> Comparison:
        for graph in (self.before, self.after):
            _check_types(graph)
        wide = self.widen and not self.quantized
        observer, second = Observer(self.before), Observer(self.after, self.before)
        widths: list[str] = list(WIDTHS) if wide else [""]

        def start(draw: Draw) -> tuple[Trial, list[str]]:
            trial, remarks, widths[:] = self._start_trial(draw, tuple(widths), observer)
            return trial, remarks

        result = Draws(draws, self.seed, wide).compare(start, observer, second)
        return replace(result, random=_unequal_random_ops(self.before, self.after))

    def _start_trial(
        self, draw: Draw, widths: Sequence[str], observer: Observer
    ) -> tuple[Trial, list[str], Sequence[str]]:
        """Run the first graph; return the trial, notes on it, and the width of floating types."""
        small, notes = small_sizes(
            (self.before, self.after), self.dims, self.rows, self.limit, draw.size
        )
        check_starts(*small)
        short = sorted(set().union(*map(short_types, small)))
        for width in widths:
            before, after = widen_together(small, width) if width else small
            if width != widths[-1] and max(memory(before), memory(after)) > self.limit:
                continue
            inserts = not needs_ranks(before) and needs_ranks(after)
            ranks = 1 if self.quantized else _world(before, after, draw.number)
            uses_means = (
                inserts and draw.number % 2 == 1 and "gradient" in live_out(before).values()
            )
            equal = ranks > 1 and needs_ranks(before) != needs_ranks(after) and not uses_means
            try:
                first, manner = _run_first(before, draw, (ranks, equal), observer)
            except IrgraphError:
                if width == widths[-1]:
                    raise
                continue
            if width and short:
                remark = f"{' and '.join(short)} computed as {width}: what casts lose is not judged"
                notes.append(remark)
            start, seed = first.initial, draw.seed
            if self.quantized:
                unrounded, first = first, run_reference(before, (after,), first, seed, ranks)
                notes.append(format_effect(before, unrounded, first))
            if ranks > 1:
                notes.append(f"on ranks with {'equal' if equal else 'different'} inputs")
            first = average_gradients(before, first) if uses_means else first
            trial = Trial(
                before,
                after,
                first,
                seed,
                ranks,
                manner,
                small[0],
                start,
                equal=equal,
                uses_means=uses_means,
            )
            return trial, notes, (width,)
        raise AssertionError("no width is tried")


def _run_first(
    before: Graph, draw: Draw, world: tuple[int, bool], observer: Observer
) -> tuple[Result, str]:
    """Run the first graph; return its result and the manner of its values."""

    def run_first(manner: str) -> Result:
        watches = observer.watcher(before), manner, observer.inspector(before)
        return run_replicas(before, {}, draw.seed, world[0], *watches, equal=world[1])

    first, manner = draw.run_first(before, run_first)
    observer.count_elements(before, first)
    return first, manner


def _world(before: Graph, after: Graph, number: int) -> int:
    """Return the number of ranks on which both graphs run: one if neither has collectives."""
    sizes = [world_size(graph, number) for graph in (before, after) if needs_ranks(graph)]
    return max(sizes, default=1)


def _unequal_random_ops(before: Graph, after: Graph) -> Sequence[str]:
    """Return the names of random ops that occur more often in one graph."""
    first, second = (Counter(op.name for op in _random_ops(graph)) for graph in (before, after))
    return sorted((first - second) + (second - first))


def _random_ops(graph: Graph) -> Iterator[Op]:
    return (op for op in graph.leaves() if any(schema.random for schema in schemas_of(op.name)))


def _check_types(graph: Graph) -> None:
    """Raise an error for a graph that torch would reject at its original sizes."""
    for finding in type_findings(graph):
        assert finding.op is not None
        raise fail(f"{finding.op.name}: {finding.message}", span_of(finding.op, graph))
