"""Runs the models of several ranks in one process, and compares their results with one step.

The initial values of a rank are its part of the whole step's, and the results of the ranks are
combined, according to the layouts of tensors in each model (``irgraph.plans.layout``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from typing import Any

import torch

from irgraph.diagnostics import fail
from irgraph.execute.coverage import Observer
from irgraph.execute.integer_constraints import BagStarts, integer_rules
from irgraph.execute.machine import Machine, precision, without_autograd
from irgraph.execute.narrow.reference import is_quantized, run_reference
from irgraph.execute.random_values import Drawer
from irgraph.execute.ranks.pipeline_check import compare_pipeline
from irgraph.execute.ranks.rank_trial import RankTrial
from irgraph.execute.records import Comparison, Result
from irgraph.execute.rounding.conditioning import Perturbation
from irgraph.execute.sizes import check_memory, resize
from irgraph.execute.torch_values import Torch, view_of
from irgraph.execute.trials import Draw, Draws
from irgraph.execute.widen import short_types, widen_together
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.prepared import prepared_of, sources_of
from irgraph.ir.ranks import RANK, groups_of, layout_of, peer_of
from irgraph.ops.live_out import live_out
from irgraph.plans.layout import BATCH, REPLICAS, SAMPLES, TensorLayout, layouts_of

Values = Sequence[Torch]


class RankComparison(RankTrial, frozen=True, dict=True):
    """A whole step and the models of all its ranks, at the sizes at which they run."""

    def run_second(self, perturbation: Perturbation | None = None) -> Result:
        """Return the combined results of the ranks."""
        results = self.rank_results(perturbation)
        names = [name for name in live_out(self.before) if name in self.first.values]
        gathered = {name: self._gather(name, results) for name in names}
        return Result(
            {name: value for name, value in gathered.items() if value is not None},
            self.first.initial,
            results[0].read,
        )

    def _gather(self, name: str, results: Sequence[Result]) -> Torch:
        """Return the combined value of a tensor of all ranks, ``None`` if they have none."""
        rank_layouts = [layouts_of(graph).get(name, ()) for graph in self.models]
        values = [result.values.get(name) for result in results]
        first: Sequence[TensorLayout] = next(filter(None, rank_layouts), ())
        if any(layout.kind == "piece" for layout in first):
            pieces = [next(iter(layouts), None) for layouts in rank_layouts]
            return _assemble_pieces(pieces, values, self.first[name])
        if first and any(value is None for value in values):
            return None
        for layout in reversed(first):
            values = [
                _merge_group(layout, [values[member] for member in members(graph, layout)])
                for graph in self.models
            ]
        return self.compared_copy(name, [value for value in values if value is not None])

    def rounding_scatter(
        self, names: Sequence[tuple[str, str]], norm: Callable[[Torch], float]
    ) -> list[float]:
        """Raise an error: the scatter of roundings can only be computed for a single graph."""
        short = sorted(set().union(*map(short_types, (self.before, *self.models))))
        message = f"how far roundings to {' and '.join(short)} scatter over ranks is not known"
        raise fail(message, hint="without --narrow all is computed in f64", exit_code=2)


def members(graph: Graph, layout: TensorLayout) -> tuple[int, ...]:
    """Return the ranks that have the parts of a tensor, according to one of them."""
    return groups_of(graph).get(layout.over) or tuple(range(layout_of(graph).ranks))


def _rank_part(value: Torch, layouts: Sequence[TensorLayout], graph: Graph, rank: int) -> Torch:
    """Return a rank's part of a tensor."""
    for layout in layouts:
        ranks = members(graph, layout)
        if layout.kind == "split":
            value = value.chunk(len(ranks), layout.rows[0])[ranks.index(rank)]
        elif layout.kind == "piece":
            value = value[slice(*layout.rows), slice(*layout.columns)]
    return value


def _merge_group(layout: TensorLayout, values: Values) -> Torch:
    """Return the combined value of a tensor of the ranks of one group."""
    if layout.kind == "split":
        return torch.cat(list(values), layout.rows[0])
    total = torch.stack(list(values)).sum(0)
    return total / len(values) if layout.kind == "mean" else total


def _assemble_pieces(
    layouts: Sequence[TensorLayout | None], values: Sequence[Any], reference: Torch
) -> Torch:
    assembled = torch.full_like(reference, torch.nan)
    for layout, value in zip(layouts, values, strict=True):
        if layout is not None and value is None:
            return None  # a rewrite of this rank no longer makes it
        if layout is not None:
            assembled[slice(*layout.rows), slice(*layout.columns)] = value
    return assembled


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

    See ``irgraph.execute.compare_ranks`` for the arguments and errors.
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
    narrow = next((graph for graph in models if is_quantized(graph)), None)
    draws_wide = Draws(draws, seed, widen and narrow is None)

    def start(draw: Draw) -> tuple[RankComparison, list[str]]:
        step = _DrawnStep(before, models, batch, draw, narrow, draws_wide.wide)
        step.set_sizes(dims, limit)
        return step.trial(observer), [step.sizes() + short]

    return draws_wide.compare(start, observer)


def _check(before: Graph, models: Sequence[Graph]) -> str:
    """Return the dimension that ranks share, ``""`` for none; raise an error for other models."""
    check_ranks(models)
    batch = str(models[0].settings.get(BATCH, ""))
    if batch and batch not in before.dims:
        raise fail(f"the whole step has no dimension {batch!r}", exit_code=2)
    return batch


