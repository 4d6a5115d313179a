"""``place``: lookups through tiers are executed, and give the same bags to the last bit."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch

from costmodels.lookups.popularity import Zipf, rows_of
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare, execute
from irgraph.ir.cost import Popularity
from irgraph.ir.graph import Graph
from irgraph.ops.references.tiers import tier_fill, tier_probe, tier_read
from irgraph.ops.verify import verify
from irgraph.schedule.memory.peak import peak_memory
from irgraph.text import parse, print_graph
from irgraph.tiers.hits import Lookups, cache_of
from irgraph.verbs.place import place
from irgraph.verbs.quantize import quantize
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.tiered_lookups import READ, TablePlacement

TEXT = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "v100"
input %x : f32[B, 8] in $x
input %ids : i64[6*B] in $ids
input %starts : i64[B] in $starts
input %other : i32[4*B] in $other
input %begins : i32[B] in $begins
param %w "items.weight" : f32[50, 8] in $w
param %v "users.weight" : f32[90, 8] in $v

%m = aten.mm(%x, %x) : f32[B, 8] in $m
%y, %y1, %y2, %y3 = aten._embedding_bag(%w, %ids, %starts, mode = MODE) : f32[B, 8] in $y, i64[6*B] in $y1, i64[B] in $y2, i64[0] in $y3
%z, %z1, %z2, %z3 = aten._embedding_bag(%v, %other, %begins, mode = MODE) : f32[B, 8] in $z, i32[4*B] in $z1, i32[B] in $z2, i32[0] in $z3
%r = aten.relu(%x) : f32[B, 8] in $r
%s = aten.cat([%r, %y, %z], dim = 1) : f32[B, 24] in $s
return %s
"""  # noqa: E501
TABLES = ("items.weight", "users.weight")


def graph(mode: int = 0) -> Graph:
    """Return a step with two lookups."""
    text = TEXT.replace("MODE", str(mode)).replace("%m = aten.mm(%x, %x) : f32[B, 8] in $m\n", "")
    return parse(text if mode else text.replace(", mode = 0", ""))


def placed(
    known: Graph, cached: int, policy: str = "lru", tables: tuple[str, ...] = TABLES
) -> Graph:
    where = TablePlacement("nand", cached=dict.fromkeys(tables, cached), policy=policy)
    return place(known, tables, where).graph


@pytest.mark.parametrize("policy", ["lru", "lfu", "static"])
@pytest.mark.parametrize("cached", [0, 1, 20, 40, 70])
def test_bags_are_the_same_to_the_last_bit(policy: str, cached: int) -> None:
    before = graph()
    after = placed(before, cached, policy)
    assert not list(verify(after))
    found = compare(before, after)
    assert found.same
    assert max(one.absolute for one in found.compared) == 0.0
    assert print_graph(parse(print_graph(after))) == print_graph(after)


@pytest.mark.parametrize("cached", [0, 20])
@pytest.mark.parametrize("to", ["f16", "bf16", "f8e4m3", "i8", "i4", "i2"])
def test_bags_of_narrow_rows_are_the_same_too(to: str, cached: int) -> None:
    before = graph()
    lookups = [op for op in before.leaves() if op.base == "_embedding_bag"]
    narrow = quantize(before, lookups, to).graph
    after = placed(narrow, cached)
    assert not list(verify(after)) and parse(print_graph(after)) == after
    found = compare(narrow, after)
    assert found.same and max(one.absolute for one in found.compared) == 0.0
    assert compare(before, after).same, "what is prepared is placed, and cached"
    read = next(op for op in after.leaves() if op.name == READ)
    assert read.outputs[0].nbytes < read.outputs[0].shape[0] * 8 * 4, "rows are read narrow"


def test_a_wrong_format_makes_other_bags() -> None:
    before = graph()
    lookups = [op for op in before.leaves() if op.base == "_embedding_bag"]
    narrow = quantize(before, lookups, "i4").graph
    text = print_graph(placed(narrow, 20))
    wrong = parse(text.replace('kinds = ["i4", "i4"]', 'kinds = ["i4", "i2"]'))
    with pytest.raises(IrgraphError):
        compare(narrow, wrong)


@pytest.mark.parametrize("mode", [1, 2])
def test_means_and_maxima_are_the_same_too(mode: int) -> None:
    assert compare(graph(mode), placed(graph(mode), 20)).same


@pytest.mark.parametrize("policy", ["lru", "lfu"])
def test_the_next_steps_find_what_was_filled(policy: str) -> None:
    """Four steps with ids of their own, each starting from the cache that the one before left."""
    before, after = graph(), placed(graph(), 40, policy)
    kept: dict[str, torch.Tensor] = {}
    hits = []
    for seed in range(4):
        first = execute(before, seed=seed)
        fixed = {n: first.initial[n] for n in ("x", "ids", "starts", "other", "begins")}
        tables = {n: execute(before, seed=0).initial[n] for n in ("w", "v")}
        first = execute(before, {**fixed, **tables}, seed=seed)
        then = execute(after, {**fixed, **tables, **kept}, seed=seed)
        assert torch.equal(first.values["s"], then.values["s"])
        names = [d.tensor.name for d in after.tensors if d.role == "state"]
        kept = {n: then.values[n].clone() for n in names}
        slots = [t for op in after.leaves() if op.base == "tier_probe" for t in op.outputs]
        hits.append(sum(int((then.values[t.name] >= 0).sum()) for t in slots))
    assert 0 < hits[-1] < 32 * 10


