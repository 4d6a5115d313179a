"""``irgraph evaluate tiers``: reads of drives and tables behind PCIe, predicted and published."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct, to_builtins
from rich.console import RenderableType
from rich.table import Table

from costmodels.lookups.popularity import UNIFORM, rows_of
from irgraph.ir.cost import Popularity
from irgraph.tiers.demand import demand
from irgraph.tiers.hits import Lookups, cache_of
from irgraph.tiers.library import load_tier
from irgraph.tiers.queueing import burst, latency, throughput

DRIVES = (
    ("Optane-P4800X-375GB", 1, 108_300.0, 8.9), ("Optane-P4800X-375GB", 16, 584_800.0, 25.5),
    ("NAND-P3700-800GB", 1, 12_800.0, 77.9), ("NAND-P3700-800GB", 16, 167_200.0, 93.9),
    ("NAND-9100-MAX-2400GB", 1, 9_200.0, 107.7), ("NAND-9100-MAX-2400GB", 16, 135_700.0, 116.2),
)  # fmt: skip
"""Drive, reads in flight, reads per second, microseconds: 4 kB random reads (AnandTech, Intel
Optane SSD DC P4800X review, 2017, page "Checking Intel's Numbers")."""

ROWS = (
    45833188, 36746, 17245, 7413, 20243, 3, 7114, 1441, 62, 29275261, 1572176, 345138, 10, 2209,
    11267, 128, 4, 974, 14, 48937457, 11316796, 40094537, 452104, 12606, 104, 35,
)  # fmt: skip
"""Rows of the tables that TorchRec's benchmark trains (pytorch/torchrec, benchmarks/README.md)."""

LARGE, HALVED = 10_000_000, 2
"""Rows above which tables are reduced in its run with caching, and the divisor."""

WIDTH, BATCH, LOOKUPS_PER_SAMPLE, BATCHES, EPOCHS = 128, 64, 64, 10, 100
"""Columns of f32, samples per batch, lookups per sample and table, batches per epoch, epochs
(pytorch/torchrec, benchmarks/ebc_benchmarks.py and ebc_benchmarks_utils.py)."""

IN_DEVICE = 0.019
"""Seconds per epoch of the same tables, the largest reduced 32 to 128 times, in device memory: the
time of an epoch without reads of another tier (same page)."""

HALF_DIGIT = 0.005
"""Rounding error of published seconds: half of the last digit."""

CACHED_SHARE = 0.2
"""Default share of all rows in FBGEMM's cache (``cache_load_factor``)."""


class Drive(Struct, frozen=True):
    """Reads of a drive: published and predicted."""

    tier: str
    in_flight: int
    published_reads: float
    reads: float
    published_us: float
    us: float


class Epoch(Struct, frozen=True):
    """Seconds of an epoch.

    Attributes:
        name: placement of the tables.
        published: the mean over 100 epochs.
        deviation: their standard deviation.
        others: bounds of the mean of all epochs but the longest, from mean and deviation alone.
        predicted: seconds of any epoch but the longest.
    """

    name: str
    published: float
    deviation: float
    others: tuple[float, float]
    predicted: float


class TierEvaluation(Struct, frozen=True):
    """Result of ``irgraph evaluate tiers``."""

    drives: Sequence[Drive]
    epochs: Sequence[Epoch]

    def render(self) -> list[RenderableType]:
        """Return a table of drives, a table of epochs, and a note on the epochs."""
        return [_drives(self.drives), _epochs(self.epochs), NOTE]

    def as_json(self) -> Any:  # noqa: ANN401  (plain values)
        """Return the figures."""
        return to_builtins(self)


NOTE = (
    "Published are means over 100 epochs of one process, its first included. With so large a "
    "deviation one epoch took most of the time: the others' mean lies within the bounds, whatever "
    "else they took. Predicted is such another epoch: the published one in device memory, and what "
    "the tier adds. Published means, which the longest epoch makes, are not predicted."
)


