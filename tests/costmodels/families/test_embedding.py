"""Embedding lookups: the paper's formulas to the digit, and the corrected count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from costmodels.formulas.lookup import (
    LookupTable,
    forward_time,
    misses,
    paper_hit_rate,
    paper_hit_rate_time,
    paper_time,
    sectors,
    update_traffic_time,
)
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from tests.costmodels.families.helpers import call, kernels, machine, tensor, total

DEFAULT = [LookupTable(1_000_000, 64, 2048, 204_800)] * 8
TABLES = st.builds(
    LookupTable,
    rows=st.integers(1, 10**7),
    width=st.sampled_from([16, 64, 100, 128]),
    bags=st.integers(1, 4096),
    lookups=st.integers(1, 10**5),
)

Tensors = tuple[Tensor, ...]
Lists = tuple[Tensors, Tensors, Tensors, Tensors]


def _lists(bags: int, lookups: int, rows: tuple[int, ...], width: int) -> Lists:
    numbers = range(len(rows))
    weights = tuple(tensor(f"w{i}", rows[i], width) for i in numbers)
    indices = tuple(tensor(f"i{i}", bags * lookups, dtype="i64") for i in numbers)
    offsets = tuple(tensor(f"o{i}", bags, dtype="i64") for i in numbers)
    gradients = tuple(tensor(f"g{i}", bags, width) for i in numbers)
    return weights, indices, offsets, gradients


def test_the_plain_formula_is_the_papers() -> None:
    # 16,384 output rows of 32 + 64 + 416 + 100 * 256 + 256 bytes at 816.953 GB/s
    expected = 2048 * 8 * (32 + 64 + 416 + 25_600 + 256) / 816.953 / 1e3
    assert paper_time(DEFAULT, machine(), backward=False) == pytest.approx(expected)
    assert expected == pytest.approx(528.8, abs=0.1)


def test_the_plain_backward_formula_doubles_the_weights() -> None:
    expected = 2048 * 8 * (32 + 64 + 416 + 51_200 + 256) / 816.953 / 1e3
    assert paper_time(DEFAULT, machine(), backward=True) == pytest.approx(expected)
    assert expected == pytest.approx(1042.2, abs=0.1)


def test_the_papers_hit_rate_is_a_ratio_of_binomials() -> None:
    # 4 rows a block x 80 SMs / 2048 rows: one table in flight; 6 MiB hold 24,576 rows
    one = LookupTable(50_000, 64, 2048, 2048 * 3)
    x, e = 24_576, 50_000
    expected = x * (x - 1) * (x - 2) / (e * (e - 1) * (e - 2))
    assert paper_hit_rate(one, machine()) == pytest.approx(expected)


def test_the_papers_hit_rate_is_zero_where_a_bag_does_not_fit() -> None:
    assert paper_hit_rate(LookupTable(10**6, 64, 4, 4 * 30_000), machine()) == 0.0


def test_the_enhanced_formula_adds_dram_and_cache_time() -> None:
    one = LookupTable(100, 64, 2048, 2048)  # a table that is wholly in the cache: p = 1
    expected = 2048 * ((32 + 256) / 816.953 + (32 + 64 + 256) / 2847.457) / 1e3
    assert paper_hit_rate_time([one], machine(), backward=False) == pytest.approx(expected)


@given(TABLES)
def test_lookups_that_miss_lie_between_distinct_and_all(table: LookupTable) -> None:
    (missed,) = misses([table], machine())
    assert table.distinct - 1e-6 <= missed <= table.lookups + 1e-6
    assert table.distinct <= min(table.rows, table.lookups) + 1e-6


@given(TABLES)
def test_an_update_takes_longer_than_a_lookup(table: LookupTable) -> None:
    on = machine()
    assert update_traffic_time([table], on) >= forward_time([table], on) * 0.99


@given(st.integers(1, 10**6))
def test_sectors_are_whole_and_enough(nbytes: int) -> None:
    assert sectors(nbytes) % 32 == 0 and 0 <= sectors(nbytes) - nbytes < 32


def test_a_table_that_fits_the_cache_is_read_from_dram_once() -> None:
    small = LookupTable(100, 128, 2048, 204_800)
    assert misses([small], machine()) == pytest.approx([100], rel=1e-6)


def test_half_precision_tables_move_half_the_rows() -> None:
    full = forward_time([LookupTable(10**6, 64, 2048, 204_800, size=4)], machine())
    half = forward_time([LookupTable(10**6, 64, 2048, 204_800, size=2)], machine())
    assert 0.5 < half / full < 0.6


def test_a_batched_lookup_is_one_kernel_over_all_tables() -> None:
    weights, indices, offsets, _ = _lists(64, 3, (1000, 10, 5), 32)
    result = tuple(tensor(f"y{i}", 64, 32) for i in range(3))
    op = Op("irgraph.batched_embedding", (weights, indices, offsets), (result,))
    (found,) = kernels(op, machine())
    assert found.name == "lookup B64 T3 L3 D32"


@pytest.mark.parametrize("mode", ["paper", "paper-hit-rate"])
def test_the_mode_chooses_the_formula_and_says_so(mode: str) -> None:
    weights, indices, offsets, _ = _lists(2048, 100, (1_000_000,) * 8, 64)
    op = Op("irgraph.batched_embedding", (weights, indices, offsets), ())
    (found,) = kernels(op, machine(mode=mode))
    assert "paper" in found.formula
    assert ("hit rate" in found.formula) == (mode == "paper-hit-rate")


def test_a_fused_update_makes_no_gradient_table() -> None:
    weights, indices, offsets, gradients = _lists(64, 3, (100_000, 100_000), 32)
    fused = Op("irgraph.batched_embedding_sgd", (weights, gradients, indices, offsets), ())
    dense = Op(
        "irgraph.batched_embedding_backward",
        (gradients, indices, offsets),
        (),
        {"num_weights": (100_000, 100_000)},
    )
    assert len(kernels(fused, machine())) == 1
    assert [k.family for k in kernels(dense, machine())] == ["fill", "embedding"]
    assert total(kernels(dense, machine())) > 2 * total(kernels(fused, machine()))


def test_a_dense_bag_gradient_fills_the_whole_table_and_sorts() -> None:
    op = call(
        "aten._embedding_bag_backward",
        tensor("g", 64, 32),
        tensor("i", 6400, dtype="i64"),
        tensor("o", 64, dtype="i64"),
        out=(100_000, 32),
        num_weights=100_000,
        sparse=False,
    )
    found = kernels(op, machine())
    assert found[0].family == "fill" and any("sort" in k.name for k in found)


def test_a_sparse_bag_gradient_is_a_row_for_each_index() -> None:
    op = call(
        "aten._embedding_bag_backward",
        tensor("g", 64, 32),
        tensor("i", 6400, dtype="i64"),
        tensor("o", 64, dtype="i64"),
        out=(100_000, 32),
        num_weights=100_000,
        sparse=True,
    )
    (found,) = kernels(op, machine())
    assert "6400x32" in found.name


def test_offsets_that_end_with_the_total_hold_one_bag_less() -> None:
    op = call(
        "aten.embedding_bag",
        tensor("w", 100, 32),
        tensor("i", 640, dtype="i64"),
        tensor("o", 65, dtype="i64"),
        out=(64, 32),
        include_last_offset=True,
    )
    assert kernels(op, machine())[0].name == "lookup B64 T1 L10 D32"
