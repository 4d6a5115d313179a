"""Choice of the way to run a call on ranks, by the places of its operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.effects import is_view, written_by
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import meaning_of
from irgraph.ops.places import ONCE, OWN, Outer, Place, times
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.sharding.choices.candidates import (
    Candidate,
    candidates_of,
    changed_tensors,
    determines_shape,
    draws,
    with_runs,
)
from irgraph.verbs.sharding.choices.costs import (
    DATA,
    EXPOSURE,
    FREE,
    NEVER,
    Cost,
    conversion_cost,
    flops_of,
    owed_cost,
    traffic,
)
from irgraph.verbs.sharding.local_tensors import LocalTensors
from irgraph.verbs.sharding.shares import Shares


class FutureCosts(Protocol):
    """Costs of later calls by the places of tensors."""

    def has(self, tensor: Tensor) -> bool:
        """Return whether the costs of a tensor's places are known."""
        ...

    def cost(self, tensor: Tensor, place: Place) -> Cost:
        """Return the cost of later calls if a tensor is in a place."""
        ...


class Choice(Struct, frozen=True):
    """The way to run a call.

    Attributes:
        operands: the place that each operand must have, by name.
        results: the places of new tensors and of written operands, by name.
        letter: the letter that is split, ``""`` if none.
        has_rank_sizes: whether the arguments have all sizes of the rank.
        writer: writes the calls of an op that becomes several, from the rank's operands by name in
            the whole step; returns the call with its main result.
    """

    operands: Mapping[str, Place]
    results: Mapping[str, Place]
    letter: str = ""
    has_rank_sizes: bool = False
    writer: Callable[[Op, Mapping[str, Tensor]], Op] | None = None


class Evaluation(Struct, frozen=True):
    """The cost of a choice.

    Attributes:
        choice: the choice.
        conversions: the cost of conversions of operands.
        work: the time of the call, in bytes through memory.
        future: the cost of later calls by the places of the results.
    """

    choice: Choice
    conversions: Cost = FREE
    work: float = 0.0
    future: Cost = FREE

    @property
    def cost(self) -> Cost:
        """The cost by which choices are compared."""
        return self.conversions + Cost(time=self.work) + self.future


class Decision(Struct, frozen=True):
    """The ways that were possible for a call.

    Attributes:
        call: the call.
        places: the places of its operands before, by name.
        evaluations: the possible choices.
    """

    call: Op
    places: Mapping[str, Place]
    evaluations: Sequence[Evaluation]


