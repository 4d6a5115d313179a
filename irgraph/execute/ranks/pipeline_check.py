"""Compares captured ranks of a pipeline with the step of the whole model.

A rank starts from the whole step's tensors of the same names; a tensor that it receives is nan
before. Optimizers' state, which has no name, starts at zero everywhere. The final values of
parameters and the returned tensors are compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from msgspec.structs import replace

from irgraph.diagnostics import fail
from irgraph.execute.coverage import Observer
from irgraph.execute.machine import run
from irgraph.execute.ranks.rank_trial import RankTrial
from irgraph.execute.records import Comparison, Result
from irgraph.execute.rounding.conditioning import Perturbation
from irgraph.execute.sizes import check_memory, resize
from irgraph.execute.torch_values import DTYPES, Torch
from irgraph.execute.trials import Draw, Draws
from irgraph.execute.widen import widen_together
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.ranks import PEERS, is_collective, peer_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.live_out import live_out

HINT = "name the modules of each stage as the whole model does"


class PipelineComparison(RankTrial, frozen=True, dict=True):
    """A whole step and the ranks of its pipeline; ``after`` is also the whole step.

    Attributes:
        returned: the rank that returns the whole step's results, -1 for none.
    """

    returned: int = -1

    @cached_property
    def exact(self) -> bool:
        """Always false: sums over micro-batches round differently."""
        return False

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """Kinds of the tensors with labels and of the returned ones, by name."""
        labelled = {d.tensor.name for d in self.before.tensors if d.label}
        live = live_out(self.before).items()
        return {name: kind for name, kind in live if kind == "returned" or name in labelled}

    def run_second(self, perturbation: Perturbation | None = None) -> Result:
        """Return the results of the ranks, by the whole step's names."""
        results = self.rank_results(perturbation)
        names = {d.label: d.tensor.name for d in self.before.tensors if d.label}
        copies: dict[str, list[Torch]] = {}
        for graph, result in zip(self.models, results, strict=True):
            for declared in filter(lambda d: d.label, graph.tensors):
                value = result.values[declared.tensor.name]
                copies.setdefault(names[declared.label], []).append(value)
        values = {name: self.compared_copy(name, group) for name, group in copies.items()}
        if self.returned >= 0:
            rank_returns = self.models[self.returned].returned or ()
            for target, tensor in zip(self.before.returned or (), rank_returns, strict=True):
                values[target.name] = results[self.returned].values[tensor.name]
        return Result(values, self.first.initial, ())


def compare_pipeline(
    before: Graph,
    models: Sequence[Graph],
    *,
    seed: int,
    dims: Mapping[str, int],
    limit: int,
    widen: bool,
    draws: int,
) -> Comparison:
    """Run a whole step and the ranks of its pipeline on the same values, several times.

    Sizes that are not in ``dims`` are those of the capture: micro-batches have fixed sizes. Raises
    ``IrgraphError`` as ``irgraph.execute.compare_ranks`` does, and if a rank's tensor cannot be
    matched with one of the whole step.
    """
    full_step = replace(resize(before, dims), returned=before.returned)
    ranks = [resize(graph, dims) for graph in models]
    returned = _returning_rank(full_step, ranks)
    if returned < 0:
        full_step = replace(full_step, returned=())
    _check_names(full_step, ranks)
    observer = Observer(full_step)
    notes = list(_notes(ranks, returned))

    def start(draw: Draw) -> tuple[PipelineComparison, list[str]]:
        trial = _trial(full_step, ranks, observer, draw, widen, limit)
        return replace(trial, returned=returned), notes

    return Draws(draws, seed, widen).compare(start, observer)


def _notes(ranks: Sequence[Graph], returned: int) -> Iterator[str]:
    sent = sum(op.name == "c10d.send" for graph in ranks for op in graph.leaves())
    yield f"{len(ranks)} ranks, {sent} sends received"
    yield "tensors without a name, such as an optimizer's state, start at zero"
    if returned < 0:
        yield "what the steps return is not compared: no rank returns what the whole step does"


def _returning_rank(full_step: Graph, ranks: Sequence[Graph]) -> int:
    """Return the one rank that returns tensors of the whole step's types, -1 for none."""
    types = [_type(t) for t in full_step.returned or ()]
    matches = [n for n, g in enumerate(ranks) if types == [_type(t) for t in g.returned or ()]]
    return matches[0] if types and len(matches) == 1 else -1


