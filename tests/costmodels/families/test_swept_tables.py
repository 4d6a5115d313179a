"""Tables, scatters, optimizers and copies beside kernels that an H100 ran (torch 2.11)."""

from __future__ import annotations

import numpy as np
import pytest

from costmodels.benchmarks.captured import captured
from costmodels.devices.library import load_device
from costmodels.families import sweeps
from costmodels.families.optimizer import list_update_launches
from costmodels.formulas.rows import blocks_time, picked_time
from costmodels.learned.predictors import SOFTWARE
from costmodels.lookups.indices import Indices
from costmodels.lookups.popularity import UNIFORM, max_chance
from costmodels.lookups.rules import parse_distribution
from costmodels.pricing.price import price
from irgraph.ir.points.point_values import PointValues, ScalarOnlyError
from tests.costmodels.families.helpers import machine

H100 = "h100-80gb-hbm3"

EMBEDDING = [
    ("embedding_bag_backward", (1_000_000, 64, 2048, 100, 1), "uniform", 453.9),
    ("embedding_bag_backward", (33, 39, 1419, 78, 2), "zipf:1.3", 629.4),
    ("embedding_bag_backward", (177, 8, 555, 17, 25), "uniform", 2085.0),
    ("embedding_backward", (40386, 58, 797, 52, 13), "zipf:1.3", 2373.2),
    ("embedding_backward", (13, 35, 605, 3, 1), "zipf:1.3", 64.1),
    ("embedding_bag_sum", (101, 224, 2577, 3, 2), "zipf:0.8", 18.5),
    ("embedding_bag_mean", (724_422, 103, 398, 25, 12), "uniform", 120.8),
    ("embedding_bag_sum", (100_000, 64, 512, 10, 26), "uniform", 140.4),
    ("embedding_bag_backward_sparse", (281, 176, 2212, 4, 4), "zipf:0.8", 27.1),
    ("embedding_bag_backward_max", (25, 106, 2398, 4, 10), "uniform", 84.0),
    ("embedding", (100_000, 64, 512, 10, 26), "uniform", 123.8),
]
SCATTER = [
    ("index_select", (278, 8, 173_614), "uniform", 105.6),
    ("index_select", (452_104, 54, 153_203), "zipf:1.3", 23.9),
    ("gather", (2130, 157, 50_871), "uniform", 22.5),
    ("index_add", (12_260, 3, 223_683), "zipf:1.3", 112.6),
    ("index_add", (114_642, 160, 192_389), "uniform", 230.4),
    ("index_add", (515, 118, 60_926), "zipf:1.3", 156.0),
    ("scatter_add", (75, 2, 168_016), "zipf:1.3", 104.5),
    ("scatter_add", (3735, 76, 231_737), "zipf:1.05", 204.3),
]
INDEX = [
    ("tril_index", (2671, 19), "", 5.7), ("tril_index", (3477, 42), "", 18.5),
    ("tril_index_backward", (181, 7), "", 38.8), ("tril_index_backward", (2027, 52), "", 610.8),
]  # fmt: skip
OPTIMIZER = [
    ("sgd_fused", (1, 101_705), "", 24.1), ("sgd_fused", (10, 758_969), "", 58.3),
    ("adam_fused", (3, 50_635), "", 38.6), ("adam_fused", (15, 324_740), "", 60.0),
    ("adam_foreach", (1, 85_208), "", 92.3), ("sgd_foreach", (11, 48_149), "", 44.6),
    ("adam", (1, 24_726), "", 10.9), ("sgd", (34, 2531), "", 152.4),
]  # fmt: skip
COPY = [
    ("to_host_pinned", (83_999_665,), "", 1523.8), ("to_device_pinned", (58_513_498,), "", 1061.6),
    ("to_host", (10_263_667,), "", 562.0), ("to_device", (1_004_448,), "", 20.8),
    ("to_device", (170_609_360,), "", 16005.9), ("on_device", (60_762_759,), "", 44.8),
    ("on_device", (1_034_834,), "", 2.5), ("cast", (32_822_762,), "", 88.5),
]  # fmt: skip
CASES = [
    *(("embedding", *case) for case in EMBEDDING),
    *(("scatter", *case) for case in SCATTER),
    *(("index", *case) for case in INDEX),
    *(("optimizer", *case) for case in OPTIMIZER),
    *(("copy", *case) for case in COPY),
]


