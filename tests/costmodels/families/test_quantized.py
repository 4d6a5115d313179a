"""Kernels of quantised models, by hand."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from costmodels.devices.library import load_device
from costmodels.formulas.lookup import SECTOR, LookupTable
from costmodels.learned.predictors import predictors
from costmodels.pricing.price import price
from irgraph.ir.cost import Kernel
from irgraph.text import parse
from irgraph.verbs.quantize import quantize
from tests.costmodels.families.helpers import NEW

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
    found = LookupTable(10, 8, 1, 1, stored_bytes=stored).row_bytes
    starts = [start * stored % SECTOR for start in range(SECTOR)]
    by_hand = sum(-(-(start + stored) // SECTOR) * SECTOR for start in starts) / len(starts)
    assert found == by_hand == touched


LAYERS = """model "m" {{ format = 2 }}

device @gpu0 "h100"
input %x : f32[{M}, 4096] in $x
param %w "w" : f32[4096, 4096] in $w

%y = aten.linear(%x, %w) : f32[{M}, 4096] in $y
return %y
"""


def quantized(rows: int, to: str, device: str, span: float = 0.0) -> Mapping[str, Kernel]:
    """Return the kernel of each op of a quantised layer of 4096 by 4096, by its name."""
    graph = parse(LAYERS.format(M=rows))
    sheet = load_device(device)
    models = predictors(sheet, NEW)
    found = price(quantize(graph, graph.ops, to, span).graph, sheet, learned=models)
    assert not found.unknown
    return {op.name: found.of(op)[0] for op in found.graph.ops}


@pytest.mark.parametrize("to", ["f8e4m3", "f8e5m2"])
def test_products_in_f8_are_those_measured_in_e4m3(to: str) -> None:
    """H100: 2.7e11 flop in 1,979 TFLOP/s at best; sums of 134 MB in f32 at 3,350 GB/s."""
    kernels = quantized(8192, to, "h100")
    product = kernels["aten._scaled_mm"]
    assert product.by == "learned"
    assert 2 * 8192 * 4096 * 4096 / 1979e6 < product.time < 3 * 2 * 8192 * 4096 * 4096 / 1979e6
    assert kernels["irgraph.quantize_rows"].time > 8192 * 4096 * 5 / 3.35e6
    thin = quantized(16, to, "h100")["aten._scaled_mm"]
    assert thin.time < product.time / 10


def test_weights_in_i4_are_read_as_such_and_multiplied_in_bf16() -> None:
    """Few rows take the time of their weights' bytes, 9.4 MB; many that of products in bf16."""
    few, many = (quantized(rows, "i4", "a100")["irgraph.linear_i4"] for rows in (16, 8192))
    assert 9.4e6 / 2.04e6 < few.time < 2 * 9.4e6 / 2.04e6 + 3
    best = 2 * 8192 * 4096 * 4096 / 312e6
    assert best < many.time < 2 * best
    assert few.outside and many.outside


def test_means_of_bags_read_sums_and_offsets_alone() -> None:
    """A100-SXM4-80GB: 2 x 512 MB of sums and 8 MB of offsets at 2,039 GB/s, at 85 to 100 %."""
    rows = 1_000_000
    found = price(
        parse(f"""model "m" {{ format = 2 }}

device @gpu0 "a100"
input %s : f32[{rows}, 128] in $s
input %i : i64[{100 * rows}] in $i
input %o : i64[{rows}] in $o

%m = irgraph.bag_means(%s, %i, %o) : f32[{rows}, 128] in $m
"""),
        load_device("a100-sxm4-80gb"),
    )
    assert not found.unknown
    (kernel,) = found.of(found.graph.ops[0])
    moved = 2 * rows * 512 + rows * 8
    assert moved / 2.039e6 <= kernel.time <= moved / 2.039e6 / 0.85 + 5


def test_a_product_whose_weight_a_trace_does_not_record_is_listed_as_unknown() -> None:
    graph = parse("""model "m" { format = 1  operands = "by shape" }

device @gpu0 "a100"
state %x : i8[64, 32] in $b1
%y = aten._int_mm(%x) : i32[64, 48] in $b2
""")
    (found,) = price(graph, load_device("a100-sxm4-80gb")).unknown
    assert found.name == "aten._int_mm"


def test_one_range_takes_no_scales_of_rows() -> None:
    one, each = (quantized(8192, "i8", "a100", span) for span in (4.0, 0.0))
    assert one.keys() == {"irgraph.quantize_static", "aten._int_mm", "irgraph.dequantize_columns"}
    assert 0 < one["irgraph.quantize_static"].time <= each["irgraph.quantize_rows"].time


def test_nothing_is_free_and_integers_go_at_their_own_peak() -> None:
    found = price(parse(TEXT), load_device("a100-sxm4-80gb"))
    assert not found.unknown
    times = {op.name: found.of(op)[0] for op in found.graph.ops}
    assert len(times) == 4
    assert times["irgraph.quantize_rows"].name.startswith("round rows 8192x4096")
    assert times["irgraph.dequantize_rows"].name.startswith("scale rows 8192x4096")
    lookup = times["quantized.embedding_bag_4bit_rowwise_offsets"]
    # nearly every row is another one: 40,000 rows of 96 bytes in sectors, sums of 512, indices
    moved = 40000 * (96 + 8) + 4000 * 512
    assert lookup.time == pytest.approx(moved / 1.8e6 + 2.7, rel=0.1)
    product = times["aten._int_mm"]
    tera = 2 * 8192 * 4096 * 4096 / product.time / 1e6
    assert 0.5 * 624 < tera < 624  # dense peak of the datasheet, TOP/s
    assert product.by == "heuristic" and product.outside
    assert all(kernel.time > 2.7 for kernel in times.values())
