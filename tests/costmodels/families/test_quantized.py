"""Kernels of quantised models, by hand."""

from __future__ import annotations

import pytest

from costmodels.devices.library import load_device
from costmodels.formulas.lookup import SECTOR, Table
from costmodels.pricing.price import price
from irgraph.text import parse

TEXT = """model "m" { format = 1 }

device @gpu0 "a100"
input %i : i64[40000] in $i
input %o : i64[4000] in $o
param %t "emb" : u8[100000000, 68] in $t
param %w "w" : i8[4096, 4096; 1, 4096] in $w
param %c "c" : f32[4096] in $c
input %x : f32[8192, 4096] in $x

%y = quantized.embedding_bag_4bit_rowwise_offsets(%t, %i, %o) : f32[4000, 128] in $y
%q, %s = irgraph.quantize_rows(%x, columns = 4096) : i8[8192, 4096] in $q, f32[8192] in $s
%a = aten._int_mm(%q, %w) : i32[8192, 4096] in $a
%z = irgraph.dequantize_rows(%a, %s, %c) : f32[8192, 4096] in $z
"""


@pytest.mark.parametrize(
    ("stored", "touched"), [(64, 64), (68, 96), (36, 64), (24, 48), (132, 160)]
)
def test_packed_rows_touch_the_sectors_that_they_begin_and_end_in(
    stored: int, touched: int
) -> None:
    found = Table(10, 8, 1, 1, stored=stored).row
    starts = [start * stored % SECTOR for start in range(SECTOR)]
    by_hand = sum(-(-(start + stored) // SECTOR) * SECTOR for start in starts) / len(starts)
    assert found == by_hand == touched


def test_nothing_is_free_and_integers_go_at_their_own_peak() -> None:
    found = price(parse(TEXT), load_device("a100-sxm4-80gb"))
    assert not found.unknown
    times = {op.name: found.of(op)[0] for op in found.graph.ops}
    assert len(times) == 4
    lookup = times["quantized.embedding_bag_4bit_rowwise_offsets"]
    # nearly every row is another one: 40,000 rows of 96 bytes in sectors, sums of 512, indices
    moved = 40000 * (96 + 8) + 4000 * 512
    assert lookup.time == pytest.approx(moved / 1.8e6 + 2.7, rel=0.1)
    product = times["aten._int_mm"]
    tera = 2 * 8192 * 4096 * 4096 / product.time / 1e6
    assert 0.5 * 624 < tera < 624  # dense peak of the datasheet, TOP/s
    assert product.by == "heuristic" and product.outside
    assert all(kernel.time > 2.7 for kernel in times.values())
