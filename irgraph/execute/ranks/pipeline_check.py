"""Captured ranks of a pipeline, held against the step of the whole model.

What a rank starts from is what the whole step has under the same name; what a rank receives is nan
until it has been received. Optimizers' state, which has no name, starts at zero everywhere. What
the step leaves of each parameter, and returns, is compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError, fail
from irgraph.execute.comparison import Trial, compare, has_nan
from irgraph.execute.coverage import Observer
from irgraph.execute.machine import run
from irgraph.execute.random_values import TAME
from irgraph.execute.ranks.runner import run_together
from irgraph.execute.records import Comparison, Result
from irgraph.execute.sizes import check_memory, resized
from irgraph.execute.torch_values import DTYPES, Torch
from irgraph.execute.trials import MANNERS, merged
from irgraph.execute.widen import widened
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.live_out import live_out
from irgraph.ir.ranks import PEERS, is_collective, peer_of
from irgraph.ir.tensor import Tensor

HINT = "name the modules of each stage as the whole model does"


class Pipelined(Trial, frozen=True, dict=True):
    """A whole step and the ranks of its pipeline; ``after`` is the whole step, too.

    Attributes:
        models: of all ranks.
        given: what each starts from, by its own names.
        returned: the rank that returns what the whole step does, -1 for none.
    """

    models: tuple[Graph, ...] = ()
    given: tuple[Mapping[str, Torch], ...] = ()
    returned: int = -1

    @cached_property
    def exact(self) -> bool:
        """Never: sums over micro-batches are other sums."""
        return False

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """What has a name in both, and what is returned."""
        named = {d.tensor.name for d in self.before.tensors if d.label}
        found = live_out(self.before).items()
        return {name: kind for name, kind in found if kind == "returned" or name in named}

    @cached_property
    def second(self) -> Result:
        """What the ranks left, under the whole step's names."""
        results = run_together(self.models, self.given, self.seed, self.manner)
        names = {d.label: d.tensor.name for d in self.before.tensors if d.label}
        found: dict[str, Torch] = {}
        for graph, result in zip(self.models, results, strict=True):
            for declared in filter(lambda d: d.label, graph.tensors):
                name = names[declared.label]
                value = result.values[declared.tensor.name]
                found[name] = _worse(found.get(name), value, self.first[name])
        if self.returned >= 0:
            left = self.models[self.returned].returned or ()
            for said, tensor in zip(self.before.returned or (), left, strict=True):
                found[said.name] = results[self.returned].values[tensor.name]
        return Result(found, self.first.initial, ())


def _worse(one: Torch, other: Torch, whole: Torch) -> Torch:
    """Return which of two ranks' copies is farther from the whole step's; nan is farthest."""
    if one is None:
        return other
    far = [float((v.double() - whole.double()).abs().sum()) for v in (one, other)]
    return other if far[1] > far[0] or far[1] != far[1] else one


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

    Sizes are those of the capture where ``dims`` says no other: micro-batches have fixed ones.
    Raises ``IrgraphError`` as ``irgraph.execute.compare_ranks``, and where it cannot be said which
    tensor of the whole step a rank's is.
    """
    whole = replace(resized(before, dims), returned=before.returned)
    ranks = [resized(graph, dims) for graph in models]
    returned = _returning(whole, ranks)
    if returned < 0:
        whole = replace(whole, returned=())
    _check_names(whole, ranks)
    observer = Observer(whole)
    found: list[Comparison] = []
    notes = list(_notes(ranks, returned))
    for number in range(draws):
        manner = MANNERS[number % len(MANNERS)] if widen else MANNERS[0]
        trial = _trial(whole, ranks, observer, (seed + 1_000_003 * number, manner, widen, limit))
        try:
            found.append(compare(replace(trial, returned=returned)))
        except IrgraphError as error:
            if not found:
                raise
            notes.append(f"draw {number + 1} left out: {error.diagnostics[0].message}")
            continue
        if not found[-1].same:
            break
    return merged(found, observer.coverage(), [*notes, f"{len(found)} draws from seed {seed}"])


def _notes(ranks: Sequence[Graph], returned: int) -> Iterator[str]:
    sent = sum(op.name == "c10d.send" for graph in ranks for op in graph.leaves())
    yield f"{len(ranks)} ranks, {sent} sends received"
    yield "tensors without a name, such as an optimizer's state, start at zero"
    if returned < 0:
        yield "what the steps return is not compared: no rank returns what the whole step does"


def _returning(whole: Graph, ranks: Sequence[Graph]) -> int:
    """Return the one rank that returns tensors of the whole step's types, -1 for none."""
    wanted = [_type(t) for t in whole.returned or ()]
    found = [n for n, g in enumerate(ranks) if wanted == [_type(t) for t in g.returned or ()]]
    return found[0] if wanted and len(found) == 1 else -1