def _type(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype, tuple(map(int, tensor.shape))


def _check_names(full_step: Graph, ranks: Sequence[Graph]) -> None:
    """Raise an error for names of tensors that the whole step lacks, or that two stages share."""
    tensor_by_label = {d.label: d.tensor for d in full_step.tensors if d.label}
    holders: dict[str, list[int]] = {}
    for number, graph in enumerate(ranks):
        for declared in filter(lambda d: d.label, graph.tensors):
            label = declared.label
            if label not in tensor_by_label or _type(tensor_by_label[label]) != _type(
                declared.tensor
            ):
                message = f"rank {number} starts from {label!r}, which the whole step lacks"
                raise fail(message, hint=HINT)
            holders.setdefault(label, []).append(number)
    sums = any(is_collective(op) and not peer_of(op) for g in ranks for op in g.leaves())
    duplicate = next(
        (label for label, holder_ranks in holders.items() if len(holder_ranks) > 1), ""
    )
    if duplicate and not sums:
        numbers = " and ".join(map(str, holders[duplicate][:2]))
        raise fail(f"{duplicate!r} is on ranks {numbers}, which exchange no gradients", hint=HINT)
    if not holders:
        raise fail("no parameter of a rank has a name: nothing can be compared", hint=HINT)


def _trial(
    full_step: Graph,
    ranks: Sequence[Graph],
    observer: Observer,
    draw: Draw,
    widen: bool,
    limit: int,
) -> PipelineComparison:
    """Run the whole step; return it with the initial values of its ranks."""
    wide, *models = widen_together((full_step, *ranks), "f64") if widen else (full_step, *ranks)
    check_memory([wide, *models], limit)
    zeros = {d.tensor.name: _full_tensor(d.tensor, 0.0) for d in wide.tensors if _unnamed_state(d)}

    def run_first(manner: str) -> Result:
        return run(wide, zeros, draw.seed, watch=observer.watcher(wide), manner=manner)

    first, manner = draw.run_first(wide, run_first)
    observer.count_elements(wide, first)
    first = Result(first.values, first.initial, ())
    rank_inputs = tuple(_inputs_of_rank(wide, first, graph, n) for n, graph in enumerate(models))
    return PipelineComparison(
        wide,
        wide,
        first,
        draw.seed,
        1,
        manner,
        full_step,
        first.initial,
        models=tuple(models),
        rank_inputs=rank_inputs,
    )


def _unnamed_state(declared: Declared) -> bool:
    return declared.role == "state" and not declared.label and declared.value is None


def _full_tensor(tensor: Tensor, value: float) -> Torch:
    dtype: Any = DTYPES[tensor.dtype]
    number = value if dtype.is_floating_point else 0
    return torch.full(tuple(map(int, tensor.shape)), number, dtype=dtype)


def _inputs_of_rank(full_step: Graph, first: Result, graph: Graph, rank: int) -> dict[str, Torch]:
    """Return the initial values of a rank, by its own names."""
    names = {d.label: d.tensor.name for d in full_step.tensors if d.label}
    received = {
        t.name
        for op in graph.leaves()
        if op.name in PEERS
        for t in op.inputs
        if op.name != "c10d.send"
    }
    inputs: dict[str, Torch] = {}
    for declared in graph.tensors:
        tensor = declared.tensor
        if declared.label:
            inputs[tensor.name] = first.initial[names[declared.label]]
        elif tensor.name in received:
            inputs[tensor.name] = _full_tensor(tensor, float("nan"))
        elif _unnamed_state(declared):
            inputs[tensor.name] = _full_tensor(tensor, 0.0)
        elif declared.value is None:
            inputs[tensor.name] = first.initial[_matching_input(full_step, declared, rank)]
    return inputs


def _matching_input(full_step: Graph, declared: Declared, rank: int) -> str:
    """Return the whole step's input that matches a rank's; raise an error if it is ambiguous."""
    tensor = declared.tensor
    subject = f"rank {rank} starts from %{tensor.name}"
    if declared.role != "input":
        raise fail(f"{subject}, a {declared.role} that has no name and is not received", hint=HINT)
    candidates = [
        d.tensor.name
        for d in full_step.tensors
        if d.role == "input" and not d.label and _type(d.tensor) == _type(tensor)
    ]
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        size = f"{tensor.dtype}{list(map(int, tensor.shape))}"
        raise fail(f"{subject} : {size}, which the whole step lacks")
    names = " and ".join(f"%{name}" for name in candidates[:3])
    raise fail(f"{subject}, and the whole step from {names} of that type: which it is is not known")