def check_ranks(models: Sequence[Graph]) -> None:
    """Raise an error unless the models are those of all ranks, in order."""
    ranks = [graph.settings.get(RANK) for graph in models]
    if ranks != list(range(len(models))) or any(
        layout_of(graph).ranks != len(models) for graph in models
    ):
        rank_text = ", ".join("none" if rank is None else str(rank) for rank in ranks)
        raise fail(
            f"models of all ranks are needed, in order: these are {rank_text}",
            hint="shard writes them: one model for each rank of a plan",
            exit_code=2,
        )


class _DrawnStep:
    """The whole step and its ranks at small sizes, on one draw of values."""

    def __init__(
        self,
        before: Graph,
        models: Sequence[Graph],
        dim: str,
        draw: Draw,
        narrow: Graph | None,
        widen: bool,
    ) -> None:
        self.before, self.models, self.dim = before, list(models), dim
        self.draw, self.narrow, self.widen = draw, narrow, widen
        self.batch = 0
        groups = groups_of(self.models[0])
        axes = [groups[name] for name in (SAMPLES, REPLICAS) if name in groups]
        self.shares = prod(map(len, axes)) if axes else len(self.models)
        self.shifts: dict[str, Torch] = {}

    def set_sizes(self, dims: Mapping[str, int], limit: int) -> None:
        """Resize the graphs to small sizes."""
        sizes = self.models[0].dims.items()
        small = {name: min(self.draw.size, size) for name, size in sizes} | dict(dims)
        full_sizes = dict(small)
        if self.dim:
            self.batch = small[self.dim]
            full_sizes[self.dim] = self.batch * self.shares
        self.before = resize(self.before, full_sizes)
        self.models = [resize(graph, small) for graph in self.models]
        self.original = self.before
        if self.widen:
            self.before, *self.models = widen_together((self.before, *self.models), "f64")
        check_memory([self.before, *self.models], limit)

    def sizes(self) -> str:
        """Return a note on the number of samples of each rank."""
        if not self.dim:
            return f"all samples on each of {len(self.models)} ranks"
        group_size = len(self.models) // self.shares
        groups = f"{self.shares} groups of {group_size}" if group_size > 1 else f"{self.shares}"
        return f"{self.dim} = {self.batch} on each of {groups} ranks"

    def trial(self, observer: Observer) -> RankComparison:
        """Run the whole step; return it with the initial values of its ranks."""
        first, manner = self.draw.run_first(self.before, partial(self._run, observer))
        observer.count_elements(self.before, first)
        unrounded, after = first, self.models[0]
        rank_inputs = tuple(
            self._inputs_of_rank(unrounded, rank) for rank in range(len(self.models))
        )
        if self.narrow is not None:
            first = run_reference(self.before, self.models, unrounded, self.draw.seed, 1)
            after = next(graph for graph in self.models if is_quantized(graph))
        return RankComparison(
            self.before,
            after,
            first,
            self.draw.seed,
            1,
            manner,
            self.original,
            unrounded.initial,
            models=tuple(self.models),
            rank_inputs=rank_inputs,
        )

    def _run(self, observer: Observer, manner: str) -> Result:
        with without_autograd(precision(self.before)):
            drawer = Drawer(self.before, self.draw.seed, manner)
            machine = Machine(self.before, {}, drawer, watch=observer.watcher(self.before))
            if self.dim:
                self._start_bags(machine, drawer)
            machine.run()
        return Result(machine.values, machine.initial, machine.read)

    def _start_bags(self, machine: Machine, drawer: Drawer) -> None:
        """Redraw the starts of bags so that each rank has its model's number of indices."""
        self.shifts = {}
        declared = {d.tensor.name: d.tensor for d in self.before.tensors}
        for buffer, rules in integer_rules(self.before).items():
            names = [name for name, tensor in declared.items() if tensor.buffer == buffer]
            starts = [rule for rule in rules if isinstance(rule, BagStarts)]
            if not names or not starts:
                continue
            storage = machine.values[names[0]].untyped_storage()
            shift_storage = torch.zeros(storage.nbytes(), dtype=torch.uint8).untyped_storage()
            for rule in starts:
                self._draw_starts(rule, storage, shift_storage, drawer)
            for name in names:
                self.shifts[name] = view_of(shift_storage, declared[name])
                machine.initial[name] = machine.values[name].clone()

    def _draw_starts(
        self, rule: BagStarts, storage: Torch, shift_storage: Torch, drawer: Drawer
    ) -> None:
        ranks = self.shares
        if rule.tensor.rank != 1 or rule.total % ranks or rule.closed:
            raise fail(f"%{rule.tensor.name}: where a rank's bags start among all is not known")
        rank_total, source = rule.total // ranks, drawer.generator("starts", rule.tensor.offset)
        value, shift = view_of(storage, rule.tensor), view_of(shift_storage, rule.tensor)
        for rank, (rank_starts, rank_shift) in enumerate(
            zip(value.chunk(ranks), shift.chunk(ranks), strict=True)
        ):
            starts, _ = torch.randint(rank_total + 1, rank_starts.shape, generator=source).sort()
            starts[:1] = 0
            rank_shift.fill_(rank * rank_total)
            rank_starts.copy_(starts + rank * rank_total)

    def _inputs_of_rank(self, first: Result, rank: int) -> dict[str, Torch]:
        model = self.models[rank]
        layouts = layouts_of(model)
        inputs: dict[str, Torch] = {}
        packed = {prepared.name for prepared in prepared_of(model)}
        unprepared = [d.tensor.name for d in model.tensors if d.tensor.name not in packed]
        for name in (*unprepared, *sources_of(model)):
            if name not in first.initial:
                raise fail(f"rank {rank} starts from %{name}, which the whole step lacks")
            value = first.initial[name]
            value = value - self.shifts[name] if name in self.shifts else value
            inputs[name] = _rank_part(value, layouts.get(name, ()), model, rank)
        return inputs
