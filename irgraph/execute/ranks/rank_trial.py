"""A whole step and the models of all its ranks, which run together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from irgraph.execute.comparison import Trial
from irgraph.execute.ranks.runner import run_ranks
from irgraph.execute.records import Result
from irgraph.execute.rounding.conditioning import Perturbation
from irgraph.execute.tensor_pair import max_magnitude
from irgraph.execute.torch_values import Torch
from irgraph.ir.graph import Graph


class RankTrial(Trial, frozen=True, dict=True):
    """A whole step and the models of all its ranks, at the sizes at which they run.

    Attributes:
        models: of all ranks.
        rank_inputs: initial values of each rank, by its own names.
    """

    models: tuple[Graph, ...] = ()
    rank_inputs: tuple[Mapping[str, Torch], ...] = ()

    def rank_results(self, perturbation: Perturbation | None) -> list[Result]:
        """Return the results of each rank."""
        inputs = self.rank_inputs
        if perturbation is not None:
            inputs = tuple(map(perturbation.perturbed, inputs))
        seeds = [self.seed] * len(self.models)
        return run_ranks(self.models, inputs, seeds, self.manner, perturbation)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Numbers of the copies that are compared, by the name of the whole step's tensor."""
        return {}

    def compared_copy(self, name: str, copies: Sequence[Torch]) -> Torch:
        """Return the copy of a tensor that differs most from the whole step's.

        In perturbed runs it is the same rank's: the distance of two ranks' copies is no rounding.
        """
        reference = self.first[name]
        if not copies or any(copy.shape != reference.shape for copy in copies):
            return copies[0] if copies else None
        if name not in self._numbers:
            distances = [max_magnitude(copy.double() - reference.double()) for copy in copies]
            is_nan = [distance != distance for distance in distances]
            farthest = max(range(len(copies)), key=lambda n: (is_nan[n], distances[n]))
            self._numbers[name] = farthest
        return copies[self._numbers[name]]
