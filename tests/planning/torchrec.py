"""The cost model of TorchRec's planner, from its documentation and source, as a second opinion.

Times in milliseconds, bytes over bytes a millisecond (torchrec/distributed/planner/constants.py and
shard_estimators.py, BSD-3-Clause; formulas only). Batches are per rank; ids take 8 bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

GIB = 1024**3 / 1000
"""Bytes a millisecond of one GiB a second, as TorchRec divides."""

HBM, DDR, INTRA, INTER = 897 * GIB, 51 * GIB, 600 * GIB, 12.5 * GIB
CACHED = 0.2
"""Share of rows in the cache of unified memory, if nothing is said."""

KERNELS = {
    "dense": 0.5 * HBM,
    "fused": 1 * HBM,
    "fused_uvm": DDR / 10,
    "fused_uvm_caching": (CACHED * HBM + (1 - CACHED) * DDR) / 10,
}
BATCHED_COPY, ELEMENTWISE = 2.455, 9.22


@dataclass(frozen=True)
class Perf:
    """What one shard costs, forward and backward."""

    forward: float
    forward_comms: float
    backward: float
    backward_comms: float

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.forward_comms + self.backward_comms


@dataclass(frozen=True)
class Shard:
    """A table, or a part of its columns, among ranks of one machine or several."""

    rows: int
    columns: int
    pooling: float
    batch: int
    ranks: int
    local: int
    size: int = 4

    @property
    def bags(self) -> float:
        """Bytes of the bags of all ranks."""
        return self.batch * self.ranks * self.columns * self.size

    @property
    def link(self) -> float:
        return INTRA if self.ranks <= self.local else INTER


def perf(shard: Shard, scheme: str, kernel: str) -> Perf:
    """Return the cost of one shard under a sharding type, on a compute kernel."""
    if scheme == "data_parallel":
        return _copied(shard, KERNELS[kernel])
    if scheme in ("row_wise", "table_row_wise"):
        return _by_row(shard, KERNELS[kernel])
    return _whole(shard, KERNELS[kernel])


def _whole(s: Shard, bandwidth: float) -> Perf:
    """Tables, columns of tables: bags by an all-to-all; narrow rows waste lanes."""
    lookups = s.batch * s.pooling * s.ranks
    moved = math.ceil(lookups * 8) + lookups * max(s.columns, 32) * s.size + s.bags
    penalty = 1.0 if s.columns >= 128 else 1.15 if s.columns >= 64 else 1.75
    forward, comms = moved * penalty / bandwidth, s.bags / s.link
    return Perf(forward, comms, forward * 2, comms)


def _by_row(s: Shard, bandwidth: float) -> Perf:
    """Rows on all ranks (of one machine here): bags by a reduce-scatter, copied in batches back."""
    lookups = s.batch * s.pooling
    moved = math.ceil(lookups * 8) + lookups * s.columns * s.size + s.bags
    forward, comms = moved / bandwidth, s.bags / s.link
    return Perf(forward, comms, forward * 2, comms + s.bags * BATCHED_COPY / bandwidth)


def _copied(s: Shard, bandwidth: float) -> Perf:
    """A copy on every rank: gradients by an all-reduce between machines, then the optimizer."""
    lookups, table = s.batch * s.pooling, s.rows * s.columns * s.size
    moved = math.ceil(lookups * 8) + lookups * s.columns * s.size + s.batch * s.columns * s.size
    forward, hosts = moved / bandwidth, min(s.ranks / s.local, 2)
    reduced = table * (2 * hosts - 1) / hosts / (INTER * s.local)
    reduced *= 2 if s.ranks > 2 * s.local else 1
    return Perf(forward, 0, forward * 2, reduced + table * ELEMENTWISE / bandwidth)
