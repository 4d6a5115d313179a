"""Sweeps of networks' layers: every call runs, and has a price."""

from __future__ import annotations

import pytest
import torch

from costmodels.benchmarks.bench import Bench, Case
from costmodels.benchmarks.captured import captured
from costmodels.benchmarks.networks import SWEEPS
from irgraph.backend import backend
from irgraph.ir.cost import PriceOptions

SIZES = {
    "batch": 2, "channels": 16, "out": 16, "side": 28, "window": 3, "stride": 2,
    "steps": 4, "inputs": 32, "hidden": 32, "rows": 64, "cols": 128, "heads": 2, "length": 64,
    "dim": 64, "lookups": 32, "tensors": 2, "elements": 100, "m": 64, "n": 64, "k": 64,
}  # fmt: skip

TYPES = {"scaled": "bf16", "grouped": "bf16"}
"""Types of results, by sweep; others are in f32."""

OPS = [(sweep, op) for sweep, cases in SWEEPS.items() for op in cases.ops]


@pytest.mark.parametrize(("sweep", "op"), OPS)
def test_a_layer_runs_and_has_a_price(sweep: str, op: str) -> None:
    dtype = TYPES.get(sweep, "f32")
    sizes = {name: SIZES[name] for name in SWEEPS[sweep].ranges}
    case = Case(sweep, op, dtype, sizes)
    SWEEPS[sweep].ops[op](Bench(torch, "cpu", case))()
    row = {"family": sweep, "op": op, "dtype": dtype, "sizes": sizes, "indices": "", "key": op}
    graph = captured(row)
    kernels = backend().price(graph, "h100-80gb-hbm3", PriceOptions()).kernels
    assert sum(kernel.time for group in kernels.values() for kernel in group) > 0


def test_sizes_are_multiples_as_declared() -> None:
    for name, sweep in SWEEPS.items():
        for case in sweep.plan(name, 30):
            for size, choices in sweep.multiples.items():
                assert any(case.sizes[size] % choice == 0 for choice in choices)
