"""Caches of pooled bags: executed, the same to the last bit, and as often found as predicted."""

from __future__ import annotations

import pytest
import torch

from costmodels.lookups.popularity import Zipf, rows_of
from irgraph.backend import backend
from irgraph.execute import compare, execute
from irgraph.ir.cost import Kernel, Popularity, PriceOptions
from irgraph.ir.graph import Graph
from irgraph.ops.references.bags import bag_fill, bag_probe
from irgraph.ops.references.tiers import tier_fill, tier_pool, tier_probe, tier_read
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph
from irgraph.tiers.bags import drawn_bags
from irgraph.tiers.hits import Lookups, cache_of
from irgraph.verbs.place import place
from irgraph.verbs.quantize import quantize
from irgraph.verbs.tiered_lookups import TablePlacement
from tests.costmodels.families.test_tiers import GRAPH as PRICED
from tests.verbs.test_place_verb import TABLES, graph


def placed(known: Graph, cached: int, bags: int, policy: str = "lru") -> Graph:
    rows, pooled = (dict.fromkeys(TABLES, n) if n else {} for n in (cached, bags))
    return place(
        known, TABLES, TablePlacement("nand", cached=rows, policy=policy, pooled=pooled)
    ).graph


def found_of(after: Graph, values: dict[str, torch.Tensor]) -> int:
    probe = next(op for op in after.leaves() if op.base == "bag_probe")
    return sum(int((values[t.name] >= 0).sum()) for t in probe.outputs[:2])


@pytest.mark.parametrize("policy", ["lru", "lfu", "static"])
@pytest.mark.parametrize("mode", [0, 1, 2])
@pytest.mark.parametrize(("cached", "bags"), [(0, 64), (20, 64), (20, 3), (0, 1)])
def test_bags_are_the_same_to_the_last_bit(policy: str, mode: int, cached: int, bags: int) -> None:
    before = graph(mode)
    after = placed(before, cached, bags, policy)
    assert not list(verify(after))
    found = compare(before, after)
    assert found.same and max(one.absolute for one in found.compared) == 0.0
    assert print_graph(parse(print_graph(after))) == print_graph(after)
    names = [op.base for op in after.leaves()]
    assert ("bag_fill" in names) == (policy != "static")
    if bags > 3:
        assert 8 < found_of(after, execute(after).values) < 64, "some bags are found, not all"


@pytest.mark.parametrize("to", ["f16", "f8e4m3", "i8", "i4"])
def test_bags_of_narrow_rows_are_the_same_too(to: str) -> None:
    before = graph()
    lookups = [op for op in before.leaves() if op.base == "_embedding_bag"]
    narrow = quantize(before, lookups, to).graph
    after = placed(narrow, 20, 64)
    found = compare(narrow, after)
    assert found.same and max(one.absolute for one in found.compared) == 0.0
    assert found_of(after, execute(after).values) > 8


def test_a_bag_that_is_wrong_in_the_cache_makes_wrong_results() -> None:
    after = placed(graph(), 20, 64)
    good = execute(after)
    bags = next(d.tensor.name for d in after.tensors if d.label.endswith(".bags"))
    given = {name: value.clone() for name, value in good.initial.items()}
    given[bags] += 1.0
    assert not torch.equal(execute(after, given).values["s"], good.values["s"])


def test_the_next_step_finds_the_bags_of_the_one_before() -> None:
    after = placed(graph(), 0, 512)
    first = execute(after, seed=3)
    kept = {d.tensor.name: first.values[d.tensor.name] for d in after.tensors if d.role == "state"}
    inputs = {n: first.initial[n] for n in ("x", "ids", "starts", "other", "begins", "w", "v")}
    second = execute(after, {**inputs, **kept})
    assert torch.equal(second.values["s"], first.values["s"])
    lengths = [
        torch.diff(inputs[o], append=torch.tensor([inputs[i].numel()]))
        for o, i in (("starts", "ids"), ("begins", "other"))
    ]
    most = [
        next(d.tensor.shape[1] - 2 for d in after.tensors if d.label == f"{name}.keys")
        for name in TABLES
    ]
    kept_bags = sum(int(((n > 0) & (n <= m)).sum()) for n, m in zip(lengths, most, strict=True))
    assert found_of(after, second.values) == kept_bags
    read = next(op for op in after.leaves() if op.base == "tier_read")
    rows = [second.values[t.name] for t in read.outputs]
    assert sum(int(r.any(1).sum()) for r in rows) < 0.5 * sum(len(r) for r in rows)


