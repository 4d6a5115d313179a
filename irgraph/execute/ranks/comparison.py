"""Runs the models of several ranks in one process, and holds what they leave against one step.

What a rank starts from is its part of what the whole step starts from, and what the ranks leave is
put together again, by what each model says of its tensors (``irgraph.plans.layout``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from irgraph.diagnostics import IrgraphError, fail
from irgraph.execute.comparison import Trial, compare, has_nan
from irgraph.execute.coverage import Observer
from irgraph.execute.machine import Machine, precision, without_autograd
from irgraph.execute.narrow.reference import is_quantized, run_reference
from irgraph.execute.random_values import TAME, Drawer
from irgraph.execute.ranges import BagStarts, integer_rules
from irgraph.execute.ranks.pipeline_check import compare_pipeline
from irgraph.execute.ranks.runner import run_together
from irgraph.execute.records import Comparison, Result
from irgraph.execute.sizes import check_memory, resized
from irgraph.execute.torch_values import Torch, view_of
from irgraph.execute.trials import MANNERS, SIZES, merged
from irgraph.execute.widen import short_types, widened
from irgraph.ir.graph import Graph
from irgraph.ir.live_out import live_out
from irgraph.ir.narrow.prepared import prepared_of, sources_of
from irgraph.ir.ranks import RANK, groups_of, layout_of, peer_of
from irgraph.plans.layout import BATCH, SAMPLES, TensorLayout, layouts_of

Values = Sequence[Torch]


class RankComparison(Trial, frozen=True, dict=True):
    """A whole step and the models of all its ranks, at the sizes at which they run."""

    models: tuple[Graph, ...] = ()
    given: tuple[Mapping[str, Torch], ...] = ()

    @cached_property
    def second(self) -> Result:
        """What the ranks left, put together."""
        results = run_together(self.models, self.given, self.seed, self.manner)
        names = [name for name in live_out(self.before) if name in self.first.values]
        put = {name: _gathered(name, self.models, results, self.first[name]) for name in names}
        return Result(
            {name: value for name, value in put.items() if value is not None},
            self.first.initial,
            results[0].read,
        )

    def rounding_scatter(
        self, names: Sequence[tuple[str, str]], norm: Callable[[Torch], float]
    ) -> list[float]:
        """Refuse: what roundings to short types scatter is known of one graph alone."""
        short = sorted(set().union(*map(short_types, (self.before, *self.models))))
        message = f"how far roundings to {' and '.join(short)} scatter over ranks is not known"
        raise fail(message, hint="without --narrow all is computed in f64", exit_code=2)


def members(graph: Graph, layout: TensorLayout) -> tuple[int, ...]:
    """Return the ranks that have the parts of a tensor, as one of them says."""
    return groups_of(graph).get(layout.over) or tuple(range(layout_of(graph).ranks))


def _part(value: Torch, layouts: Sequence[TensorLayout], graph: Graph, rank: int) -> Torch:
    """Return what a rank starts from of a tensor."""
    for layout in layouts:
        ranks = members(graph, layout)
        if layout.kind == "split":
            value = value.chunk(len(ranks), layout.rows[0])[ranks.index(rank)]
        elif layout.kind == "piece":
            value = value[slice(*layout.rows), slice(*layout.columns)]
    return value


def _gathered(name: str, models: Sequence[Graph], results: Sequence[Result], whole: Torch) -> Torch:
    """Return what ranks left of a tensor, put together; ``None`` where they have none."""
    said = [layouts_of(graph).get(name, ()) for graph in models]
    held = [result.values.get(name) for result in results]
    first: Sequence[TensorLayout] = next(filter(None, said), ())
    if any(layout.kind == "piece" for layout in first):
        return _pieced([next(iter(layouts), None) for layouts in said], held, whole)
    if first and any(value is None for value in held):
        return None
    for layout in first:
        held = [
            _joined(layout, [held[member] for member in members(graph, layout)]) for graph in models
        ]
    return _farthest([value for value in held if value is not None], whole)


def _joined(layout: TensorLayout, held: Values) -> Torch:
    """Return what the ranks of one group left, put together."""
    if layout.kind == "split":
        return torch.cat(list(held), layout.rows[0])
    total = torch.stack(list(held)).sum(0)
    return total / len(held) if layout.kind == "mean" else total


def _farthest(held: Values, whole: Torch) -> Torch:
    """Return the copy of a tensor that differs most from the whole step's."""
    if not held or any(value.shape != whole.shape for value in held) or not whole.numel():
        return held[0] if held else None
    far = [float((value.double() - whole.double()).abs().amax()) for value in held]
    return max(zip(far, held, strict=True), key=lambda pair: (pair[0] != pair[0], pair[0]))[1]


