"""Lookups through tiers of memory: probes of a cache, reads of missing rows, pooling, fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from costmodels.families.copy import START
from costmodels.formulas.elements import streaming
from costmodels.formulas.intervals import CLOSE, FEW, UNTRACED
from costmodels.formulas.machine import Machine, Rule, members, work
from costmodels.lookups.indices import Indices
from costmodels.lookups.pooling import length_shares
from costmodels.lookups.popularity import Distribution, rows_of
from costmodels.lookups.rules import parse_distribution
from irgraph.diagnostics import fail
from irgraph.ir.cost import Kernel, Popularity
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.tiers.bags import Bags, drawn_bags, listed_bags, read_lists
from irgraph.tiers.demand import Demand, demand
from irgraph.tiers.hits import LFU, STATIC, Cache, Lookups, Policy, cache_of
from irgraph.tiers.library import load_tier
from irgraph.tiers.queueing import burst

SOURCE = (
    "reads of a tier: closed queue of its reads in flight, rows that the cache lacks by Che's "
    "approximation or the most popular ones (docs/tiers.md); probes, pooling and fills: roofline"
)

FORMULA = "docs/tiers.md: a burst of {} reads; {} of {} lookups find their row in the cache"

TAG_BYTES = 8
"""Bytes of a directory's entry, as in FBGEMM's cache state."""


class TierRead(Struct, frozen=True):
    """A read of one table's rows from a tier.

    Attributes:
        demand: reads and bytes of the tier.
        lookups: number of lookups.
        hits: number of lookups whose row is in the cache.
        pooled_lookups: number of lookups of bags whose sum is in the cache.
    """

    demand: Demand
    lookups: float
    hits: float
    pooled_lookups: float


def _read(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price reads of a tier, and the copy of the rows to the device, if needed."""
    weights, indices = (members(v) for v in (*op.operands, (), ())[:2])
    attributes = op.attributes
    if not weights or len(weights) != len(indices) or not isinstance(attributes.get("tier"), str):
        return None
    tier, reads = load_tier(str(attributes["tier"])), list(_reads(op, machine))
    tier_demand = sum((read.demand for read in reads), Demand())
    pieces, load = _number(attributes, "pieces", 1), _number(attributes, "load", 0.0)
    time = burst(tier, tier_demand.reads, tier_demand.nbytes, pieces=max(int(pieces), 1), load=load)
    lookups, hits = (sum(getattr(r, name) for r in reads) for name in ("lookups", "hits"))
    formula = FORMULA.format(f"{tier_demand.reads:.0f}", f"{hits:.0f}", f"{lookups:.0f}")
    if pooled := sum(read.pooled_lookups for read in reads):
        formula += f", {pooled:.0f} are of bags that were pooled before"
    name = f"read {len(weights)} tables from {tier.name}"
    launch = "kernel" if tier.kind == "link" else "memcpy"
    read_kernel = work(
        "tiers", name, time, tier.error.value, formula, launch=launch, link_bytes=tier_demand.nbytes
    )
    if tier.kind == "link" or machine.sheet.architecture == "cpu" or not tier_demand.row_bytes:
        return (read_kernel,)
    return (read_kernel, _to_device(tier_demand, machine))


def _to_device(tier_demand: Demand, machine: Machine) -> Kernel:
    """Return the copy of rows from pinned host memory to the device."""
    time = START + tier_demand.row_bytes / machine.sheet.host_bandwidth(True) / 1e3
    formula = "bytes / PCIe bandwidth of pinned memory, plus a start"
    return work(
        "tiers",
        "copy of rows to the device",
        time,
        CLOSE,
        formula,
        launch="memcpy",
        link_bytes=tier_demand.row_bytes,
    )


def _reads(op: Op, machine: Machine) -> Iterator[TierRead]:
    """Yield the read of each table."""
    weights, indices = (members(v) for v in op.operands[:2])
    tier, attributes = load_tier(str(op.attributes["tier"])), op.attributes
    cached, policy = attributes.get("cached"), str(attributes.get("policy", "lru"))
    counts = cached if isinstance(cached, tuple) and cached else (0,) * len(weights)
    tables = zip(weights, indices, counts, strict=False)
    for number, (weight, index, cache_rows) in enumerate(tables):
        lookups = float(index.numel)
        pooled = _pooled_share(op, number, machine)
        rows = unpooled = lookups * (1.0 - pooled)
        hits = 0.0
        if isinstance(cache_rows, int) and cache_rows:
            cache = cache_for(weight, index, cache_rows, policy, machine)
            rows, hits = cache.distinct_misses(0, unpooled), cache.hit_rate(0)
        row_bytes = int(weight.shape[1]) * weight.itemsize
        sub_block = attributes.get("sub_block") is True
        tier_demand = demand(tier, row_bytes, rows, sub_block=sub_block)
        yield TierRead(tier_demand, lookups, hits * unpooled, pooled * lookups)


def _pooled_share(op: Op, number: int, machine: Machine) -> float:
    """Return the share of a table's lookups whose bag's sum is in the cache."""
    bag_hits, attributes = members(op.attributes.get("found")), op.attributes
    slots, longest = attributes.get("pooled"), attributes.get("longest")
    if not bag_hits or not isinstance(slots, tuple) or not isinstance(longest, tuple):
        return 0.0
    weight, index = (members(v)[number] for v in op.operands[:2])
    max_length, count = (int(str(sizes[number])) for sizes in (longest, slots))
    lookup = TableLookup(index, int(weight.shape[0]), bag_hits[number].numel, max_length)
    bags = bags_for(lookup, str(attributes.get("lists", "")), machine.indices)
    return bags.hit_shares(count, _policy(str(attributes.get("policy", "lru"))))[1]


