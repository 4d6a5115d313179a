"""Lookups through tiers, priced: beside arithmetic by hand, and what must hold of any."""

from __future__ import annotations

import pytest

import irgraph
from irgraph.backend import backend
from irgraph.ir.cost import Kernel, PriceOptions
from irgraph.ir.graph import Graph
from irgraph.text import parse
from irgraph.verbs.place import place
from irgraph.verbs.tiered_lookups import TablePlacement

TEXT = """model "m" { format = 2  dims = {B = 64} }

device @gpu0 "v100"
input %x : f32[B, 512] in $x
input %ids : i64[10*B] in $ids
input %starts : i64[B] in $starts
param %w "items.weight" : f32[1000000, 32] in $w
param %a : f32[512, 32] in $a

%y, %y1, %y2, %y3 = aten._embedding_bag(%w, %ids, %starts) : f32[B, 32] in $y, i64[10*B] in $y1, i64[B] in $y2, i64[0] in $y3
%m = aten.mm(%x, %a) : f32[B, 32] in $m
%s = aten.add(%m, %y) : f32[B, 32] in $s
return %s
"""  # noqa: E501
GRAPH = parse(TEXT)


def kernels(graph: Graph, name: str, indices: str = "uniform") -> list[Kernel]:
    priced = backend().price(graph, "v100", PriceOptions(indices=[indices]))
    op = next(op for op in graph.leaves() if op.base == name)
    return list(priced.of(op))


def placed(where: TablePlacement) -> Graph:
    return place(GRAPH, ["items.weight"], where).graph


def test_reads_without_a_cache_by_hand() -> None:
    """640 reads, 128 in flight: of NAND 460,000 a second times 128 / (128 + 34.834)."""
    read, copy = kernels(placed(TablePlacement("nand")), "tier_read")
    assert read.time == pytest.approx(640 / (460e3 * 128 / (128 + 460e3 * 77.9e-6 - 1)) * 1e6)
    assert copy.time == pytest.approx(1.8 + 640 * 128 / 12.4e3, rel=0.01)
    assert read.by == copy.by == "heuristic"
    assert read.spread == pytest.approx(0.25 * read.time + 1.7)
    read, copy = kernels(placed(TablePlacement("optane")), "tier_read")
    assert read.time == pytest.approx(640 / 584_800 * 1e6)
    assert (read.link_bytes, copy.link_bytes) == (640 * 512, 640 * 128)
    (read,) = kernels(placed(TablePlacement("uvm")), "tier_read")
    assert read.time == pytest.approx(1.5 + 640 * 128 / 12.4e3)
    assert read.link_bytes == 640 * 128


def test_pieces_and_load_by_hand() -> None:
    (read, _) = kernels(placed(TablePlacement("optane", pieces=4)), "tier_read")
    assert read.time == pytest.approx(640 / 584_800 / 4 * 1e6)
    (read, _) = kernels(placed(TablePlacement("optane", load=0.5)), "tier_read")
    assert read.time == pytest.approx(640 / 584_800 / 0.5 * 1e6 + 1e6 / 584_800)


def test_a_cache_of_uniform_rows_by_hand() -> None:
    """Half of the rows lie in the cache; what is looked up twice is read once."""
    cached = TablePlacement("optane", cached={"items.weight": 500_000}, policy="static")
    read, _ = kernels(placed(cached), "tier_read")
    different = 1e6 * (1 - (1 - 1e-6) ** 640)
    assert read.time == pytest.approx(different / 2 / 584_800 * 1e6, rel=1e-6)


@pytest.mark.parametrize("policy", ["lru", "lfu", "static"])
def test_a_larger_cache_never_takes_longer(policy: str) -> None:
    times = []
    for share in (0, 0.001, 0.01, 0.1, 0.5, 1):
        rows = {"items.weight": int(share * 1e6)}
        where = TablePlacement("nand", cached=rows, policy=policy)
        times.append(kernels(placed(where), "tier_read", "zipf:1.05")[0].time)
    assert times == sorted(times, reverse=True)
    assert times[-1] < times[0] / 10


def test_every_new_op_has_a_price() -> None:
    graph = placed(TablePlacement("nand", cached={"items.weight": 1000}))
    assert not backend().price(graph, "v100", PriceOptions()).unknown
    for name in ("tier_probe", "tier_read", "tier_pool", "tier_fill"):
        assert all(kernel.time > 0 and kernel.spread > 0 for kernel in kernels(graph, name))


def test_reads_hide_behind_what_does_not_need_them() -> None:
    """What the step takes longer with slow reads is what does not fit beside its other work."""
    hidden = irgraph.predict(placed(TablePlacement("uvm")), device="v100", host="v100")
    slow = irgraph.predict(placed(TablePlacement("nand")), device="v100", host="v100")
    read = sum(k.time for k in kernels(placed(TablePlacement("nand")), "tier_read"))
    assert slow.step_time > hidden.step_time + read - 300
    assert slow.step_time < hidden.step_time + read