def _pieced(said: Sequence[TensorLayout | None], held: Sequence[Any], whole: Torch) -> Torch:
    made = torch.full_like(whole, torch.nan)
    for layout, value in zip(said, held, strict=True):
        if layout is not None and value is None:
            return None  # a rewrite of this rank no longer makes it
        if layout is not None:
            made[slice(*layout.rows), slice(*layout.columns)] = value
    return made


def compare_ranks(
    before: Graph,
    models: Sequence[Graph],
    *,
    seed: int,
    dims: Mapping[str, int],
    limit: int,
    widen: bool,
    draws: int,
) -> Comparison:
    """Run a whole step and the models of all its ranks on the same values, several times.

    ``irgraph.execute.compare_ranks`` says what is taken and raised.
    """
    if any(peer_of(op) for graph in models for op in graph.leaves()):
        check_ranks(models)
        return compare_pipeline(
            before, models, seed=seed, dims=dims, limit=limit, widen=widen, draws=draws
        )
    batch = _check(before, models)
    observer = Observer(before)
    types = " and ".join(sorted(set().union(*map(short_types, models)) if widen else ()))
    short = f"; {types} computed as f64: what casts lose is not judged" if types else ""
    found: list[Comparison] = []
    notes: list[str] = []
    for number in range(draws):
        drawn = _Draw(before, models, batch, seed + 1_000_003 * number, number, widen)
        drawn.cut(dims, limit)
        try:
            trial = drawn.trial(observer)
        except IrgraphError as error:
            if not found:
                raise
            notes.append(f"draw {number + 1} left out: {error.diagnostics[0].message}")
            continue
        found.append(compare(trial))
        notes.append(drawn.sizes() + short)
        if not found[-1].same:
            break
    return merged(found, observer.coverage(), [*notes, f"{len(found)} draws from seed {seed}"])


def _check(before: Graph, models: Sequence[Graph]) -> str:
    """Return the dimension that ranks share, ``""`` for none; refuse what are not their models."""
    check_ranks(models)
    batch = str(models[0].settings.get(BATCH, ""))
    if batch and batch not in before.dims:
        raise fail(f"the whole step has no dimension {batch!r}", exit_code=2)
    return batch


def check_ranks(models: Sequence[Graph]) -> None:
    """Refuse what are not the models of all ranks, in order."""
    ranks = [graph.settings.get(RANK) for graph in models]
    if ranks != list(range(len(models))) or any(
        layout_of(graph).ranks != len(models) for graph in models
    ):
        said = ", ".join("none" if rank is None else str(rank) for rank in ranks)
        raise fail(
            f"models of all ranks are needed, in order: these are {said}",
            hint="shard writes them: one model for each rank of a plan",
            exit_code=2,
        )


