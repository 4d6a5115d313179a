"""Effect of rounding on each element of a step's results, by runs with perturbed values.

A result that is computed in another order differs from the original by roundings, enlarged by the
conditioning of all that depends on them. How far they reach is measured, not assumed: the step runs
several times with the low bits of every computed value replaced (Monte Carlo arithmetic: Parker,
UCLA CSD-970002, 1997).

The new low bits depend only on the other bits and on the run. Hence equal values stay equal, copies
remain copies, and the order of values is retained: ties stay ties. Zero is not changed. Draws that
place values at constants also retain the constants of the step and values of few bits, such as
small integers, unless an op computed them that rounds almost every result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from irgraph.diagnostics import IrgraphError
from irgraph.execute.random_values import CRITICAL, TIED, constants_of, without_repetitions
from irgraph.execute.records import Result
from irgraph.execute.torch_values import Torch
from irgraph.ir.effects import is_view, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait

RUNS = 4
"""Number of runs with perturbed values."""

MAX_DEVIATION_FACTOR = 16.0
"""Maximum deviation of a rewrite, as a multiple of the largest deviation of the perturbed runs."""

PERTURBED_BITS = 4
"""Number of low bits that are replaced: a change of at most 16 units in the last place."""

EXACT_BITS = {torch.float64: 26, torch.float32: 10}
"""Number of low bits that are zero in values of few bits, which are not changed."""

MULTIPLIER = {torch.float64: 0x2545F4914F6CDD1D, torch.float32: 0x2C1B3C6D}
"""Odd multiplier of the hash of a value's high bits."""

INTEGERS = {torch.float64: torch.int64, torch.float32: torch.int32}


PLACING = (CRITICAL, TIED)
"""Ways to draw values that place them at constants."""


class Perturbation:
    """Watch that replaces the low bits of every value that a step computes."""

    def __init__(self, graph: Graph, seed: int, manner: str) -> None:
        self._seed = 2 * seed + 1
        constants = constants_of(graph) if manner in PLACING else ()
        self._constants = torch.tensor(constants, dtype=torch.float64)
        self._retains_exact = manner in PLACING

    def __call__(self, op: Op, values: Mapping[str, Torch]) -> None:
        """Perturb the results of an op that has run."""
        if is_view(op):
            return
        exact = op.name not in names_with(Trait.ROUNDING)
        for tensor in (*op.outputs, *written_by(op)):
            self.perturb(values[tensor.name], exact=exact)

    def perturbed(self, inputs: Mapping[str, Torch]) -> dict[str, Torch]:
        """Return perturbed copies of initial values."""
        copies = {name: value.clone() for name, value in inputs.items()}
        for value in copies.values():
            self.perturb(value)
        return copies

    def perturb(self, value: Torch, *, exact: bool = True) -> None:
        """Replace the low bits of a tensor in place; ``exact`` values of few bits may remain."""
        stored = value if value.layout == torch.strided else value._values()
        if stored.is_complex():
            stored = torch.view_as_real(stored.resolve_conj())
        if stored.dtype not in INTEGERS or not stored.numel() or stored.is_neg():
            return
        stored = without_repetitions(stored)
        bits = stored.view(INTEGERS[stored.dtype])
        mask = (1 << PERTURBED_BITS) - 1
        changed = bits & ~mask
        low = changed * (self._seed * MULTIPLIER[stored.dtype] % (1 << 31))  # of zero: zero
        low >>= 8 * stored.element_size() - 12
        low &= mask
        changed |= low
        retained = ~stored.isfinite()
        if self._retains_exact and exact:
            retained |= (bits & ((1 << EXACT_BITS[stored.dtype]) - 1)) == 0
            retained |= torch.isin(stored.abs(), self._constants.to(stored.dtype))
        bits.copy_(torch.where(retained, bits, changed))


def perturbed_runs(
    graph: Graph, seed: int, manner: str, run: Callable[[Perturbation], Result]
) -> Iterator[Result]:
    """Yield the results of runs of a graph, each with its own perturbation."""
    for number in range(RUNS):
        try:
            yield run(Perturbation(graph, seed + number, manner))
        except IrgraphError:
            continue  # a size or an index depends on values that a rounding changes


def deviation(reference: Torch, others: Sequence[Torch]) -> Torch:
    """Return the largest deviation of each element from a reference in other runs.

    It is infinite for elements that are nan or infinite in some runs only, and for integers that
    change.
    """
    largest = torch.zeros(reference.shape, dtype=torch.float64)
    for other in others:
        if other.shape != reference.shape:
            return torch.full_like(largest, torch.inf)
        if not (reference.is_floating_point() or reference.is_complex()):
            distance = torch.where(other != reference, torch.inf, 0.0).double()
        else:
            distance = (other - reference).abs().double()
            equal = (other == reference) | (other.isnan() & reference.isnan())
            distance = distance.where(~equal, 0.0).nan_to_num(nan=torch.inf, posinf=torch.inf)
        largest = torch.maximum(largest, distance)
    return largest * MAX_DEVIATION_FACTOR
