"""Sweeps over sizes: what to measure of a family, sampled so that real models lie inside.

Sizes are drawn log-uniformly, since times and their errors are relative. The shapes that real
models need and a sample would miss come first, in every data type: products with one column,
thirteen inputs of a click log, pairwise interactions of 27 vectors, tables from three rows to forty
million.
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
"""How indices of rows are drawn, as ``costmodels.lookups.indices.parse_distribution`` reads it."""

MATRIX: Mapping[str, Range] = {"rows": (4, 2**16), "cols": (2, 2**13)}
"""Ranges of ops of one matrix."""


class Sweep(Struct, frozen=True):
    """A family's cases.

    Attributes:
        ops: what prepares the call of each op, by the op's name.
        ranges: least and greatest value of each size.
        needed: sizes that must be among the cases.
        most: greatest product of all sizes, against runs of minutes.
        indices: ways to draw indices; one empty text where there are none.
    """

    ops: Mapping[str, Maker]
    ranges: Mapping[str, Range]
    needed: tuple[tuple[int, ...], ...] = ()
    max_product: float = 2.0**38
    indices: tuple[str, ...] = field(default=("",))

    def plan(
        self, name: str, count: int, seed: int = 0, dtypes: tuple[str, ...] = ("f32",)
    ) -> list[Case]:
        """Return the first cases of the sweep of that name, each once; equal seeds, equal cases."""
        cases: dict[str, Case] = {}
        for case in islice(self._cases(name, dtypes, seed), 20 * count):
            cases.setdefault(case.key, case)
            if len(cases) == count:
                break
        return list(cases.values())

    def _cases(self, name: str, dtypes: tuple[str, ...], seed: int) -> Iterator[Case]:
        """Yield the needed cases, then sampled ones without end."""
        ops = tuple(self.ops)
        for values in self.needed:
            sizes = dict(zip(self.ranges, values, strict=True))
            for op, dtype, kind in product(ops, dtypes, self.indices):
                yield Case(name, op, dtype, sizes, kind)
        rng = np.random.default_rng([seed, *name.encode()])
        while True:
            sizes = {n: _log_uniform(rng, low, high) for n, (low, high) in self.ranges.items()}
            if np.prod([float(v) for v in sizes.values()]) > self.max_product:
                continue
            op, dtype, kind = (str(rng.choice(c)) for c in (ops, dtypes, self.indices))
            yield Case(name, op, dtype, sizes, kind)


def _log_uniform(rng: np.random.Generator, low: int, high: int) -> int:
    return round(float(np.exp(rng.uniform(np.log(low), np.log(high)))))


Function: TypeAlias = Callable[[Any, Array], Any]
"""An op of one matrix: torch (the module) and the matrix in, the result out."""


def forward(functions: Mapping[str, Function]) -> dict[str, Maker]:
    """Return what prepares ops over a matrix of ``rows`` and ``cols``, by name."""

    def maker(function: Function) -> Maker:
        def make(bench: Bench) -> Call:
            matrix = bench.values(bench["rows"], bench["cols"])
            return lambda: function(bench.torch, matrix)

        return make

    return {name: maker(function) for name, function in functions.items()}


def backward(functions: Mapping[str, Function]) -> dict[str, Maker]:
    """Return what prepares the gradients of ops over such a matrix, as ``NAME_backward``."""

    def maker(function: Function) -> Maker:
        def make(bench: Bench) -> Call:
            matrix = bench.values(bench["rows"], bench["cols"], grad=True)
            return gradient(bench, function(bench.torch, matrix), matrix)

        return make

    return {f"{name}_backward": maker(function) for name, function in functions.items()}