class _Draw:
    """One draw of values: the whole step and its ranks at small sizes."""

    def __init__(
        self, before: Graph, models: Sequence[Graph], dim: str, seed: int, number: int, widen: bool
    ) -> None:
        self.before, self.models, self.dim = before, list(models), dim
        self.narrow = next((graph for graph in models if is_quantized(graph)), None)
        self.seed, self.number, self.widen = seed, number, widen and self.narrow is None
        self.batch = 0
        self.shares = len(groups_of(self.models[0]).get(SAMPLES, self.models))
        self.shifts: dict[str, Torch] = {}

    def cut(self, dims: Mapping[str, int], limit: int) -> None:
        """Let the graphs have small sizes."""
        most = SIZES[self.number % len(SIZES)]
        small = {name: min(most, size) for name, size in self.models[0].dims.items()} | dict(dims)
        whole = dict(small)
        if self.dim:
            self.batch = small[self.dim]
            whole[self.dim] = self.batch * self.shares
        self.before = resized(self.before, whole)
        self.models = [resized(graph, small) for graph in self.models]
        self.said = self.before
        if self.widen:
            self.before = widened(self.before, "f64")
            self.models = [widened(graph, "f64") for graph in self.models]
        check_memory([self.before, *self.models], limit)

    def sizes(self) -> str:
        """Return what a note says of the samples that each rank has."""
        if not self.dim:
            return f"all samples on each of {len(self.models)} ranks"
        alike = len(self.models) // self.shares
        among = f"{self.shares} groups of {alike}" if alike > 1 else f"{self.shares}"
        return f"{self.dim} = {self.batch} on each of {among} ranks"

    def trial(self, observer: Observer) -> RankComparison:
        """Run the whole step; return it with what its ranks start from."""
        manner = MANNERS[self.number % len(MANNERS)] if self.widen else MANNERS[0]
        first = self._run(observer, manner)
        if has_nan(self.before, first):
            manner = TAME
            first = self._run(observer, manner)
        observer.count_elements(self.before, first)
        plain, after = first, self.models[0]
        given = tuple(self._started(plain, rank) for rank in range(len(self.models)))
        if self.narrow is not None:
            first = run_reference(self.before, self.models, plain, self.seed, 1)
            after = next(graph for graph in self.models if is_quantized(graph))
        return RankComparison(
            self.before,
            after,
            first,
            self.seed,
            1,
            manner,
            self.said,
            plain.initial,
            tuple(self.models),
            given,
        )

    def _run(self, observer: Observer, manner: str) -> Result:
        with without_autograd(precision(self.before)):
            drawer = Drawer(self.before, self.seed, manner)
            machine = Machine(self.before, {}, drawer, watch=observer.watcher(self.before))
            if self.dim:
                self._start_bags(machine, drawer)
            machine.run()
        return Result(machine.values, machine.initial, machine.read)

    def _start_bags(self, machine: Machine, drawer: Drawer) -> None:
        """Let every rank's bags have as many indices as its model says."""
        self.shifts = {}
        declared = {d.tensor.name: d.tensor for d in self.before.tensors}
        for buffer, rules in integer_rules(self.before).items():
            held = [name for name, tensor in declared.items() if tensor.buffer == buffer]
            starts = [rule for rule in rules if isinstance(rule, BagStarts)]
            if not held or not starts:
                continue
            storage = machine.values[held[0]].untyped_storage()
            moved = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
            for rule in starts:
                self._start(rule, storage, moved, drawer)
            for name in held:
                self.shifts[name] = view_of(moved, declared[name])
                machine.initial[name] = machine.values[name].clone()

    def _start(self, rule: BagStarts, storage: Torch, moved: Torch, drawer: Drawer) -> None:
        ranks = self.shares
        if rule.tensor.rank != 1 or rule.total % ranks or rule.closed:
            raise fail(f"%{rule.tensor.name}: where a rank's bags start among all is not known")
        each, source = rule.total // ranks, drawer.generator("starts", rule.tensor.offset)
        value, shift = view_of(storage, rule.tensor), view_of(moved, rule.tensor)
        for rank, (mine, before) in enumerate(
            zip(value.chunk(ranks), shift.chunk(ranks), strict=True)
        ):
            drawn, _ = torch.randint(each + 1, mine.shape, generator=source).sort()
            drawn[:1] = 0
            before.fill_(rank * each)
            mine.copy_(drawn + rank * each)

    def _started(self, first: Result, rank: int) -> dict[str, Torch]:
        model = self.models[rank]
        layouts = layouts_of(model)
        found: dict[str, Torch] = {}
        packed = {one.name for one in prepared_of(model)}
        plain = [d.tensor.name for d in model.tensors if d.tensor.name not in packed]
        for name in (*plain, *sources_of(model)):
            if name not in first.initial:
                raise fail(f"rank {rank} starts from %{name}, which the whole step lacks")
            value = first.initial[name]
            value = value - self.shifts[name] if name in self.shifts else value
            found[name] = _part(value, layouts.get(name, ()), model, rank)
        return found
