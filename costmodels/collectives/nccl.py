"""NCCL's own model of its collectives, for links and layouts that nobody measured.

NCCL picks an algorithm and a protocol for a collective by ``latency + bytes / bandwidth``, with
constants for each (``src/graph/tuning.cc`` of NVIDIA/nccl, BSD-3-Clause). This is that model with
the bandwidths of a fabric in place of those of NCCL's search of the topology, a launch on top, and
two additions: an all-to-all, which NCCL does not model, and the network as a limit of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from math import ceil, log2
from typing import Literal

import msgspec

LAUNCH = 1.5
"""Microseconds of a collective beyond its latency in NCCL's model: the median over the smallest
messages of all measured tables."""

PROTOCOLS = 3
"""LL, LL128 and Simple, in this order everywhere."""
LL, LL128, SIMPLE = range(PROTOCOLS)
BASE = {"ring": (6.6, 14.0, 8.4), "tree": (6.8, 14.0, 8.4)}
"""Base latencies of the protocols, microseconds."""
NVLINK = {"ring": (0.6, 1.9, 3.4), "tree": (0.6, 1.25, 4.0)}
PCIE = {"ring": (1.0, 2.5, 5.7), "tree": (1.0, 1.9, 4.0)}
NETWORK = {"ring": (2.7, 4.0, 14.0), "tree": (5.0, 8.5, 14.0)}
"""Latencies of a hop, microseconds."""
OVERHEAD = (1.0, 1.0, 3.0)
"""What a network costs a step of a ring at the least, microseconds."""
PLATEAU = 1.4
"""Latencies of a ring with the protocol Simple over several machines, in an all-reduce."""
LL_LIMIT = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}
"""Greatest bus bandwidth of the protocol LL on one machine, GB/s."""
NVLS_LATENCY, NVLS_HOP = 25.0, 20.9
"""Latency of reductions in the switch on one machine, and what a tree of machines adds."""
NVLS = {"hopper": 0.85, "blackwell": 0.74}
"""Share of the links that reductions in the switch (NVLink SHARP) reach."""
NVLS_RANKS = 3
"""Ranks of a machine from which on reductions are made in the switch."""
TREE = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6,
     0.7, 0.8, 0.9, 0.9),
)  # fmt: skip
"""Share of its bandwidth that a tree reaches, by powers of two from 64 bytes on; 1 beyond."""
EXCHANGE = 0.9
"""Share of the links that an all-to-all reaches: what point-to-point copies over NVLink do."""

KNOWN = ("all_reduce", "all_gather", "all_gather_base", "reduce_scatter", "all_to_allv",
         "broadcast", "reduce")  # fmt: skip
"""Collectives that ``tuned`` knows."""


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links between the ranks of a step: what ships for each platform, or a file of one's own.

    Attributes:
        name: what the report calls it.
        architecture: of the cards: ``volta``, ``ampere``, ``hopper`` or ``blackwell``.
        link_gbs: GB/s that a card sends to others of its machine, in one direction.
        nvlink: whether those links are NVLink; else PCIe.
        switch: whether a switch can reduce (NVLink SHARP).
        nic_gbs: GB/s that each card sends into the network; 0: there is none, or it is not known.
        like: a platform whose measured times hold within a machine of this fabric.
        source: where the figures come from.
    """

    name: str
    architecture: Literal["volta", "ampere", "hopper", "blackwell"]
    link_gbs: float
    nvlink: bool = True
    switch: bool = False
    nic_gbs: float = 0.0
    like: str = ""
    source: str = ""


class Ring(msgspec.Struct, frozen=True):
    """Who takes part in a collective: ``ranks`` on machines of ``local`` each, over a fabric."""

    ranks: int
    local: int
    fabric: Fabric

    @property
    def machines(self) -> int:
        """How many machines."""
        return ceil(self.ranks / self.local)

    @property
    def network(self) -> float:
        """GB/s that a machine sends into the network, without bound where there is one alone."""
        return self.fabric.nic_gbs * self.local if self.machines > 1 else float("inf")

    @property
    def bus(self) -> float:
        """GB/s that a ring carries over each of its links."""
        return min(self.fabric.link_gbs if self.local > 1 else float("inf"), self.network)