def _type(tensor: Tensor) -> tuple[str, tuple[int, ...]]:
    return tensor.dtype, tuple(map(int, tensor.shape))


def _check_names(whole: Graph, ranks: Sequence[Graph]) -> None:
    """Refuse ranks whose tensors have names that the whole step lacks, or that two stages share."""
    known = {d.label: d.tensor for d in whole.tensors if d.label}
    holders: dict[str, list[int]] = {}
    for number, graph in enumerate(ranks):
        for declared in filter(lambda d: d.label, graph.tensors):
            label = declared.label
            if label not in known or _type(known[label]) != _type(declared.tensor):
                message = f"rank {number} starts from {label!r}, which the whole step lacks"
                raise fail(message, hint=HINT)
            holders.setdefault(label, []).append(number)
    sums = any(is_collective(op) and not peer_of(op) for g in ranks for op in g.leaves())
    twice = next((label for label, held in holders.items() if len(held) > 1), "")
    if twice and not sums:
        numbers = " and ".join(map(str, holders[twice][:2]))
        raise fail(f"{twice!r} is on ranks {numbers}, which exchange no gradients", hint=HINT)
    if not holders:
        raise fail("no parameter of a rank has a name: nothing can be compared", hint=HINT)


def _trial(
    whole: Graph, ranks: Sequence[Graph], observer: Observer, how: tuple[int, str, bool, int]
) -> Pipelined:
    """Run the whole step; return it with what its ranks start from."""
    seed, manner, widen, limit = how
    wide = widened(whole, "f64") if widen else whole
    models = tuple(widened(graph, "f64") if widen else graph for graph in ranks)
    check_memory([wide, *models], limit)
    zeros = {d.tensor.name: _filled(d.tensor, 0.0) for d in wide.tensors if _unnamed_state(d)}
    first = run(wide, zeros, seed, watch=observer.watcher(wide), manner=manner)
    if has_nan(wide, first):
        manner = TAME
        first = run(wide, zeros, seed, watch=observer.watcher(wide), manner=manner)
    observer.count_elements(wide, first)
    first = Result(first.values, first.initial, ())
    given = tuple(_started(wide, first, graph, n) for n, graph in enumerate(models))
    return Pipelined(
        wide, wide, first, seed, 1, manner, whole, first.initial, models=models, given=given
    )


def _unnamed_state(declared: Declared) -> bool:
    return declared.role == "state" and not declared.label and declared.value is None


def _filled(tensor: Tensor, value: float) -> Torch:
    dtype: Any = DTYPES[tensor.dtype]
    number = value if dtype.is_floating_point else 0
    return torch.full(tuple(map(int, tensor.shape)), number, dtype=dtype)


def _started(whole: Graph, first: Result, graph: Graph, rank: int) -> dict[str, Torch]:
    """Return what a rank starts from, by its own names."""
    names = {d.label: d.tensor.name for d in whole.tensors if d.label}
    received = {
        t.name
        for op in graph.leaves()
        if op.name in PEERS
        for t in op.inputs
        if op.name != "c10d.send"
    }
    found: dict[str, Torch] = {}
    for declared in graph.tensors:
        tensor = declared.tensor
        if declared.label:
            found[tensor.name] = first.initial[names[declared.label]]
        elif tensor.name in received:
            found[tensor.name] = _filled(tensor, float("nan"))
        elif _unnamed_state(declared):
            found[tensor.name] = _filled(tensor, 0.0)
        elif declared.value is None:
            found[tensor.name] = first.initial[_input(whole, declared, rank)]
    return found


def _input(whole: Graph, declared: Declared, rank: int) -> str:
    """Return the whole step's input that a rank's is; refuse where that is not clear."""
    tensor = declared.tensor
    said = f"rank {rank} starts from %{tensor.name}"
    if declared.role != "input":
        raise fail(f"{said}, a {declared.role} that has no name and is not received", hint=HINT)
    fits = [
        d.tensor.name
        for d in whole.tensors
        if d.role == "input" and not d.label and _type(d.tensor) == _type(tensor)
    ]
    if len(fits) == 1:
        return fits[0]
    if not fits:
        size = f"{tensor.dtype}{list(map(int, tensor.shape))}"
        raise fail(f"{said} : {size}, which the whole step lacks")
    listed = " and ".join(f"%{name}" for name in fits[:3])
    raise fail(f"{said}, and the whole step from {listed} of that type: which it is is not known")
