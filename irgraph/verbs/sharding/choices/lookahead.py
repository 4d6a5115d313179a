"""Costs of later calls by the places of tensors, passed backward through decisions.

Choices in launch order do not see the needs of later calls. After a first pass all possible ways
of each call are known: from the last call to the first, each passes the cost of every place, for
itself and all calls after it, to its operands. These costs are exact for trees. In other graphs a
call counts once for each path to it, therefore a second pass is used only if it is better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from msgspec.structs import replace

from irgraph.ir.tensor import Tensor
from irgraph.ops.places import Place
from irgraph.verbs.sharding.choices.candidates import changed_tensors
from irgraph.verbs.sharding.choices.choice import Decision, Evaluation
from irgraph.verbs.sharding.choices.costs import DATA, FREE, Cost, conversion_cost

Message = Mapping[Place, Cost]
"""Costs of a call and of later ones, by the place of one operand, above the lowest of them."""


class Lookahead:
    """Costs of later calls by places, from the decisions of a pass."""

    def __init__(
        self, decisions: Sequence[Decision], ranks: int, origins: Mapping[str, str]
    ) -> None:
        self.ranks, self.origins = ranks, origins
        self.messages: dict[str, list[Message]] = {}
        for decision in reversed(decisions):
            self._pass_back(decision)

    def has(self, tensor: Tensor) -> bool:
        """Return whether a call reads a tensor."""
        return tensor.name in self.messages

    def cost(self, tensor: Tensor, place: Place) -> Cost:
        """Return the cost of later calls if a tensor is in a place."""
        place = replace(place, factor=0)
        total = FREE
        for message in self.messages.get(tensor.name, ()):
            total += min(
                self._conversion(tensor, place, other) + cost for other, cost in message.items()
            )
        return total

    def _conversion(self, tensor: Tensor, place: Place, other: Place) -> Cost:
        origin = self.origins.get(tensor.name, DATA)
        cost = conversion_cost(tensor, place, other, self.ranks, origin)
        return Cost(time=cost.time) if origin == DATA else cost

    def _pass_back(self, decision: Decision) -> None:
        """Add the messages of a call to its operands; a written operand has no other reader."""
        call = decision.call
        results = changed_tensors(call)
        after = [self._after(results, evaluation) for evaluation in decision.evaluations]
        messages = {
            tensor.name: self._message(decision, tensor, after) for tensor in set(call.inputs)
        }
        written: Set[str] = {tensor.name for tensor in results}
        for name, message in messages.items():
            others = [] if name in written else self.messages.get(name, [])
            self.messages[name] = [*others, message]

    def _after(self, results: Sequence[Tensor], evaluation: Evaluation) -> Cost:
        """Return the cost of a way to run a call, and of later calls."""
        total = Cost(time=evaluation.work)
        for tensor in results:
            total += self.cost(tensor, evaluation.choice.results[tensor.name])
        return total

    def _message(self, decision: Decision, tensor: Tensor, after: Sequence[Cost]) -> Message:
        """Return the costs of a call by the place of an operand, others being as in the pass."""
        others = [operand for operand in decision.call.inputs if operand.name != tensor.name]
        costs: dict[Place, Cost] = {}
        for evaluation, following in zip(decision.evaluations, after, strict=True):
            operands, total = evaluation.choice.operands, following
            for other in others:
                total += self._conversion(other, decision.places[other.name], operands[other.name])
            place = replace(operands[tensor.name], factor=0)
            costs[place] = min(total, costs.get(place, total))
        lowest = min(costs.values())
        return {
            place: Cost(cost.exposed - lowest.exposed, cost.time - lowest.time)
            for place, cost in costs.items()
        }