def tuned(collective: str, ring: Ring, nbytes: float, launch: float = LAUNCH) -> float:
    """Return the microseconds of a collective (one of ``KNOWN``) by NCCL's model."""
    if collective == "all_to_allv":
        return launch + _exchange(ring, nbytes)
    algorithms = ("ring", "tree") if collective == "all_reduce" else ("ring",)
    hops = NVLINK if ring.fabric.nvlink else PCIE
    protocols = (LL, LL128, SIMPLE) if ring.fabric.nvlink else (LL, SIMPLE)
    times = [
        (_ring if algorithm == "ring" else _tree)(collective, ring, nbytes, protocol, hops)
        for algorithm, protocol in product(algorithms, protocols)
    ]
    if collective == "all_reduce" and ring.fabric.switch and ring.local >= NVLS_RANKS:
        times.append(_switched(ring, nbytes))
    return launch + min(times)


def _ring(
    collective: str, ring: Ring, nbytes: float, protocol: int, hops: Mapping[str, Sequence[float]]
) -> float:
    twice = 2 if collective == "all_reduce" else 1
    steps, between = twice * (ring.ranks - 1), twice * (ring.machines - 1)
    latency, passed = BASE["ring"][protocol], hops["ring"][protocol]
    bus = ring.bus
    if protocol == LL:
        bus = min(LL_LIMIT[ring.fabric.architecture], bus * 0.5)
    elif protocol == LL128:
        bus *= 0.92
    if ring.machines > 1:
        passed = max(passed, OVERHEAD[protocol])
    latency += (steps - between) * passed + between * NETWORK["ring"][protocol]
    if ring.machines > 1 and protocol == SIMPLE and twice == 2:
        latency *= PLATEAU
    share = 1.0 if collective in ("broadcast", "reduce") else steps / ring.ranks
    return latency + share * nbytes / bus / 1e3


def _tree(
    collective: str, ring: Ring, nbytes: float, protocol: int, hops: Mapping[str, Sequence[float]]
) -> float:
    """An all-reduce up and down a chain of each machine and a double tree of machines."""
    one = ring.machines == 1
    bus = 0.92 * (ring.fabric.link_gbs if ring.local > 1 else ring.network)
    if protocol == LL:
        bus = min(bus / 3.8, LL_LIMIT[ring.fabric.architecture])
    elif protocol == LL128:
        bus *= 7 / 9 if one else 120 / 128
    correction, at = TREE[protocol], int(log2(max(nbytes / 64, 1.0)))
    rate = min(0.5 * bus, 0.92 * _between(ring)) * (correction[at] if at < len(correction) else 1)
    inside = (ring.local - 1) * hops["tree"][protocol]
    across = log2(ring.machines) * NETWORK["tree"][protocol]
    return BASE["tree"][protocol] + 2 * (inside + across) + nbytes / rate / 1e3


def _switched(ring: Ring, nbytes: float) -> float:
    """An all-reduce in the switch of each machine, and over a tree of machines."""
    rate = min(NVLS[ring.fabric.architecture] * ring.fabric.link_gbs, _between(ring))
    return NVLS_LATENCY + (NVLS_HOP if ring.machines > 1 else 0.0) + nbytes / rate / 1e3


def _between(ring: Ring) -> float:
    """GB/s of messages that a tree of machines reduces: each sends up and down its edges."""
    machines = ring.machines
    return ring.network * machines / (2 * (machines - 1)) if machines > 1 else float("inf")


def _exchange(ring: Ring, nbytes: float) -> float:
    """An all-to-all: what stays within machines and what leaves them go side by side."""
    inside = nbytes * (ring.ranks - 1) / ring.ranks / (EXCHANGE * ring.fabric.link_gbs)
    outside, hops = 0.0, 0.0
    if ring.machines > 1:
        leaving = ring.ranks - ring.local
        outside = nbytes * leaving / ring.ranks / ring.fabric.nic_gbs
        hops = leaving * NETWORK["ring"][LL]
    return BASE["ring"][LL] + hops + max(inside, outside) / 1e3
