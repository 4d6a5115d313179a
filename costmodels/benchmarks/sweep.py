"""Sweeps over sizes: the cases of a family, sampled over the range of sizes of real models.

Sizes are drawn log-uniformly, since errors of times are relative. Shapes that real models need and
a sample would miss come first, in every data type: products with one column, thirteen inputs of a
click log, pairwise interactions of 27 vectors, tables from three rows to forty million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, product
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct, field

from costmodels.benchmarks.bench import Array, Bench, Call, Case, Maker, gradient

Range = tuple[int, int]

DISTRIBUTIONS = ("uniform", "zipf:0.8", "zipf:1.05", "zipf:1.3")
"""Distributions of row indices, in the syntax of ``costmodels.lookups.rules``."""

MATRIX: Mapping[str, Range] = {"rows": (4, 2**16), "cols": (2, 2**13)}
"""Ranges of the sizes of an op of one matrix."""


class Sweep(Struct, frozen=True):
    """A family's cases.

    Attributes:
        ops: function that prepares the call of each op, by the op's name.
        ranges: minimum and maximum of each size.
        needed: sizes that must be among the cases.
        max_product: maximum product of all sizes; it prevents runs of minutes.
        indices: distributions to draw indices from; one empty text if the ops have none.
        multiples: numbers, by size: a drawn size is rounded up to a multiple of one of them.
    """

    ops: Mapping[str, Maker]
    ranges: Mapping[str, Range]
    needed: tuple[tuple[int, ...], ...] = ()
    max_product: float = 2.0**38
    indices: tuple[str, ...] = field(default=("",))
    multiples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def plan(
        self, name: str, count: int, seed: int = 0, dtypes: tuple[str, ...] = ("f32",)
    ) -> list[Case]:
        """Return the first ``count`` distinct cases of the sweep; equal seeds give equal cases."""
        cases: dict[str, Case] = {}
        for case in islice(self._cases(name, dtypes, seed), 20 * count):
            cases.setdefault(case.key, case)
            if len(cases) == count:
                break
        return list(cases.values())

    def _cases(self, name: str, dtypes: tuple[str, ...], seed: int) -> Iterator[Case]:
        """Yield the needed cases, then an endless sequence of sampled ones."""
        ops = tuple(self.ops)
        for values in self.needed:
            sizes = dict(zip(self.ranges, values, strict=True))
            for op, dtype, kind in product(ops, dtypes, self.indices):
                yield Case(name, op, dtype, sizes, kind)
        rng = np.random.default_rng([seed, *name.encode()])
        while True:
            sizes = {n: _log_uniform(rng, low, high) for n, (low, high) in self.ranges.items()}
            for size, choices in self.multiples.items():
                step = int(rng.choice(choices))
                sizes[size] = -(-sizes[size] // step) * step
            if np.prod([float(v) for v in sizes.values()]) > self.max_product:
                continue
            op, dtype, kind = (str(rng.choice(c)) for c in (ops, dtypes, self.indices))
            yield Case(name, op, dtype, sizes, kind)


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


Function: TypeAlias = Callable[[Any, Array], Any]
"""An op of one matrix: torch (the module) and the matrix in, the result out."""


def forward(functions: Mapping[str, Function]) -> dict[str, Maker]:
    """Return the makers of ops over a matrix of ``rows`` and ``cols``, by name of the op."""

    def maker(function: Function) -> Maker:
        def make(bench: Bench) -> Call:
            matrix = bench.values(bench["rows"], bench["cols"])
            return lambda: function(bench.torch, matrix)

        return make

    return {name: maker(function) for name, function in functions.items()}


def backward(functions: Mapping[str, Function]) -> dict[str, Maker]:
    """Return the makers of the gradients of ops over such a matrix, as ``NAME_backward``."""

    def maker(function: Function) -> Maker:
        def make(bench: Bench) -> Call:
            matrix = bench.values(bench["rows"], bench["cols"], grad=True)
            return gradient(bench, function(bench.torch, matrix), matrix)

        return make

    return {f"{name}_backward": maker(function) for name, function in functions.items()}