def predicted(family: str, op: str, sizes: tuple[int, ...], indices: str = "") -> float:
    """Return the microseconds that a call of a sweep is priced at on the H100."""
    names = sweeps()[family].ranges
    row = {"family": family, "op": op, "dtype": "f32", "indices": indices, "key": op}
    graph = captured({**row, "sizes": dict(zip(names, sizes, strict=True))})
    law = Indices(default=parse_distribution(indices or "uniform"))
    found = price(graph, load_device(H100), software=SOFTWARE, indices=law)
    return sum(k.time for op in graph.walk() for k in found.kernels.get(op, ()))


@pytest.mark.parametrize(("family", "op", "sizes", "indices", "measured"), CASES)
def test_kernels_of_an_h100_are_near(
    family: str, op: str, sizes: tuple[int, ...], indices: str, measured: float
) -> None:
    assert predicted(family, op, sizes, indices) == pytest.approx(measured, rel=0.25)


def test_a_chunk_is_walked_step_by_step_however_many_there_are() -> None:
    one, ten = (predicted("optimizer", "sgd_fused", (count, 65_536)) for count in (1, 10))
    short = predicted("optimizer", "sgd_fused", (1, 8192))
    assert one > 4 * short
    assert ten < 1.5 * one


def test_a_launch_holds_what_torch_gives_it() -> None:
    sizes = [65_536 * 319, 10, 65_536 * 2, 7]
    first, second = list_update_launches(sizes, 2)
    assert (first.elements, first.longest) == (65_536 * 319 + 10, 65_536)
    assert (second.elements, second.longest) == (65_536 * 2 + 7, 65_536)
    apart = list_update_launches([5] * 64 + [9], 2)
    assert [(one.elements, one.longest) for one in apart] == [(320, 5), (9, 9)]
    assert len(list_update_launches([65_536 * 640], 1)) == 2


def test_tensors_of_odd_lengths_are_walked_more_slowly() -> None:
    even, odd = (predicted("optimizer", "sgd_fused", (1, n)) for n in (65_532, 65_533))
    assert odd > 1.2 * even


def test_rows_of_blocks_of_their_own_cost_by_rows_and_not_by_bytes() -> None:
    on = machine(H100)
    narrow, wide = (picked_time(100_000, width, 4, 0.0, on) for width in (4, 64))
    assert narrow == wide == pytest.approx(blocks_time(100_000, on) + on.start)
    odd = picked_time(100_000, 5, 4, 0.0, on)
    assert odd < narrow < picked_time(100_000, 65, 4, 0.0, on) * 4
    assert blocks_time(100_000, machine("v100")) == 0.0


def test_a_popular_row_is_added_to_one_by_one() -> None:
    even, steep = (
        predicted("scatter", "index_add", (10_000, 4, 200_000), law)
        for law in ("uniform", "zipf:1.3")
    )
    assert steep > 5 * even


def test_pageable_copies_are_slower_than_pinned_ones() -> None:
    sizes = (20_000_000,)
    assert predicted("copy", "to_device", sizes) > 3 * predicted("copy", "to_device_pinned", sizes)


def test_the_start_of_a_kernel_is_that_of_the_card() -> None:
    assert machine(H100).start == 1.5
    assert machine("v100").start == 2.7


def test_the_greatest_chance_is_the_first_ranks() -> None:
    assert max_chance(UNIFORM, 8) == 0.125
    law = parse_distribution("zipf:1")
    assert max_chance(law, 3) == pytest.approx(6 / 11)
    with pytest.raises(ScalarOnlyError):
        max_chance(law, PointValues(np.array([3, 4])))


@pytest.mark.parametrize("width", [4, 5])
def test_many_rows_are_priced_as_each_alone(width: int) -> None:
    on, counts = machine(H100), [100, 70_000, 200_000]
    points = PointValues(np.array(counts))
    many = picked_time(points, width, 4, 16.0 * points, on)  # type: ignore[arg-type,operator]
    assert list(many.values) == [picked_time(n, width, 4, 16.0 * n, on) for n in counts]  # type: ignore[attr-defined]
