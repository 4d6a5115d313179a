"""Tiers beside what was published of the same devices, and queues beside simulated ones."""

from __future__ import annotations

import numpy as np
import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.tiers.library import list_tiers, load_tier
from irgraph.tiers.queueing import burst, latency, loaded_latency, throughput
from irgraph.tiers.tier import DIES, Tier

POINTS = [
    ("Optane-P4800X-375GB", 1, 108_300, 8.9, 0.10),
    ("Optane-P4800X-375GB", 16, 584_800, 25.5, 0.10),
    ("NAND-P3700-800GB", 1, 12_800, 77.9, 0.25),
    ("NAND-P3700-800GB", 16, 167_200, 93.9, 0.25),
    ("NAND-9100-MAX-2400GB", 1, 9_200, 107.7, 0.25),
    ("NAND-9100-MAX-2400GB", 16, 135_700, 116.2, 0.25),
]
"""AnandTech, Intel Optane SSD DC P4800X review (2017), page "Checking Intel's Numbers"."""


@pytest.mark.parametrize(("name", "in_flight", "iops", "mean", "allowed"), POINTS)
def test_published_points_are_reproduced(
    name: str, in_flight: int, iops: float, mean: float, allowed: float
) -> None:
    tier = load_tier(name)
    assert throughput(tier, in_flight) == pytest.approx(iops, rel=allowed)
    assert latency(tier, in_flight) == pytest.approx(mean, rel=allowed)
    assert tier.error.value == allowed


def test_six_dimms_read_as_published() -> None:
    """Izraelevitz et al., arXiv:1903.05714: 39.4 GB/s of six, saturated by 17 threads."""
    tier = load_tier("optane-dimm")
    rows = 1e6
    time = burst(tier, rows, rows * 256, pieces=6)
    assert rows * 256 / time / 1e3 == pytest.approx(39.4, rel=0.10)


def waits(tier: Tier, load: float, count: int = 400_000) -> float:
    """Return the mean microseconds of reads that come at random, one after the other."""
    source = np.random.default_rng(3)
    dies = round(tier.dies) if tier.queueing == DIES else 1
    service = tier.latency_us.value if tier.queueing == DIES else 1e6 / tier.rate
    came = np.cumsum(source.exponential(service / dies / load, count))
    served = source.exponential(service, count)
    die = source.integers(dies, size=count)
    free, total = np.zeros(dies), 0.0
    for when, work, where in zip(came, served, die, strict=True):
        start = max(when, free[where])
        free[where] = start + work
        total += start - when
    return total / count + tier.latency_us.value


@pytest.mark.parametrize("name", ["Optane-P4800X-375GB", "NAND-P3700-800GB"])
@pytest.mark.parametrize("load", [0.3, 0.7])
def test_loaded_latency_is_that_of_a_simulated_queue(name: str, load: float) -> None:
    tier = load_tier(name)
    assert loaded_latency(tier, load) == pytest.approx(waits(tier, load), rel=0.03)


def closed(tier: Tier, in_flight: int, reads: int = 60_000) -> float:
    """Return reads a second of dies that serve a fixed number of reads, the next at once."""
    source = np.random.default_rng(5)
    free = np.zeros(round(tier.dies))
    ends = np.zeros(in_flight)
    for work in source.exponential(tier.latency_us.value, reads):
        mine = int(ends.argmin())
        die = source.integers(len(free))
        free[die] = max(ends[mine], free[die]) + work
        ends[mine] = free[die]
    return reads / float(ends.max()) * 1e6


@pytest.mark.parametrize("in_flight", [4, 64])
def test_the_rate_of_dies_is_that_of_a_simulated_network(in_flight: int) -> None:
    tier = load_tier("nand")
    assert throughput(tier, in_flight) == pytest.approx(closed(tier, in_flight), rel=0.05)


@pytest.mark.parametrize("name", list_tiers())
def test_every_tier_obeys_what_any_queue_does(name: str) -> None:
    tier = load_tier(name)
    one = burst(tier, 1, tier.granularity_bytes.value)
    assert tier.latency_us.value <= one <= 1.2 * tier.latency_us.value
    assert burst(tier, 0, 0) == 0
    assert throughput(tier, tier.depth.value) <= tier.rate
    times = [burst(tier, n, n * 64.0, load=0.5) for n in (1, 10, 100, 1e4, 1e6)]
    assert times == sorted(times)
    assert burst(tier, 1e6, 1e9) <= burst(tier, 1e6, 1e9, load=0.5)
    assert burst(tier, 1e6, 1e9, pieces=4) <= burst(tier, 1e6, 1e9)
    assert loaded_latency(tier, 0) == tier.latency_us.value


@pytest.mark.parametrize("load", [1.0, 1.5, -0.1, float("nan")])
def test_a_queue_that_grows_without_end_is_refused(load: float) -> None:
    with pytest.raises(IrgraphError, match="queue grows without end"):
        loaded_latency(load_tier("nand"), load)
