"""NCCL's own model of its collectives, for links and layouts without measurements.

NCCL selects an algorithm and a protocol for a collective by ``latency + bytes / bandwidth``, with
constants for each (``src/graph/tuning.cc`` of NVIDIA/nccl, BSD-3-Clause). This is NCCL's model
with the bandwidths of a fabric instead of the results of NCCL's search of the topology, plus a
launch, and two additions: an all-to-all, which NCCL does not model, and the network as a separate
limit.
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
"""Minimum latency that a network adds to a step of a ring, by protocol, microseconds."""
PLATEAU = 1.4
"""Factor on the latency of a ring with the protocol Simple over several machines, in an
all-reduce."""
LL_LIMIT = {"volta": 39.0, "ampere": 87.7, "hopper": 141.0, "blackwell": 282.0}
"""Maximum bus bandwidth of the protocol LL on one machine, GB/s."""
NVLS_LATENCY, NVLS_HOP = 25.0, 20.9
"""Latency of reductions in the switch of one machine, and the addition for a tree of machines,
microseconds."""
NVLS = {"hopper": 0.85, "blackwell": 0.74}
"""Share of the links' bandwidth that reductions in the switch (NVLink SHARP) reach."""
NVLS_RANKS = 3
"""Minimum ranks of a machine for reductions in the switch."""
TREE = (
    (1, 1, 1, 1, 0.9, 0.8, 0.7, 0.7, 0.7, 0.7, 0.6, 0.5, 0.4, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9),
    (1, 1, 1, 1, 1, 0.9, 0.8, 0.8, 0.8, 0.7, 0.6, 0.6, 0.6, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.9, 0.9),
    (0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.6, 0.6,
     0.7, 0.8, 0.9, 0.9),
)  # fmt: skip
"""Share of its bandwidth that a tree reaches, by protocol and power of two from 64 bytes; 1 above
the last."""
EXCHANGE = 0.9
"""Share of the links' bandwidth that an all-to-all reaches, equal to copies over NVLink."""

COLLECTIVES = ("all_reduce", "all_gather", "all_gather_base", "reduce_scatter", "all_to_allv",
         "broadcast", "reduce")  # fmt: skip
"""Collectives that ``nccl_time`` supports."""


class Fabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The links between the ranks of a step: shipped for each platform, or read from a user's file.

    Attributes:
        name: name in reports.
        architecture: of the cards: ``volta``, ``ampere``, ``hopper`` or ``blackwell``.
        link_gbs: GB/s from a card to the other cards of its machine, in one direction.
        nvlink: whether those links are NVLink; else PCIe.
        switch: whether a switch can reduce (NVLink SHARP).
        nic_gbs: GB/s from each card into the network; 0 if there is no network or it is unknown.
        like: a platform whose measured times are valid within a machine of this fabric.
        source: source of the bandwidths.
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
    """Participants of a collective: ``ranks`` on machines of ``local`` each, over a fabric."""

    ranks: int
    local: int
    fabric: Fabric

    @property
    def machines(self) -> int:
        """Number of machines."""
        return ceil(self.ranks / self.local)

    @property
    def network(self) -> float:
        """GB/s from a machine into the network, infinite if there is only one machine."""
        return self.fabric.nic_gbs * self.local if self.machines > 1 else float("inf")

    @property
    def bus(self) -> float:
        """GB/s of a ring over each of its links."""
        return min(self.fabric.link_gbs if self.local > 1 else float("inf"), self.network)