def test_executed_batches_read_as_much_as_is_predicted() -> None:
    """Bags of two of 50 rows through both caches, batch after batch, beside the formulas."""
    law, rows, each, batch = Zipf(1.0, 1), 50, 2, 20
    known = rows_of(law, rows)
    popularity = Popularity(tuple(known.counts), tuple(known.chances))
    weights = (torch.arange(1, rows + 1) + 1.0) ** -1.0
    source = torch.Generator().manual_seed(2)
    directory = torch.stack([torch.full((8,), -1), torch.zeros(8)]).long()
    keys, bags = torch.zeros(256, 4, dtype=torch.int64), torch.zeros(256, 1)
    keys[:, 0] = -1
    weight, held = torch.randn(rows, 1), torch.zeros(8, 1)
    offsets = torch.arange(batch) * each
    read, there = [], []
    for _ in range(220):
        ids = torch.multinomial(weights, batch * each, True, generator=source)
        (found,), (wanted,) = bag_probe([keys], [ids], [offsets])
        (slot,) = tier_probe([directory], [ids], [wanted])
        (staged,) = tier_read([weight], [ids], [slot])
        given = {"held": [held], "slots": [slot], "found": [found], "bags": [bags]}
        (made,) = tier_pool([staged], [offsets], **given)
        assert torch.equal(made, weight[ids].view(batch, each, 1).sum(1))
        tier_fill([directory], [held], [ids], [slot], [staged])
        bag_fill([keys], [bags], [ids], [offsets], [found], [made])
        read.append(len(ids[slot == -1].unique()))
        there.append(float((found >= 0).float().mean()))
    share = drawn_bags(popularity, {each: 1.0}, each).hit_shares(256)[0]
    assert sum(there[60:]) / len(there[60:]) == pytest.approx(share, abs=0.015)
    left = batch * each * (1 - share)
    predicted = cache_of([Lookups(popularity, 1.0)], 8).distinct_misses(0, left)
    assert sum(read[60:]) / len(read[60:]) == pytest.approx(predicted, rel=0.2)


def priced(where: TablePlacement, indices: str = "uniform") -> dict[str, list[Kernel]]:
    made = place(PRICED, ["items.weight"], where).graph
    found = backend().price(made, "v100", PriceOptions(indices=[indices]))
    return {op.base: list(found.of(op)) for op in made.leaves()}


def test_reads_that_bags_spare_by_hand() -> None:
    """A hundred lists, equally popular, of which 25 are held: a quarter of 640 rows is spared."""
    where = TablePlacement("optane", pooled={"items.weight": 25}, lists="100 uniform")
    kernels = priced(where)
    read = kernels["tier_read"][0]
    assert read.time == pytest.approx(0.75 * 640 / 584_800 * 1e6, rel=1e-6)
    assert "160 are of bags that were pooled before" in read.formula
    assert all(k.time > 0 for name in ("bag_probe", "bag_fill") for k in kernels[name])
    alone = priced(TablePlacement("optane", pooled={"items.weight": 25}))
    assert alone["tier_read"][0].time == pytest.approx(640 / 584_800 * 1e6), "ten rows never recur"


def test_more_bags_never_take_longer() -> None:
    times = []
    for count in (1, 10, 100, 1_000, 10_000):
        where = TablePlacement(
            "nand",
            cached={"items.weight": 10_000},
            pooled={"items.weight": count},
            lists="10000 zipf:0.9",
        )
        times.append(priced(where, "zipf:1.05")["tier_read"][0].time)
    assert times == sorted(times, reverse=True) and times[-1] < 1e-6