@dataclass
class Chooser:
    """Choices by the present places of tensors.

    Attributes:
        tensors: the rank's tensors.
        shares: sizes of ranks.
        pins: places that tensors must have as soon as they exist, by name.
        origins: origins of tensors that are not data.
        last_runs: the runs in which an axis was split last, by its size.
        unread: names of results that no op reads, which may be terms of a sum on any device.
        future: costs of later calls by places, from an earlier pass.
        decisions: the decisions in launch order.
        transfers: the cost of all conversions, without activations that are complete.
        exposed: bytes of activations that were made complete.
        work: the time of all calls.
    """

    tensors: LocalTensors
    shares: Shares
    pins: Mapping[str, Place]
    origins: dict[str, str] = field(default_factory=dict)
    unread: Set[str] = frozenset()
    future: FutureCosts | None = None
    last_runs: dict[str, Outer] = field(default_factory=dict)
    decisions: list[Decision] = field(default_factory=list)
    transfers: Cost = FREE
    exposed: float = 0.0
    work: float = 0.0

    def choose(self, op: Op) -> Choice:
        """Return the cheapest way to run a call of one position.

        Raises ``RefusedError`` if no way is legal.
        """
        evaluations = [
            evaluation
            for candidate in self._candidates(op)
            if (evaluation := self._evaluate(op, candidate)) is not None
        ]
        if not evaluations:
            raise op_refusal(op, self._fault(op))
        best = self._best(evaluations)
        self.record(op, best.choice, *evaluations)
        self.work += best.work
        for tensor in op.inputs:
            place = best.choice.operands[tensor.name]
            if place.kind == "split":
                self.last_runs[str(tensor.shape[place.axis])] = place.outer
        return best.choice

    def _best(self, evaluations: Sequence[Evaluation]) -> Evaluation:
        return min(evaluations, key=lambda evaluation: evaluation.cost)

    def follow(self, op: Op, choice: Choice) -> Choice:
        """Return a choice that is made elsewhere; add its cost."""
        self.record(op, choice, Evaluation(choice))
        return choice

    def charge(self, tensor: Tensor, place: Place) -> None:
        """Add the cost of a conversion."""
        if self.tensors.is_convertible(tensor, place):
            return
        cost = self._conversion_cost(tensor, place)
        if self._is_data(tensor):
            self.exposed += cost.exposed
            cost = Cost(time=cost.time)
        self.transfers += cost

    def record(self, op: Op, choice: Choice, *evaluations: Evaluation) -> None:
        """Record the possible choices of a call; add the cost of conversions for one."""
        places = {tensor.name: self._place(tensor) for tensor in op.inputs}
        self.decisions.append(Decision(op, places, evaluations))
        for tensor in op.inputs:
            self.charge(tensor, choice.operands[tensor.name])

    def _candidates(self, op: Op) -> Iterator[Candidate]:
        """Yield the ways to run a call, those along a letter in all runs that may fit.

        These are the runs of operands, those in which an axis of this size was split last, and one.
        """
        for candidate in candidates_of(op):
            if not candidate.letter:
                yield candidate
                continue
            candidate = with_runs(candidate, self.shares.runs)
            for runs in dict.fromkeys(self._runs(op, candidate)):
                yield replace(with_runs(candidate, partial(times, runs)), runs=runs)

    def _runs(self, op: Op, candidate: Candidate) -> Iterator[Outer]:
        for tensor, place in zip(op.inputs, candidate.operands, strict=True):
            current = self._place(tensor)
            if (current.kind, current.axis) == ("split", place.axis):
                runs = self.shares.quotient(current.outer, place.outer)
                if runs is not None:
                    yield runs
        yield self.last_runs.get(str(candidate.size), ONCE)
        yield ONCE

    def _fault(self, op: Op) -> str:
        if draws(op):
            return "draws random numbers: ranks would draw others than the whole step"
        written = next(t for t in written_by(op) if self._place(t).kind == "split")
        return f"writes to %{written.name}, of which a rank has only a part"

    def _place(self, tensor: Tensor) -> Place:
        return self.tensors.places[tensor.name]

    def _evaluate(self, op: Op, candidate: Candidate) -> Evaluation | None:
        """Return the cost of a candidate, ``None`` if it is not possible."""
        if not self._is_possible(op, candidate):
            return None
        candidate = replace(candidate, operands=tuple(self._operand_places(op, candidate)))
        operands, results = self._with_factors(op, candidate)
        if not self._has_workspaces(op, operands) or not self._can_write(op, operands, results):
            return None
        place_by_name = dict(zip((tensor.name for tensor in op.inputs), operands, strict=True))
        if any(place_by_name[t.name] != p for t, p in zip(op.inputs, operands, strict=True)):
            # a tensor that is an operand twice has one place
            return None
        conversions, future = FREE, FREE
        for tensor, place in zip(op.inputs, operands, strict=True):
            conversions += self._conversion(tensor, place)
        for tensor, place in zip(changed_tensors(op), results, strict=True):
            future += self._debt(tensor, place)
        changed = (tensor.name for tensor in changed_tensors(op))
        choice = Choice(
            place_by_name,
            dict(zip(changed, results, strict=True)),
            candidate.letter,
        )
        work = self._work(op, candidate, operands, results)
        return Evaluation(choice, conversions, work, future)

    def _has_workspaces(self, op: Op, operands: Sequence[Place]) -> bool:
        """Return whether workspaces are read where, and only where, a call needs a rank's own."""
        pairs = zip(op.inputs, operands, strict=True)
        return all((self._place(tensor) == OWN) == (place == OWN) for tensor, place in pairs)

    def _operand_places(self, op: Op, candidate: Candidate) -> Iterator[Place]:
        """Yield the places of operands; those whose elements no result reads may stay."""
        meaning = meaning_of(op)
        written = {tensor.name for tensor in written_by(op)}
        for index, (tensor, place) in enumerate(zip(op.inputs, candidate.operands, strict=True)):
            current = self._place(tensor)
            is_read = meaning is None or any(r.is_function_of(index) for r in meaning.results)
            if is_read or not candidate.results or tensor.name in written:
                yield place
                continue
            is_whole = "split" not in (place.kind, current.kind)
            yield current if is_whole or not determines_shape(meaning, index) else place

    def _is_possible(self, op: Op, candidate: Candidate) -> bool:
        if draws(op):
            return False
        if not candidate.letter:
            is_partial = any(place.kind == "partial" for place in candidate.operands)
            return not is_partial or self._is_partial(op, candidate)
        if not self._is_split(op, candidate):
            return False
        pairs = (
            *zip(op.inputs, candidate.operands, strict=True),
            *zip(changed_tensors(op), candidate.results, strict=True),
        )
        if not self.shares.has_share_of_runs(candidate.size, candidate.runs) or not all(
            self._is_shareable(tensor, place) for tensor, place in pairs
        ):
            return False
        return self._gathers_parameters(op, candidate)

    def _is_partial(self, op: Op, candidate: Candidate) -> bool:
        """Return whether an operand is a term of a sum that the call may pass on."""
        devices = {tensor.device for tensor in (*op.inputs, *op.outputs)}
        is_partial = any(
            place.kind == "partial" and self._has_terms(tensor, place)
            for tensor, place in zip(op.inputs, candidate.operands, strict=True)
        )
        stays = len(devices) == 1 or all(tensor.name in self.unread for tensor in op.outputs)
        return stays and is_partial

    def _has_terms(self, tensor: Tensor, place: Place) -> bool:
        """Return whether a tensor is a term of the sum of powers that a place has."""
        current = self._place(tensor)
        return current.kind == "partial" and current.power == place.power

    def _is_split(self, op: Op, candidate: Candidate) -> bool:
        """Return whether an operand is split already, or the letter is a shared dimension."""
        if any(self._place(tensor).kind == "split" for tensor in op.inputs):
            return True
        return self.shares.depends(candidate.size)

    def _is_shareable(self, tensor: Tensor, place: Place) -> bool:
        if place.kind != "split":
            return True
        return self.shares.has_share_of_runs(tensor.shape[place.axis], place.outer)

    def _gathers_parameters(self, op: Op, candidate: Candidate) -> bool:
        """Return whether parameters that are gathered for use are complete where data is read."""
        if op.phase == "optimizer":
            return True
        origins = [self.origins.get(tensor.name, DATA) for tensor in op.inputs]
        if DATA not in origins:
            return True
        pairs = zip(origins, candidate.operands, strict=True)
        return all(origin in (DATA, NEVER) or place.kind == "same" for origin, place in pairs)

    def _with_factors(
        self, op: Op, candidate: Candidate
    ) -> tuple[tuple[Place, ...], tuple[Place, ...]]:
        """Return a candidate's places with the powers by which tensors are too large.

        A result that is linear in a set of operands is too large by the same power.
        """
        factors = [self._factor(t, p) for t, p in zip(op.inputs, candidate.operands, strict=True)]
        if not any(factors):
            return candidate.operands, candidate.results
        terms = self._linear_terms(op, factors)
        scaled = frozenset().union(*terms)
        operands = tuple(
            replace(place, factor=factors[i]) if i in scaled else place
            for i, place in enumerate(candidate.operands)
        )
        meaning = meaning_of(op)
        if meaning is None:
            return operands, candidate.results
        results = []
        for result, place in zip(meaning.results, candidate.results, strict=True):
            read = [term for term in terms if any(map(result.is_function_of, term))]
            surplus = sum(max(factors[i] for i in term) for term in read)
            results.append(replace(place, factor=place.factor + surplus))
        return operands, tuple(results)

    def _factor(self, tensor: Tensor, place: Place) -> int:
        """Return the power by which an operand is too large after it was converted to a place."""
        current = self._place(tensor)
        is_reduced = current.kind == "partial" and place.kind != "partial"
        return 0 if is_reduced else current.factor

    def _linear_terms(self, op: Op, factors: Sequence[int]) -> list[frozenset[int]]:
        """Return disjoint sets of operands, of equal powers, in which a call is linear."""
        meaning = meaning_of(op)
        terms: list[frozenset[int]] = []
        used: frozenset[int] = frozenset()
        zero = {i for i, t in enumerate(op.inputs) if t.name in self.tensors.zeros}
        for term in meaning.linear if meaning is not None else ():
            present = {factors[i] for i in term - zero}
            if len(present) == 1 and present != {0} and not term & used:
                terms.append(term)
                used |= term
        return terms

    def _can_write(self, op: Op, operands: Sequence[Place], results: Sequence[Place]) -> bool:
        """Return whether the places of operands that a call writes may become its results'."""
        required = {t.name: p for t, p in zip(op.inputs, operands, strict=True)}
        first = len(op.outputs)
        for index, tensor in enumerate(changed_tensors(op)[first:], first):
            before, after = required[tensor.name], results[index]
            if not self._has_place(tensor, before):
                return False
            if before != after and not self._may_change(op, index, tensor, before, after):
                return False
        return True

    def _has_place(self, tensor: Tensor, place: Place) -> bool:
        """Return whether memory is in a place already, or a sum in place puts it there."""
        current = self._place(tensor)
        if current == place or self.tensors.is_zero_in(tensor.name, current, place):
            return True
        return current.kind == "partial" and place.kind == "same"

    def _may_change(self, op: Op, index: int, tensor: Tensor, before: Place, after: Place) -> bool:
        """Return whether memory may change its place: all of it is overwritten, in equal form."""
        if "split" in (before.kind, after.kind) and replace(before, factor=after.factor) != after:
            return False
        meaning = meaning_of(op)
        operands = [i for i, operand in enumerate(op.inputs) if operand.name == tensor.name]
        is_read = meaning is None or any(meaning.results[index].is_function_of(i) for i in operands)
        if is_read and tensor.name not in self.tensors.zeros:
            return False
        local = self.tensors.local[tensor.name]
        covering = self.tensors.covering(tensor)
        return covering is not None and covering.extent == local.extent

    def _conversion(self, tensor: Tensor, place: Place) -> Cost:
        if self.tensors.is_convertible(tensor, place):
            return FREE
        cost = self._conversion_cost(tensor, place)
        # a second pass counts the later work on complete activations itself
        is_counted = self.future is not None and self._is_data(tensor)
        return Cost(time=cost.time) if is_counted else cost

    def _is_data(self, tensor: Tensor) -> bool:
        return self.origins.get(tensor.name, DATA) == DATA

    def _conversion_cost(self, tensor: Tensor, place: Place) -> Cost:
        origin = self.origins.get(tensor.name, DATA)
        return conversion_cost(tensor, self._place(tensor), place, self.shares.ranks, origin)

    def _debt(self, tensor: Tensor, place: Place) -> Cost:
        """Return the cost of later calls by a result's place.

        It is the conversion to its pin, the cost of an earlier pass, or else the sum of its terms.
        """
        pin = self.pins.get(tensor.name)
        if pin is not None and pin != place:
            return conversion_cost(tensor, place, pin, self.shares.ranks)
        if self.future is not None and self.future.has(tensor):
            return self.future.cost(tensor, place)
        return Cost(time=owed_cost(tensor, place, self.shares.ranks))

    def _work(
        self,
        op: Op,
        candidate: Candidate,
        operands: tuple[Place, ...],
        results: tuple[Place, ...],
    ) -> float:
        if is_view(op):
            return 0.0
        ranks = self.shares.ranks
        flops = flops_of(op) / (ranks if candidate.letter else 1)
        tensors = (*op.inputs, *changed_tensors(op))
        return flops + traffic(tensors, (*operands, *results), ranks)

    def follow_origin(self, op: Op) -> None:
        """Record the origin of results that are computed from parameters alone."""
        tensors = [tensor for tensor in op.inputs if tensor.numel > 1]
        origins = {self.origins.get(tensor.name, DATA) for tensor in tensors}
        if origins and DATA not in origins:
            origin = max(origins, key=EXPOSURE.__getitem__)
            self.origins.update((tensor.name, origin) for tensor in op.outputs)
