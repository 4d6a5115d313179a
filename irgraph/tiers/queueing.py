"""Times of reads of a tier: of a single read, of a burst, and under background load.

There are two kinds of tiers. In a ``pipe`` reads start one after the other at the tier's best rate,
and any number may be in flight: with q of them the rate is min(q / L, R), the bound of operational
analysis (Denning and Buzen, Computing Surveys 1978), for latency L and best rate R. In ``dies``
each read waits for the one die with its page: a closed network of c = R L equal stations, of which
each read visits a random one, has the rate R q / (q + c - 1) (Lazowska et al., Quantitative System
Performance, 1984, chapter 6: balanced networks).
"""

from __future__ import annotations

from irgraph.diagnostics import fail
from irgraph.tiers.tier import PIPE, Tier


def throughput(tier: Tier, in_flight: float, pieces: int = 1) -> float:
    """Return reads per second with ``in_flight`` reads spread over equal devices of a tier."""
    per_piece = max(in_flight, 0.0) / pieces
    if tier.queueing == PIPE:
        return pieces * min(per_piece / (tier.latency_us.value / 1e6), tier.rate)
    return pieces * tier.rate * per_piece / (per_piece + tier.dies - 1.0) if per_piece else 0.0


def latency(tier: Tier, in_flight: float, pieces: int = 1) -> float:
    """Return the microseconds of a read with ``in_flight`` reads in flight, by Little's law."""
    return 1e6 * in_flight / throughput(tier, in_flight, pieces)


def loaded_latency(tier: Tier, load: float) -> float:
    """Return the mean microseconds of a read that arrives at random, at a share of the best rate.

    A queue with random arrivals and random service (M/M/1) contains load / (1 - load) other reads
    on average. A pipe serves each at its best rate, a die for its whole latency.

    Raises:
        IrgraphError: the share is not from 0 to below 1 (exit code 2): the queue would grow.
    """
    if not 0.0 <= load < 1.0:
        message = f"{tier.name}: at a load of {load:g} its queue grows without end"
        raise fail(message, hint="a load is a share of its reads a second, below 1", exit_code=2)
    idle_latency = tier.latency_us.value
    service = 1e6 / tier.rate if tier.queueing == PIPE else idle_latency
    return idle_latency + service * load / (1.0 - load)


def burst(
    tier: Tier,
    reads: float,
    nbytes: float,
    *,
    pieces: int = 1,
    load: float = 0.0,
    depth: float | None = None,
) -> float:
    """Return the microseconds until reads that are issued together have all completed.

    Args:
        tier: the tier that is read.
        reads: units that are read.
        nbytes: bytes that cross the link.
        pieces: equal devices that the reads are spread over.
        load: share of the tier's best rate that other reads use.
        depth: reads in flight, by default the tier's own depth.
    """
    if reads <= 0:
        return 0.0
    wait = loaded_latency(tier, load) - tier.latency_us.value
    in_flight = max(min(reads, (depth or tier.depth.value) * pieces), 1.0)
    free = 1.0 - load
    by_reads = 1e6 * reads / throughput(tier, in_flight, pieces)
    by_rate = 1e6 * reads / (tier.rate * pieces * free)
    by_bytes = nbytes / (1e3 * tier.read_gbs.value * pieces * free) + tier.latency_us.value
    return max(by_reads, by_rate, by_bytes) + wait
