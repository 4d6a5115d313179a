"""A case to measure, and the tensors of its call, within the free memory of the device."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from costmodels.lookups.popularity import rows_of
from costmodels.lookups.rules import parse_distribution
from irgraph.ir.dtypes import TORCH

DTYPES = ("f32", "f16", "bf16", "f64")
"""Element types that kernels are measured in."""

Torch = Any
Array = Any
"""A torch tensor."""

MAX_MEMORY_SHARE = 0.4
"""Largest share of the free memory for a case's own tensors; the rest is for results of ops."""

MAX_CPU_DRAWS = 2**26
"""Maximum number of elements of a tensor that a CPU draws at random; larger ones are filled."""

ROW_MULTIPLIER = 2_654_435_761
"""Odd factor that spreads ranks over a table's rows (Knuth's multiplicative hash), so that popular
rows are not adjacent."""


class Case(Struct, frozen=True):
    """One kernel to measure.

    Attributes:
        family: name of the sweep.
        op: name of the op in the sweep.
        dtype: ``f32``, ``f16``, ``bf16`` or ``f64``.
        sizes: integers by name.
        indices: distribution that indices are drawn from, ``""`` for ops without indices.
    """

    family: str
    op: str
    dtype: str
    sizes: Mapping[str, int]
    indices: str = ""

    @property
    def key(self) -> str:
        """Text that identifies the case: equal for equal cases."""
        sizes = ",".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"{self.op} {self.dtype} {sizes} {self.indices}".strip()


class Bench:
    """Makes tensors of a case on a device.

    On ``meta`` nothing is allocated: the calls can then be captured instead of timed.
    """

    def __init__(self, torch: Torch, device: str, case: Case, seed: int = 0) -> None:
        self.torch = torch
        self.device = device
        self.case = case
        self.dtype = getattr(torch, TORCH[case.dtype])
        self.random = np.random.default_rng(seed)
        self.left = math.inf if device == "meta" else MAX_MEMORY_SHARE * free_memory(torch, device)

    def __getitem__(self, size: str) -> int:
        """Return one of the case's sizes."""
        return self.case.sizes[size]

    def values(self, *shape: int, grad: bool = False) -> Array:
        """Return a tensor of random numbers of the case's data type.

        On a CPU, a tensor of more than ``MAX_CPU_DRAWS`` elements is filled with 0.5.

        Raises:
            MemoryError: the case needs more than the device has free.
        """
        count = math.prod(shape)
        self.spend(count * self.dtype.itemsize)
        if self.device == "cpu" and count > MAX_CPU_DRAWS:
            tensor = self.torch.full(shape, 0.5, dtype=self.dtype)
        else:
            tensor = self.torch.rand(*shape, device=self.device, dtype=self.dtype)
        return tensor.requires_grad_() if grad else tensor

    def spend(self, nbytes: float) -> None:
        """Subtract bytes about to be allocated. Raises ``MemoryError`` if too few are left."""
        self.left -= nbytes
        if self.left < 0:
            raise MemoryError(f"needs more than {MAX_MEMORY_SHARE:.0%} of the free memory")

    def rows(self, row_count: int, count: int) -> Array:
        """Return ``count`` row numbers below ``row_count``, drawn from the case's distribution.

        Groups of the distribution are drawn first, then rows evenly within them; the ranks are then
        spread over the table.
        """
        self.spend(24.0 * count)
        if self.device == "meta":
            return self.torch.zeros(count, dtype=self.torch.long, device="meta")
        groups = rows_of(parse_distribution(self.case.indices or "uniform"), row_count)
        ends = np.cumsum(groups.counts * groups.chances)
        group_index = np.searchsorted(ends, self.random.random(count) * ends[-1])
        group_index = np.minimum(group_index, len(ends) - 1)
        starts = np.cumsum(groups.counts) - groups.counts
        ranks = starts[group_index] + np.floor(
            self.random.random(count) * groups.counts[group_index]
        )
        ranks = np.minimum(ranks.astype(np.int64), row_count - 1)
        row_numbers = (
            ranks * ROW_MULTIPLIER % row_count
            if math.gcd(ROW_MULTIPLIER, row_count) == 1
            else ranks
        )
        return self.torch.from_numpy(row_numbers).to(self.device)


Call: TypeAlias = Callable[[], object]
"""Function to time, without arguments; all of its tensors are already on the device."""

Maker: TypeAlias = Callable[[Bench], Call]
"""Function that allocates the tensors of a case and returns its call."""


def gradient(bench: Bench, result: Array, *sources: Array) -> Call:
    """Return the call of a result's gradient with respect to its sources."""
    output_gradient = bench.torch.ones_like(result)
    return lambda: bench.torch.autograd.grad(result, sources, output_gradient, retain_graph=True)


def free_memory(torch: Torch, device: str) -> float:
    """Return the free memory of a device in bytes, an estimate if it is not reported."""
    if device.startswith("cuda"):
        with torch.cuda.device(device):
            return float(torch.cuda.mem_get_info()[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")) / 2
    fields = dict(line.split(":") for line in lines)
    return float(fields["MemAvailable"].split()[0]) * 1024
