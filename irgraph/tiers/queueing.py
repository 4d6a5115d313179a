"""How long reads of a tier take: alone, many at once, and while others load it.

Two kinds of tiers. In a ``pipe`` reads start one after the other at the tier's best rate, and any
number may be under way: with q of them in flight the rate is min(q / L, R), the bound of
operational analysis (Denning and Buzen, Computing Surveys 1978), for latency L and best rate R. In
``dies`` each read waits for the one die that holds its page: a closed network of c = R L equal
stations, of which each read takes a random one, has the rate R q / (q + c - 1) (Lazowska et al.,
Quantitative System Performance, 1984, chapter 6: balanced networks).
"""

from __future__ import annotations

from irgraph.diagnostics import fail
from irgraph.tiers.tier import PIPE, Tier


def throughput(tier: Tier, in_flight: float, pieces: int = 1) -> float:
    """Return reads a second with so many in flight, spread over equal pieces of a tier."""
    each = max(in_flight, 0.0) / pieces
    if tier.queueing == PIPE:
        return pieces * min(each / (tier.latency_us.value / 1e6), tier.rate)
    return pieces * tier.rate * each / (each + tier.dies - 1.0) if each else 0.0


def latency(tier: Tier, in_flight: float, pieces: int = 1) -> float:
    """Return microseconds that a read takes while so many are in flight, by Little's law."""
    return 1e6 * in_flight / throughput(tier, in_flight, pieces)


def loaded_latency(tier: Tier, load: float) -> float:
    """Return the mean microseconds of a read that arrives at random, at a share of the best rate.

    A queue of random arrivals and random service (M/M/1) holds load / (1 - load) others on
    average: a pipe's at its best rate, a die's for the whole latency of each.

    Raises:
        IrgraphError: the share is not from 0 to below 1 (exit code 2): the queue would grow.
    """
    if not 0.0 <= load < 1.0:
        message = f"{tier.name}: at a load of {load:g} its queue grows without end"
        raise fail(message, hint="a load is a share of its reads a second, below 1", exit_code=2)
    alone = tier.latency_us.value
    service = 1e6 / tier.rate if tier.queueing == PIPE else alone
    return alone + service * load / (1.0 - load)


def burst(
    tier: Tier,
    reads: float,
    nbytes: float,
    *,
    pieces: int = 1,
    load: float = 0.0,
    depth: float | None = None,
) -> float:
    """Return microseconds until reads that are asked for at once have all come.

    Args:
        tier: what is read.
        reads: units that are read.
        nbytes: what crosses the link.
        pieces: equal pieces that the reads are spread over.
        load: share of the tier's best rate that others take.
        depth: reads in flight; the tier's own if none is given.
    """
    if reads <= 0:
        return 0.0
    wait = loaded_latency(tier, load) - tier.latency_us.value
    held = max(min(reads, (depth or tier.depth.value) * pieces), 1.0)
    free = 1.0 - load
    by_reads = 1e6 * reads / throughput(tier, held, pieces)
    least = 1e6 * reads / (tier.rate * pieces * free)
    by_bytes = nbytes / (1e3 * tier.read_gbs.value * pieces * free) + tier.latency_us.value
    return max(by_reads, least, by_bytes) + wait