def nccl_time(collective: str, ring: Ring, nbytes: float, launch: float = LAUNCH) -> float:
    """Return the microseconds of a collective (one of ``COLLECTIVES``) by NCCL's model."""
    if collective == "all_to_allv":
        return launch + _all_to_all_time(ring, nbytes)
    algorithms = ("ring", "tree") if collective == "all_reduce" else ("ring",)
    hops = NVLINK if ring.fabric.nvlink else PCIE
    protocols = (LL, LL128, SIMPLE) if ring.fabric.nvlink else (LL, SIMPLE)
    times = [
        (_ring_time if algorithm == "ring" else _tree_time)(
            collective, ring, nbytes, protocol, hops
        )
        for algorithm, protocol in product(algorithms, protocols)
    ]
    if collective == "all_reduce" and ring.fabric.switch and ring.local >= NVLS_RANKS:
        times.append(_switch_time(ring, nbytes))
    return launch + min(times)


def _ring_time(
    collective: str, ring: Ring, nbytes: float, protocol: int, hops: Mapping[str, Sequence[float]]
) -> float:
    passes = 2 if collective == "all_reduce" else 1
    steps, network_steps = passes * (ring.ranks - 1), passes * (ring.machines - 1)
    latency, hop_latency = BASE["ring"][protocol], hops["ring"][protocol]
    bus = ring.bus
    if protocol == LL:
        bus = min(LL_LIMIT[ring.fabric.architecture], bus * 0.5)
    elif protocol == LL128:
        bus *= 0.92
    if ring.machines > 1:
        hop_latency = max(hop_latency, OVERHEAD[protocol])
    latency += (steps - network_steps) * hop_latency + network_steps * NETWORK["ring"][protocol]
    if ring.machines > 1 and protocol == SIMPLE and passes == 2:
        latency *= PLATEAU
    share = 1.0 if collective in ("broadcast", "reduce") else steps / ring.ranks
    return latency + share * nbytes / bus / 1e3


def _tree_time(
    collective: str, ring: Ring, nbytes: float, protocol: int, hops: Mapping[str, Sequence[float]]
) -> float:
    """Return the time of an all-reduce over chains in machines and a double tree of machines."""
    single_machine = ring.machines == 1
    bus = 0.92 * (ring.fabric.link_gbs if ring.local > 1 else ring.network)
    if protocol == LL:
        bus = min(bus / 3.8, LL_LIMIT[ring.fabric.architecture])
    elif protocol == LL128:
        bus *= 7 / 9 if single_machine else 120 / 128
    correction, index = TREE[protocol], int(log2(max(nbytes / 64, 1.0)))
    rate = min(0.5 * bus, 0.92 * _tree_bandwidth(ring)) * (
        correction[index] if index < len(correction) else 1
    )
    inside = (ring.local - 1) * hops["tree"][protocol]
    across = log2(ring.machines) * NETWORK["tree"][protocol]
    return BASE["tree"][protocol] + 2 * (inside + across) + nbytes / rate / 1e3


def _switch_time(ring: Ring, nbytes: float) -> float:
    """Return the time of an all-reduce in the switch of each machine and over a tree of them."""
    rate = min(NVLS[ring.fabric.architecture] * ring.fabric.link_gbs, _tree_bandwidth(ring))
    return NVLS_LATENCY + (NVLS_HOP if ring.machines > 1 else 0.0) + nbytes / rate / 1e3


def _tree_bandwidth(ring: Ring) -> float:
    """Return the GB/s that a tree of machines reduces: each sends up and down its edges."""
    machines = ring.machines
    return ring.network * machines / (2 * (machines - 1)) if machines > 1 else float("inf")


def _all_to_all_time(ring: Ring, nbytes: float) -> float:
    """Return the time of an all-to-all; traffic within and between machines overlaps."""
    inside = nbytes * (ring.ranks - 1) / ring.ranks / (EXCHANGE * ring.fabric.link_gbs)
    outside, hops = 0.0, 0.0
    if ring.machines > 1:
        remote_ranks = ring.ranks - ring.local
        outside = nbytes * remote_ranks / ring.ranks / ring.fabric.nic_gbs
        hops = remote_ranks * NETWORK["ring"][LL]
    return BASE["ring"][LL] + hops + max(inside, outside) / 1e3