def evaluate_tiers() -> TierEvaluation:
    """Compare tiers with published measurements."""
    drives = []
    for name, in_flight, reads, us in DRIVES:
        tier = load_tier(name)
        predicted = throughput(tier, in_flight), latency(tier, in_flight)
        drives.append(Drive(tier.name, in_flight, reads, predicted[0], us, predicted[1]))
    halved = [rows // HALVED if rows > LARGE else rows for rows in ROWS]
    epochs = [
        _epoch("UVM, full tables", 0.62, 5.34, IN_DEVICE + uncached_seconds(ROWS)),
        _epoch("UVM caching, largest halved", 0.06, 0.37, IN_DEVICE + cached_seconds(halved)),
    ]
    return TierEvaluation(drives, epochs)


def _epoch(name: str, mean: float, deviation: float, predicted: float) -> Epoch:
    return Epoch(name, mean, deviation, bounds_without_longest(mean, deviation, EPOCHS), predicted)


def bounds_without_longest(mean: float, deviation: float, count: int) -> tuple[float, float]:
    """Return bounds of the mean of all times but the largest, for two-digit mean and deviation.

    No value exceeds the mean by more than the deviation times sqrt(n - 1) (Samuelson, Journal of
    the American Statistical Association 1968), and the largest of positive values is at least their
    sum of squares over their sum.
    """
    low, high = mean - HALF_DIGIT - (deviation + HALF_DIGIT) / float(np.sqrt(count - 1)), 0.0
    for bound in (mean - HALF_DIGIT, mean + HALF_DIGIT):
        longest = ((deviation - HALF_DIGIT) ** 2 + bound**2) / bound
        high = max(high, count * (bound - longest / count) / (count - 1))
    return low, high


def uncached_seconds(rows: Sequence[int]) -> float:
    """Return the seconds of an epoch's reads and updates of rows over PCIe.

    Forward reads a row for each lookup; backward reads and writes each distinct row once (FBGEMM's
    exact updates). Nothing overlaps.
    """
    tier, lookups = load_tier("uvm"), float(BATCH * LOOKUPS_PER_SAMPLE)
    distinct = sum(float(rows_of(UNIFORM, n).distinct_count(lookups)) for n in rows)
    total = len(rows) * lookups + 2 * distinct
    traffic = demand(tier, 4 * WIDTH, total)
    return BATCHES * burst(tier, traffic.reads, traffic.nbytes) / 1e6


def cached_seconds(rows: Sequence[int]) -> float:
    """Return the seconds of an epoch's reads of rows that miss the cache.

    The data set draws one batch and repeats it (torchrec/datasets/random.py): all lookups are of
    the rows of this batch, which its first run has loaded.
    """
    lookups = float(BATCH * LOOKUPS_PER_SAMPLE)
    used = [float(rows_of(UNIFORM, n).distinct_count(lookups)) for n in rows]
    tables = [Lookups(Popularity((n,), (1.0 / n,)), 1.0, lookups) for n in used]
    cache = cache_of(tables, CACHED_SHARE * sum(rows))
    missed = sum(cache.distinct_misses(i, lookups) for i in range(len(tables)))
    tier = load_tier("uvm")
    traffic = demand(tier, 4 * WIDTH, 2 * missed)  # a loaded row evicts another one
    return BATCHES * burst(tier, traffic.reads, traffic.nbytes) / 1e6


def _drives(drives: Sequence[Drive]) -> Table:
    heads = ("drive", "in flight", "reads/s", "here", "error", "latency us", "here", "error")
    table = Table(*heads, title="random reads, published and here", title_justify="left")
    for drive in drives:
        table.add_row(
            drive.tier,
            str(drive.in_flight),
            f"{drive.published_reads:,.0f}",
            f"{drive.reads:,.0f}",
            f"{drive.reads / drive.published_reads - 1:+.1%}",
            f"{drive.published_us:g}",
            f"{drive.us:.1f}",
            f"{drive.us / drive.published_us - 1:+.1%}",
        )
    return table


def _epochs(epochs: Sequence[Epoch]) -> Table:
    title = "seconds an epoch of TorchRec's benchmark of DLRM's tables, V100"
    heads = ("tables", "published", "others", "predicted", "of published", "of others")
    table = Table(*heads, title=title, title_justify="left")
    for epoch in epochs:
        low, high = epoch.others
        error = epoch.predicted / min(max(epoch.predicted, low), high) - 1
        table.add_row(
            epoch.name,
            f"{epoch.published:.2f} +- {epoch.deviation:.2f}",
            f"{low:.3f} to {high:.3f}",
            f"{epoch.predicted:.3f}",
            f"{epoch.predicted / epoch.published - 1:+.0%}",
            f"{error:+.0%}" if error else "within",
        )
    return table
