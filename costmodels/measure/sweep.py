"""What to measure: sizes of each family's kernels, sampled so that real models lie inside.

Sizes are drawn log-uniformly, since times and their errors are relative; the shapes that real
models need and a sample would miss come first: products with one column, thirteen inputs of a
click log, pairwise interactions of 27 vectors, tables from three rows to forty million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

Sizes = dict[str, int]
Range = tuple[int, int]

DISTRIBUTIONS = ("uniform", "zipf")
"""How indices of embedding rows are drawn: evenly, or a few rows often (exponent 1.05)."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kernel to measure.

    Attributes:
        family: a key of ``SWEEPS``.
        op: name of the op, a key of ``costmodels.measure.ops.OPS``.
        dtype: ``f32``, ``f16``, ``bf16`` or ``f64``.
        sizes: whole numbers by name.
        indices: how indices are drawn, for ops that have some.
    """

    family: str
    op: str
    dtype: str
    sizes: Mapping[str, int]
    indices: str = ""

    @property
    def key(self) -> str:
        """A text that is the same for equal cases."""
        sizes = ",".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"{self.op} {self.dtype} {sizes} {self.indices}".strip()


@dataclass(frozen=True, slots=True)
class Sweep:
    """A family's cases.

    Attributes:
        ops: names of ops.
        ranges: least and greatest value of each size.
        needed: sizes that must be among the cases.
        most: greatest product of all sizes, against runs of minutes.
        indices: ways to draw indices; empty where there are none.
    """

    ops: tuple[str, ...]
    ranges: Mapping[str, Range]
    needed: tuple[tuple[int, ...], ...] = ()
    most: float = 2.0**38
    indices: tuple[str, ...] = field(default=("",))

    def cases(self, family: str, dtypes: tuple[str, ...], seed: int) -> Iterator[Case]:
        """Yield the needed cases, then sampled ones without end; equal seeds, equal cases."""
        for values in self.needed:
            sizes = dict(zip(self.ranges, values, strict=True))
            for op in self.ops:
                for kind in self.indices:
                    yield Case(family, op, dtypes[0], sizes, kind)
        rng = np.random.default_rng([seed, *family.encode()])
        while True:
            sizes = {n: _between(rng, least, most) for n, (least, most) in self.ranges.items()}
            if np.prod([float(v) for v in sizes.values()]) > self.most:
                continue
            op, dtype, kind = (str(rng.choice(c)) for c in (self.ops, dtypes, self.indices))
            yield Case(family, op, dtype, sizes, kind)


def _between(rng: np.random.Generator, least: int, most: int) -> int:
    return round(float(np.exp(rng.uniform(np.log(least), np.log(most)))))


_ROWS_COLS = {"rows": (4, 2**16), "cols": (2, 2**13)}
_DLRM_PRODUCTS = ((1, 2048, 1, 1024), (1, 2048, 512, 13), (1, 2048, 1024, 1024), (1, 64, 16, 8))
_DLRM_BATCHED = ((2048, 27, 27, 128), (2048, 9, 9, 64), (2048, 27, 128, 27), (4, 8, 8, 8))

SWEEPS: Mapping[str, Sweep] = {
    "linear": Sweep(
        ("linear", "addmm"),
        {"batch": (1, 1), "m": (4, 2**14), "n": (1, 2**14), "k": (1, 2**14)},
        _DLRM_PRODUCTS,
    ),
    "bmm": Sweep(
        ("bmm", "baddbmm"),
        {"batch": (2, 2**12), "m": (4, 2**11), "n": (2, 2**11), "k": (2, 2**11)},
        _DLRM_BATCHED,
    ),
    "elementwise": Sweep(
        ("add", "mul", "add_scalar", "relu", "sigmoid", "tanh", "gelu", "add_row"), _ROWS_COLS
    ),
    "softmax": Sweep(("softmax", "log_softmax"), _ROWS_COLS),
    "norm": Sweep(("layer_norm", "batch_norm"), {"rows": (32, 2**15), "cols": (16, 2**12)}),
    "reduce": Sweep(("sum_rows", "sum_cols", "sum_all"), _ROWS_COLS),
    "transpose": Sweep(
        ("transpose_copy",), {"batch": (1, 2**12), "rows": (4, 2**11), "cols": (4, 2**11)}
    ),
    "concat": Sweep(
        ("cat", "split_copy"), {"parts": (2, 32), "rows": (64, 2**12), "cols": (8, 256)}
    ),
    "index": Sweep(
        ("tril_index", "tril_index_backward"), {"batch": (64, 2**12), "side": (4, 64)},
        ((2048, 27), (2048, 9)),
    ),
    "embedding": Sweep(
        ("embedding_bag_sum", "embedding_bag_mean", "embedding_bag_max", "embedding_bag_backward"),
        {"rows": (3, 40_000_000), "dim": (8, 256), "batch": (64, 2**12), "lookups": (1, 128)},
        ((3, 128, 2048, 1), (1_000_000, 64, 2048, 100), (64, 16, 64, 2)),
        2.0**44,
        DISTRIBUTIONS,
    ),
    "conv2d": Sweep(
        ("conv2d", "conv2d_depthwise"),
        {"batch": (1, 64), "channels": (4, 1024), "out": (4, 1024), "side": (4, 128),
         "window": (1, 5)},
        ((2, 16, 32, 28, 3),),
        2.0**33,
    ),
    "dropout": Sweep(("dropout",), _ROWS_COLS),
    "optimizer": Sweep(
        ("sgd_foreach", "adam_foreach"), {"tensors": (1, 64), "elements": (16, 2**20)}
    ),
    "copy": Sweep(("to_device", "to_host", "on_device"), {"bytes": (64, 2**28)}),
}  # fmt: skip
"""Sweeps by the name that ``irgraph measure`` takes."""


def plan(family: str, count: int, seed: int = 0, dtypes: tuple[str, ...] = ("f32",)) -> list[Case]:
    """Return a family's first cases, each once."""
    found: dict[str, Case] = {}
    endless: Callable[..., Iterator[Case]] = SWEEPS[family].cases
    for case in islice(endless(family, dtypes, seed), 20 * count):
        found.setdefault(case.key, case)
        if len(found) == count:
            break
    return list(found.values())
