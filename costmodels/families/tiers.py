"""Lookups through tiers of memory: probes of a cache, reads of what it lacks, pooling, fills."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from costmodels.families.copy import START
from costmodels.formulas.elements import streaming
from costmodels.formulas.intervals import CLOSE, FEW, UNTRACED
from costmodels.formulas.machine import Machine, Rule, members, work
from costmodels.lookups.popularity import rows_of
from irgraph.ir.cost import Kernel, Popularity
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
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


class Read(Struct, frozen=True):
    """What reading one table's rows takes: units and bytes of the tier, lookups, hits."""

    asked: Demand
    lookups: float
    found: float


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
    name = f"read {len(weights)} tables from {tier.name}"
    launch = "kernel" if tier.kind == "link" else "memcpy"
    one = work("tiers", name, time, tier.error.value, formula, launch=launch)
    if tier.kind == "link" or machine.sheet.architecture == "cpu" or not asked.wanted:
        return (one,)
    return (one, _to_device(asked, machine))


def _to_device(asked: Demand, machine: Machine) -> Kernel:
    """Return the copy of rows from the host to the device, out of pinned memory."""
    time = START + asked.wanted / machine.sheet.host_bandwidth(True) / 1e3
    formula = "bytes / PCIe bandwidth of pinned memory, plus a start"
    return work("tiers", "copy of rows to the device", time, CLOSE, formula, launch="memcpy")


def _reads(op: Op, machine: Machine) -> Iterator[Read]:
    """Yield what each table's lookups read."""
    weights, indices = (members(v) for v in op.operands[:2])
    tier, given = load_tier(str(op.attributes["tier"])), op.attributes
    cached = given.get("cached")
    counts = cached if isinstance(cached, tuple) and cached else (0,) * len(weights)
    for weight, index, held in zip(weights, indices, counts, strict=False):
        lookups, rows = float(index.numel), float(index.numel)
        hits = 0.0
        if isinstance(held, int) and held:
            cache = cache_for(weight, index, held, str(given.get("policy", "lru")), machine)
            rows, hits = cache.fetched(0, lookups), cache.hit_rate(0)
        row = int(weight.shape[1]) * weight.itemsize
        sub_block = given.get("sub_block") is True
        yield Read(demand(tier, row, rows, sub_block=sub_block), lookups, hits * lookups)


def cache_for(weight: Tensor, index: Tensor, held: int, policy: str, machine: Machine) -> Cache:
    """Return what a cache of so many rows holds of a table that indices look up."""
    rows = int(weight.shape[0])
    known = rows_of(machine.indices.of(index, rows), rows)
    popularity = Popularity(tuple(known.counts), tuple(known.chances))
    named: Policy = "lfu" if policy == LFU else "static" if policy == STATIC else "lru"
    return cache_of([Lookups(popularity, 1.0, float(index.numel))], float(held), named)


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
}