class TableLookup(Struct, frozen=True):
    """Lookups of a table in a step.

    Attributes:
        index: tensor of the indices.
        rows: rows of the table.
        bags: number of bags.
        longest: number of indices of the longest cached bag.
    """

    index: Tensor
    rows: int
    bags: int
    longest: int


def bags_for(lookup: TableLookup, lists: str, indices: Indices) -> Bags:
    """Return the bags of a table, from ``lists`` or, for ``""``, of independently drawn rows.

    Raises ``IrgraphError`` if ``lists`` is not a number and a law.
    """
    index, rows = lookup.index, lookup.rows
    lengths = length_shares(indices.bags(index, rows), index.numel / max(lookup.bags, 1))
    if not lists:
        return drawn_bags(
            _popularity(indices.distribution_of(index, rows), rows), lengths, lookup.longest
        )
    number_and_law = read_lists(lists)
    if not number_and_law:
        raise fail(f"lists of bags are a number and a law, as in '1000 zipf:0.9', not {lists!r}")
    list_popularity = _popularity(parse_distribution(number_and_law[1]), number_and_law[0])
    return listed_bags(list_popularity, lengths, lookup.longest)


def cache_for(
    weight: Tensor, index: Tensor, cache_rows: int, policy: str, machine: Machine
) -> Cache:
    """Return the cache of ``cache_rows`` rows of a table with lookups by ``index``."""
    rows = int(weight.shape[0])
    popularity = _popularity(machine.indices.distribution_of(index, rows), rows)
    return cache_of(
        [Lookups(popularity, 1.0, float(index.numel))], float(cache_rows), _policy(policy)
    )


def _popularity(law: Distribution, rows: int) -> Popularity:
    row_groups = rows_of(law, rows)
    return Popularity(tuple(row_groups.counts), tuple(row_groups.chances))


def _policy(name: str) -> Policy:
    return "lfu" if name == LFU else "static" if name == STATIC else "lru"


def _bag_probe(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the hash of each bag, the search in its set, and the comparison of its key."""
    keys, indices, offsets = (members(v) for v in (*op.operands, (), (), ())[:3])
    if not keys or len(keys) != len(offsets):
        return None
    ways = _number(op.attributes, "ways", 32)
    nbytes = sum(t.nbytes for t in (*indices, *indices, *offsets, *op.outputs))
    time = streaming(machine, nbytes + sum(o.numel * ways * TAG_BYTES for o in offsets))
    return (work("tiers", f"probe {len(keys)} caches of bags", time, UNTRACED, SOURCE),)


def _bag_fill(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the copies of all bags and their keys: the op does not record the number of hits."""
    lists = [members(v) for v in op.operands]
    if len(lists) < 6 or not lists[0]:
        return None
    _, _, indices, offsets, bag_hits, pooled = lists[:6]
    nbytes = float(sum(t.nbytes for t in (*offsets, *bag_hits)))
    nbytes += sum(2.0 * t.nbytes for t in (*indices, *pooled))
    nbytes += sum(2 * TAG_BYTES * t.numel for t in bag_hits)
    time = streaming(machine, nbytes)
    return (work("tiers", f"fill {len(lists[0])} caches of bags", time, UNTRACED, SOURCE),)


def _probe(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the search for each index among the entries of its set."""
    directories, indices = (members(v) for v in (*op.operands, (), ())[:2])
    if not directories:
        return None
    ways = _number(op.attributes, "ways", 32)
    nbytes = sum(i.nbytes + i.numel * (ways * TAG_BYTES + TAG_BYTES) for i in indices)
    time = streaming(machine, nbytes)
    return (work("tiers", f"probe {len(directories)} caches", time, UNTRACED, SOURCE),)


def _pool(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the pooling of cached and of read rows."""
    staged, offsets = (members(v) for v in (*op.operands, (), ())[:2])
    if not staged:
        return None
    slots = members(op.attributes.get("slots"))
    nbytes = sum(t.nbytes for t in (*staged, *offsets, *slots, *op.outputs))
    time = streaming(machine, nbytes)
    return (work("tiers", f"pool rows of {len(staged)} tables", time, FEW, SOURCE),)


def _fill(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the copies of read rows to the cache, and the updates of entries.

    The op does not record the number of read rows: all staged rows are copied.
    """
    lists = [members(v) for v in op.operands]
    if len(lists) < 5 or not lists[0]:
        return None
    directories, cached_rows, indices, slots, staged = lists[:5]
    nbytes = sum(t.nbytes for t in (*indices, *slots))
    nbytes += sum(2 * min(s.nbytes, h.nbytes) for s, h in zip(staged, cached_rows, strict=False))
    nbytes += sum(2 * TAG_BYTES * i.numel for i in indices)
    time = streaming(machine, nbytes)
    return (work("tiers", f"fill {len(directories)} caches", time, UNTRACED, SOURCE),)


def _number(attributes: Mapping[str, Value], name: str, default: float) -> float:
    value = attributes.get(name, default)
    return float(value) if isinstance(value, (int, float)) else default


RULES: dict[str, Rule] = {
    "irgraph.tier_probe": _probe,
    "irgraph.tier_read": _read,
    "irgraph.tier_pool": _pool,
    "irgraph.tier_fill": _fill,
    "irgraph.bag_probe": _bag_probe,
    "irgraph.bag_fill": _bag_fill,
}