def test_rows_come_from_where_the_model_says() -> None:
    """A row that is wrong in the cache, or on the tier, makes wrong bags."""
    after = placed(graph(), 40, "static", ("items.weight",))
    good = execute(after)
    held = next(d.tensor.name for d in after.tensors if d.label.endswith(".held"))
    for name in (held, "w"):
        given = {n: good.initial[n].clone() for n in good.initial}
        given[name] += 1.0
        assert not torch.equal(execute(after, given).values["s"], good.values["s"])


def test_reads_are_early_and_pooling_is_late() -> None:
    names = [op.name for op in placed(graph(), 20).leaves() if not op.name.startswith("sync")]
    order = ("irgraph.tier_probe", READ, "aten.relu", "irgraph.tier_pool", "irgraph.tier_fill")
    assert [name for name in names if name in order] == list(order)
    streams = {op.base: op.stream for op in placed(graph(), 20).leaves()}
    assert streams["tier_read"] == streams["tier_fill"] == "io1"
    assert streams["tier_probe"] == streams["tier_pool"] == ""


def test_tables_leave_the_memory_of_the_device() -> None:
    before, after = peak_memory(graph()), peak_memory(placed(graph(), 0))
    assert before.by_kind["parameters"] == 2048 + 3072
    assert "parameters" not in after.by_kind


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("%t = aten.add(%w, 1) : f32[50, 8] in $t", "uses table 'items.weight' too"),
        ("aten.add_(%w!, 1)", "uses table 'items.weight' too"),
        ("%t = aten.add(%y1, 1) : i64[6*B] in $t", "only steps of inference"),
        (
            "%a, %a1, %a2, %a3 = aten._embedding_bag(%w, %ids, %starts) : f32[B, 8] in $a, "
            "i64[6*B] in $a1, i64[B] in $a2, i64[0] in $a3",
            "a second time",
        ),
    ],
)
def test_tables_that_more_uses_have_are_refused(line: str, why: str) -> None:
    text = print_graph(graph()).replace("return", f"{line}\nreturn")
    with pytest.raises(RefusedError, match=why):
        placed(parse(text), 20)


def test_lookups_that_pool_in_different_ways_are_refused() -> None:
    text = print_graph(graph()).replace("%begins)", "%begins, mode = 1)")
    with pytest.raises(RefusedError, match="pools in another way"):
        placed(parse(text), 0)
    assert compare(parse(text), placed(parse(text), 9, "lru", ("users.weight",))).same


def test_a_returned_table_is_refused() -> None:
    text = print_graph(graph()).replace("return %s", "return %s, %w")
    with pytest.raises(RefusedError, match="is returned"):
        placed(parse(text), 0)


def test_the_filled_cache_is_that_of_a_simulated_one() -> None:
    """One set of all slots: what is held after each batch is what was used last."""
    source = torch.Generator().manual_seed(4)
    directory = torch.stack([torch.full((24,), -1), torch.zeros(24)]).long()
    weight, held = torch.randn(60, 3, generator=source), torch.zeros(24, 3)
    simulated: OrderedDict[int, None] = OrderedDict()
    for _ in range(30):
        ids = torch.randint(60, (10,), generator=source)
        (slot,) = tier_probe([directory], [ids])
        assert {i for i, s in zip(ids.tolist(), slot.tolist(), strict=True) if s < 0} == {
            i for i in ids.tolist() if i not in simulated
        }
        (rows,) = tier_read([weight], [ids], [slot])
        tier_fill([directory], [held], [ids], [slot], [rows])
        fresh = dict.fromkeys(i for i in ids.tolist() if i not in simulated)
        for i in ids.tolist():
            if i in simulated:
                simulated.move_to_end(i)
        used = set(ids.tolist())
        for i in fresh:
            simulated[i] = None
        # those used in this batch are equally recent: none of them leaves before the others
        for old in [i for i in simulated if i not in used][: max(len(simulated) - 24, 0)]:
            del simulated[old]
        known = [row for row in directory[0].tolist() if row >= 0]
        assert len(known) == len(set(known)) == len(simulated)
        assert torch.equal(held[directory[0] >= 0], weight[directory[0][directory[0] >= 0]])
        simulated = OrderedDict.fromkeys(sorted(known, key=lambda r: _stamp(directory, r)))


def _stamp(directory: torch.Tensor, row: int) -> int:
    return int(directory[1][directory[0] == row])


def test_executed_batches_read_as_many_rows_as_is_predicted() -> None:
    """Batches through the executed ops, with 32 ways, beside the formula that prices them."""
    law, rows, slots, batch = Zipf(0.9, 1), 1_000, 160, 50
    known = rows_of(law, rows)
    popularity = Popularity(tuple(known.counts), tuple(known.chances))
    weights = (torch.arange(1, rows + 1) + 1.0) ** -0.9
    spread = torch.randperm(rows, generator=torch.Generator().manual_seed(1))
    source = torch.Generator().manual_seed(2)
    directory = torch.stack([torch.full((slots,), -1), torch.zeros(slots)]).long()
    weight, held, read = torch.randn(rows, 1), torch.zeros(slots, 1), []
    for _ in range(100):
        ids = spread[torch.multinomial(weights, batch, True, generator=source)]
        (slot,) = tier_probe([directory], [ids])
        read.append(len(ids[slot < 0].unique()))
        (staged,) = tier_read([weight], [ids], [slot])
        tier_fill([directory], [held], [ids], [slot], [staged])
    predicted = cache_of([Lookups(popularity, 1.0)], slots).distinct_misses(0, batch)
    assert sum(read[20:]) / len(read[20:]) == pytest.approx(predicted, rel=0.05)
