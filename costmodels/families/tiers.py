"""Lookups through tiers of memory: probes of a cache, reads of what it lacks, pooling, fills."""

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

TAG = 8
"""Bytes of a directory's entry, as FBGEMM's cache state has them."""


class TierRead(Struct, frozen=True):
    """What reading one table's rows takes: units and bytes of the tier.

    Of the lookups some find their row in a cache, and some are of bags that were pooled before.
    """

    asked: Demand
    lookups: float
    found: float
    pooled: float


def _read(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price reads of a tier, and the copy of what came to the device, if it is not on it."""
    weights, indices = (members(v) for v in (*op.operands, (), ())[:2])
    given = op.attributes
    if not weights or len(weights) != len(indices) or not isinstance(given.get("tier"), str):
        return None
    tier, reads = load_tier(str(given["tier"])), list(_reads(op, machine))
    asked = sum((read.asked for read in reads), Demand())
    pieces, load = _number(given, "pieces", 1), _number(given, "load", 0.0)
    time = burst(tier, asked.reads, asked.nbytes, pieces=max(int(pieces), 1), load=load)
    lookups, found = (sum(getattr(r, name) for r in reads) for name in ("lookups", "found"))
    formula = FORMULA.format(f"{asked.reads:.0f}", f"{found:.0f}", f"{lookups:.0f}")
    if pooled := sum(read.pooled for read in reads):
        formula += f", {pooled:.0f} are of bags that were pooled before"
    name = f"read {len(weights)} tables from {tier.name}"
    launch = "kernel" if tier.kind == "link" else "memcpy"
    one = work(
        "tiers", name, time, tier.error.value, formula, launch=launch, link_bytes=asked.nbytes
    )
    if tier.kind == "link" or machine.sheet.architecture == "cpu" or not asked.row_bytes:
        return (one,)
    return (one, _to_device(asked, machine))


def _to_device(asked: Demand, machine: Machine) -> Kernel:
    """Return the copy of rows from the host to the device, out of pinned memory."""
    time = START + asked.row_bytes / machine.sheet.host_bandwidth(True) / 1e3
    formula = "bytes / PCIe bandwidth of pinned memory, plus a start"
    return work(
        "tiers",
        "copy of rows to the device",
        time,
        CLOSE,
        formula,
        launch="memcpy",
        link_bytes=asked.row_bytes,
    )


def _reads(op: Op, machine: Machine) -> Iterator[TierRead]:
    """Yield what each table's lookups read."""
    weights, indices = (members(v) for v in op.operands[:2])
    tier, given = load_tier(str(op.attributes["tier"])), op.attributes
    cached, policy = given.get("cached"), str(given.get("policy", "lru"))
    counts = cached if isinstance(cached, tuple) and cached else (0,) * len(weights)
    tables = zip(weights, indices, counts, strict=False)
    for number, (weight, index, held) in enumerate(tables):
        lookups = float(index.numel)
        pooled = _pooled(op, number, machine)
        rows = left = lookups * (1.0 - pooled)
        hits = 0.0
        if isinstance(held, int) and held:
            cache = cache_for(weight, index, held, policy, machine)
            rows, hits = cache.distinct_misses(0, left), cache.hit_rate(0)
        row = int(weight.shape[1]) * weight.itemsize
        sub_block = given.get("sub_block") is True
        asked = demand(tier, row, rows, sub_block=sub_block)
        yield TierRead(asked, lookups, hits * left, pooled * lookups)


def _pooled(op: Op, number: int, machine: Machine) -> float:
    """Return the share of a table's rows whose whole bag was pooled before."""
    found, given = members(op.attributes.get("found")), op.attributes
    slots, longest = given.get("pooled"), given.get("longest")
    if not found or not isinstance(slots, tuple) or not isinstance(longest, tuple):
        return 0.0
    weight, index = (members(v)[number] for v in op.operands[:2])
    most, count = (int(str(each[number])) for each in (longest, slots))
    looked = TableLookup(index, int(weight.shape[0]), found[number].numel, most)
    bags = bags_for(looked, str(given.get("lists", "")), machine.indices)
    return bags.hit_shares(count, _policy(str(given.get("policy", "lru"))))[1]


class TableLookup(Struct, frozen=True):
    """How a table is looked up: its indices, its rows, the bags of a step, and the longest held."""

    index: Tensor
    rows: int
    bags: int
    longest: int


def bags_for(looked: TableLookup, lists: str, indices: Indices) -> Bags:
    """Return the lists of a table's bags and how often each comes; ``""`` for rows drawn singly.

    Raises ``IrgraphError`` where ``lists`` are no number and a law.
    """
    index, rows = looked.index, looked.rows
    lengths = length_shares(indices.bags(index, rows), index.numel / max(looked.bags, 1))
    if not lists:
        return drawn_bags(_popularity(indices.of(index, rows), rows), lengths, looked.longest)
    named = read_lists(lists)
    if not named:
        raise fail(f"lists of bags are a number and a law, as in '1000 zipf:0.9', not {lists!r}")
    every = _popularity(parse_distribution(named[1]), named[0])
    return listed_bags(every, lengths, looked.longest)


def cache_for(weight: Tensor, index: Tensor, held: int, policy: str, machine: Machine) -> Cache:
    """Return what a cache of so many rows holds of a table that indices look up."""
    rows = int(weight.shape[0])
    popularity = _popularity(machine.indices.of(index, rows), rows)
    return cache_of([Lookups(popularity, 1.0, float(index.numel))], float(held), _policy(policy))


def _popularity(law: Distribution, rows: int) -> Popularity:
    known = rows_of(law, rows)
    return Popularity(tuple(known.counts), tuple(known.chances))


def _policy(name: str) -> Policy:
    return "lfu" if name == LFU else "static" if name == STATIC else "lru"


def _bag_probe(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the hash of each bag, the search for it in its set, and the key that is compared."""
    keys, indices, offsets = (members(v) for v in (*op.operands, (), (), ())[:3])
    if not keys or len(keys) != len(offsets):
        return None
    ways = _number(op.attributes, "ways", 32)
    nbytes = sum(t.nbytes for t in (*indices, *indices, *offsets, *op.outputs))
    time = streaming(machine, nbytes + sum(o.numel * ways * TAG for o in offsets))
    return (work("tiers", f"probe {len(keys)} caches of bags", time, UNTRACED, SOURCE),)


def _bag_fill(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the copies of bags and their keys; how many were found the op does not show."""
    lists = [members(v) for v in op.operands]
    if len(lists) < 6 or not lists[0]:
        return None
    _, _, indices, offsets, found, pooled = lists[:6]
    nbytes = float(sum(t.nbytes for t in (*offsets, *found)))
    nbytes += sum(2.0 * t.nbytes for t in (*indices, *pooled))
    nbytes += sum(2 * TAG * t.numel for t in found)
    time = streaming(machine, nbytes)
    return (work("tiers", f"fill {len(lists[0])} caches of bags", time, UNTRACED, SOURCE),)


def _probe(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the search for each index among the entries of its set."""
    directories, indices = (members(v) for v in (*op.operands, (), ())[:2])
    if not directories:
        return None
    ways = _number(op.attributes, "ways", 32)
    nbytes = sum(i.nbytes + i.numel * (ways * TAG + TAG) for i in indices)
    time = streaming(machine, nbytes)
    return (work("tiers", f"probe {len(directories)} caches", time, UNTRACED, SOURCE),)


def _pool(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the pooling of rows, which lie in the cache or were read."""
    staged, offsets = (members(v) for v in (*op.operands, (), ())[:2])
    if not staged:
        return None
    slots = members(op.attributes.get("slots"))
    nbytes = sum(t.nbytes for t in (*staged, *offsets, *slots, *op.outputs))
    time = streaming(machine, nbytes)
    return (work("tiers", f"pool rows of {len(staged)} tables", time, FEW, SOURCE),)


def _fill(op: Op, machine: Machine) -> tuple[Kernel, ...] | None:
    """Price the copies of rows that were read to the cache, and the entries that change.

    How many were read the op does not show: at most all that were staged.
    """
    lists = [members(v) for v in op.operands]
    if len(lists) < 5 or not lists[0]:
        return None
    directories, held, indices, slots, staged = lists[:5]
    nbytes = sum(t.nbytes for t in (*indices, *slots))
    nbytes += sum(2 * min(s.nbytes, h.nbytes) for s, h in zip(staged, held, strict=False))
    nbytes += sum(2 * TAG * i.numel for i in indices)
    time = streaming(machine, nbytes)
    return (work("tiers", f"fill {len(directories)} caches", time, UNTRACED, SOURCE),)


def _number(given: Mapping[str, Value], name: str, default: float) -> float:
    value = given.get(name, default)
    return float(value) if isinstance(value, (int, float)) else default


RULES: dict[str, Rule] = {
    "irgraph.tier_probe": _probe,
    "irgraph.tier_read": _read,
    "irgraph.tier_pool": _pool,
    "irgraph.tier_fill": _fill,
    "irgraph.bag_probe": _bag_probe,
    "irgraph.bag_fill": _bag_fill,
}
