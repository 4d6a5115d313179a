"""What to measure: sizes of each family's kernels, sampled so that real models lie inside.

Sizes are drawn log-uniformly, since times and their errors are relative; the shapes that real
models need and a sample would miss come first, in every data type: products with one column,
thirteen inputs of a click log, pairwise interactions of 27 vectors, tables from three rows to forty
million.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice, product

import numpy as np

Range = tuple[int, int]

DISTRIBUTIONS = ("uniform", "zipf:0.8", "zipf:1.05", "zipf:1.3")
"""How indices of rows are drawn, as ``costmodels.indices.parse_distribution`` reads it."""


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
            for op, dtype, kind in product(self.ops, dtypes, self.indices):
                yield Case(family, op, dtype, sizes, kind)
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
_TABLES = (
    (3, 128, 2048, 1, 1), (1_000_000, 64, 2048, 100, 1), (40_000_000, 16, 2048, 1, 1),
    (100_000, 64, 512, 10, 26), (64, 16, 64, 2, 2),
)  # fmt: skip
_IMAGES = {"batch": (1, 64), "channels": (4, 1024), "out": (4, 1024), "side": (4, 128),
           "window": (1, 5)}  # fmt: skip
_ATTENTION = {"batch": (1, 32), "heads": (1, 32), "length": (16, 4096), "dim": (16, 128)}

TRAINED_AS: Mapping[str, str] = {"linear": "gemm", "bmm": "gemm", "norm": "layer_norm"}
"""What ``irgraph train`` calls families of kernels whose sweeps have other names."""

SWEEPS: Mapping[str, Sweep] = {
    "linear": Sweep(
        ("linear", "addmm", "input_gradient", "weight_gradient"),
        {"batch": (1, 1), "m": (4, 2**14), "n": (1, 2**14), "k": (1, 2**14)},
        _DLRM_PRODUCTS,
    ),
    "bmm": Sweep(
        ("bmm", "baddbmm", "bmm_transposed"),
        {"batch": (2, 2**12), "m": (4, 2**11), "n": (2, 2**11), "k": (2, 2**11)},
        _DLRM_BATCHED,
    ),
    "elementwise": Sweep(
        ("add", "mul", "add_scalar", "relu", "sigmoid", "tanh", "gelu", "silu", "add_row",
         "add_", "relu_backward", "gelu_backward", "tanh_backward", "sigmoid_backward"),
        _ROWS_COLS,
    ),
    "softmax": Sweep(
        ("softmax", "log_softmax", "softmax_backward", "log_softmax_backward"), _ROWS_COLS
    ),
    "norm": Sweep(
        ("layer_norm", "batch_norm", "group_norm", "layer_norm_backward", "batch_norm_backward",
         "group_norm_backward"),
        {"rows": (32, 2**15), "cols": (16, 2**12)},
    ),
    "reduce": Sweep(("sum_rows", "sum_cols", "sum_all", "max_cols", "cumsum"), _ROWS_COLS),
    "transpose": Sweep(
        ("transpose_copy", "permute_copy"),
        {"batch": (1, 2**12), "rows": (4, 2**11), "cols": (4, 2**11)},
    ),
    "concat": Sweep(
        ("cat", "split_copy"), {"parts": (2, 160), "rows": (64, 2**12), "cols": (8, 256)}
    ),
    "index": Sweep(
        ("tril_index", "tril_index_backward"), {"batch": (64, 2**12), "side": (4, 64)},
        ((2048, 27), (2048, 9)),
    ),
    "scatter": Sweep(
        ("index_select", "gather", "index_add", "scatter_add"),
        {"rows": (64, 2**20), "dim": (1, 256), "count": (64, 2**18)}, (), 2.0**44, DISTRIBUTIONS,
    ),
    "embedding": Sweep(
        ("embedding_bag_sum", "embedding_bag_mean", "embedding_bag_max", "embedding_bag_weighted",
         "embedding_bag_backward", "embedding_bag_backward_sparse", "embedding_bag_backward_max",
         "embedding", "embedding_backward"),
        {"rows": (3, 40_000_000), "dim": (8, 256), "batch": (64, 2**12), "lookups": (1, 128),
         "tables": (1, 26)},
        _TABLES, 2.0**44, DISTRIBUTIONS,
    ),
    "conv2d": Sweep(
        ("conv2d", "conv2d_depthwise", "conv2d_grouped", "conv2d_transposed", "conv2d_backward"),
        _IMAGES, ((2, 16, 32, 28, 3), (32, 64, 64, 56, 3)), 2.0**33,
    ),
    "conv1d": Sweep(
        ("conv1d", "conv1d_depthwise"),
        {"batch": (1, 64), "channels": (4, 512), "out": (4, 512), "side": (16, 2**12),
         "window": (1, 9)},
        (), 2.0**36,
    ),
    "pool": Sweep(
        ("max_pool", "avg_pool", "max_pool_backward", "upsample_bilinear"),
        {"batch": (1, 64), "channels": (4, 512), "side": (8, 128)},
    ),
    "attention": Sweep(
        ("attention", "attention_causal", "attention_backward"), _ATTENTION, (), 2.0**31
    ),
    "recurrent": Sweep(
        ("lstm", "gru"),
        {"batch": (1, 256), "steps": (4, 256), "inputs": (8, 512), "hidden": (8, 512)}, (), 2.0**31,
    ),
    "sort": Sweep(("sort", "topk"), _ROWS_COLS, (), 2.0**27),
    "dropout": Sweep(("dropout", "dropout_backward"), _ROWS_COLS),
    "loss": Sweep(("cross_entropy", "mse_loss", "bce"), _ROWS_COLS),
    "fill": Sweep(("zero_", "rand"), {"elements": (16, 2**28)}),
    "optimizer": Sweep(
        ("sgd", "sgd_foreach", "sgd_fused", "adam", "adam_foreach", "adam_fused"),
        {"tensors": (1, 64), "elements": (16, 2**20)},
    ),
    "copy": Sweep(
        ("to_device", "to_device_pinned", "to_host", "to_host_pinned", "on_device", "cast"),
        {"bytes": (64, 2**28)},
    ),
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
