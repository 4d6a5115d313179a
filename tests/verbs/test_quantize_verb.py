"""``quantize`` as a function: what it makes, that it computes it, and what it refuses."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from irgraph.execute import compare, execute
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.prepared import PREPARED, prepared_of
from irgraph.ir.op import Op
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError, parse, print_graph
from irgraph.verbs.quantize import check_quantize, quantize
from irgraph.verbs.refusal import RefusedError

TEXT = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "a100"
input %x : f32[B, 12] in $x
input %i : i64[3*B] in $i
input %o : i64[B] in $o
input %n : i64[B, 2] in $n
param %t "emb.0" : f32[50, 12] in $t
param %u "emb.1" : f32[40, 12] in $u
param %v "v" : f32[20, 12] in $v
param %c "c" : f32[20] in $c
param %w "w" : f32[12, 12] in $w

%s, %s1, %s2, %s3 = aten.embedding_bag(%t, %i, %o, mode = 0) : TYPES
%e = aten.embedding(%u, %n) : f32[B, 2, 12] in $e
%q = aten.sum(%e, dim = [1]) : f32[B, 12] in $q
%h = aten.add(%s, %x) : f32[B, 12] in $h
%y = aten.linear(%h, %v, %c) : f32[B, 20] in $y
%l = aten.t(%w) : f32[12, 12; 1, 12] in $w
%z = aten.mm(%h, %l) : f32[B, 12] in $z
%k = aten.linear(%e, %v, %c) : f32[B, 2, 20] in $k
return %y, %z, %q, %k
""".replace("TYPES", "f32[B, 12] in $s, i64[3*B] in $s1, i64[B] in $s2, i64[0] in $s3")
LOOKUPS = ("aten.embedding_bag", "aten.embedding")
LAYERS = ("aten.linear", "aten.mm")
ALL = (
    "scale_grad_by_freq = false, sparse = false, per_sample_weights = none, "
    "include_last_offset = false"
)
PACKED = {"i8": "byte", "i4": "4bit", "i2": "2bit"}


def step() -> Graph:
    """Return a step with two lookups and three layers, two of which share their weight."""
    return parse(TEXT)


def chosen(graph: Graph, *names: str) -> list[Op]:
    """Return the ops of some names."""
    return [op for op in graph.ops if op.name in names]


@pytest.mark.parametrize("to", ["f16", "bf16", "f8e4m3", "f8e5m2", "i8", "i4", "i2"])
def test_tables_in_every_format_give_what_they_hold(to: str) -> None:
    before = step()
    done = quantize(before, chosen(before, *LOOKUPS), to)
    assert len(done.ops) == 2 and not done.refused
    assert not verify(done.graph)
    assert parse(print_graph(done.graph)) == done.graph
    assert {"t", "u"}.isdisjoint(done.graph.by_name)
    result = compare(before, done.graph)
    assert result.same and len(result.compared) == 4
    assert result.precision[1] == 1e-4
    assert any("moves by" in note for note in result.notes)


@pytest.mark.parametrize("closed", [False, True])
@pytest.mark.parametrize("to", ["f16", "f8e4m3", "i8", "i4", "i2"])
def test_means_of_bags_are_those_of_what_the_format_holds(to: str, closed: bool) -> None:
    """Bags of other lengths, an empty one among them, by hand from the rows that torch unpacks."""
    last = ", include_last_offset = true" if closed else ""
    text = TEXT.replace("mode = 0", f"mode = 1{last}")
    text = text.replace("input %o : i64[B]", "input %o : i64[B+1]") if closed else text
    before = parse(text)
    after = quantize(before, chosen(before, "aten.embedding_bag"), to).graph
    assert not verify(after) and parse(print_graph(after)) == after
    assert compare(before, after).same
    starts = torch.tensor([0, 0, 5, *range(6, 35)]).clamp(max=96)
    given = {"o": torch.cat([starts, torch.tensor([96])]) if closed else starts}
    result = execute(after, given)
    rows = execute(after, given).values["t_" + to]
    if to not in PACKED:
        return
    held = getattr(torch.ops.quantized, f"embedding_bag_{PACKED[to]}_unpack")(rows)
    ends = [*starts.tolist()[1:], 96]
    ids = result.initial["i"]
    for bag, (first, end) in enumerate(zip(starts.tolist(), ends, strict=True)):
        mean = held[ids[first:end]].mean(0) if end > first else torch.zeros(12)
        torch.testing.assert_close(result.values["s"][bag], mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("to", PACKED)
def test_a_lookup_is_torchs_own_of_torchs_own_rows(to: str) -> None:
    before = step()
    after = quantize(before, chosen(before, "aten.embedding_bag"), to).graph
    torch.manual_seed(0)
    table, index = torch.randn(50, 12), torch.randint(50, (96,))
    start = torch.arange(0, 96, 3)
    given = {"t": table, "i": index, "o": start, "x": torch.zeros(32, 12)}
    rows = getattr(torch.ops.quantized, f"embedding_bag_{PACKED[to]}_prepack")(table)
    lookup = getattr(torch.ops.quantized, f"embedding_bag_{PACKED[to]}_rowwise_offsets")
    assert torch.equal(execute(after, given, dims={"B": 32})["h"], lookup(rows, index, start))


def test_layers_multiply_integers_row_by_row() -> None:
    before = step()
    done = quantize(before, chosen(before, *LAYERS), "i8")
    assert len(done.ops) == 3 and not verify(done.graph)
    calls = [op.name for op in done.graph.leaves()]
    assert calls.count("irgraph.quantize_rows") == 2, "%h is rounded once for two layers"
    assert calls.count("aten._int_mm") == calls.count("irgraph.dequantize_rows") == 3
    assert done.graph.by_name["v_i8"].shape == (16, 24), "whole eights"
    assert compare(before, done.graph).same
    torch.manual_seed(0)
    rows, weight, bias = torch.randn(32, 12).double(), torch.randn(20, 12).double(), torch.randn(20)
    given = {"v": weight.float(), "c": bias, "x": rows.float(), "t": torch.zeros(50, 12)}
    found = execute(done.graph, given, dims={"B": 32})["y"]
    # by hand, in f64: each row and each output's weights in steps of their largest element / 127
    a, b = (v.abs().amax(1, keepdim=True) / 127 for v in (rows, weight))
    by_hand = ((rows / a).round() * a) @ ((weight / b).round() * b).t() + bias
    torch.testing.assert_close(found.double(), by_hand, rtol=1e-4, atol=1e-4)
    exact = rows @ weight.t() + bias
    assert 1e-4 < float((found - exact).norm() / exact.norm()) < 2e-2


def test_a_wrong_rewrite_is_told() -> None:
    before = step()
    after = quantize(before, chosen(before, "aten.linear", *LOOKUPS), "i8").graph
    text = str(after.settings[PREPARED])
    assert compare(before, after).same
    bias = next(op for op in after.ops if op.name == "irgraph.dequantize_rows")
    less = tuple(replace(op, attributes={}) if op is bias else op for op in after.ops)
    assert not compare(before, replace(after, ops=less)).same
    other = text.replace("of t : f32[50, 12]", "of u : f32[50, 12]")
    assert other != text
    with pytest.raises(IrgraphError):
        compare(before, replace(after, settings={PREPARED: other}))


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("mode = 0", "mode = 2", "takes the maximum"),
        ("mode = 0", f"mode = 0, {ALL}, padding_idx = 3", "padding_idx"),
        ("return", "aten.mul_(%t!, 2)\nreturn", "changes %t"),
        ('param %t "emb.0"', "input %t", "no parameter"),
        ("f32[50, 12] in $t", "f16[50, 12] in $t", "in f16: parameters in f32"),
        ("return", "%r = aten.sum(%s2) : i64[] in $r\nreturn", "keeps for its gradient"),
    ],
)
def test_what_would_not_hold_is_refused(old: str, new: str, why: str) -> None:
    before = parse(TEXT.replace(old, new))
    with pytest.raises(RefusedError, match=why):
        check_quantize(before, before.ops[0], "i4")


def test_a_parameter_goes_over_wholly_or_not_at_all() -> None:
    before = step()
    done = quantize(before, chosen(before, "aten.linear")[:1], "i8")
    assert done.graph == before and not done.ops
    (op, error), *_ = done.refused
    assert op.outputs[0].name == "y" and "aten.linear reads %v too" in error.reason


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "t_i4 = i4 rows of t : f32[50, 12]",
        "t = i4 rows of a : f32[50, 12]",
        "t = i9 rows of a : f32[50, 12]",
        "t = i4 rows of a : f32[50, 12] rows 0 to 50",
        "t = i8 weight of a : f32[50, 12] rows 9 to 9",
        "t = i8 weight of a : f32[50, 12] rows 0 to 51",
        "t = i8 weight of a : f32[50, 12] rows 2 to 9",
    ],
)
def test_what_is_prepared_must_make_sense(text: str) -> None:
    with pytest.raises(IrgraphError):
        prepared_of(replace(step(), settings={PREPARED: text}))


TIED = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "a100"
input %i : i64[B] in $i
param %t "words" : f32[64, 32] in $t

%e = aten.embedding(%t, %i) : f32[B, 32] in $e
%y = aten.linear(%e, %t) : f32[B, 64] in $y
return %y
"""


@pytest.mark.parametrize("to", ["i8", "i4", "f16", "f8e4m3"])
def test_a_table_that_is_a_layer_too_is_held_in_both_ways(to: str) -> None:
    """Rows and columns have scales of their own: what is compared with holds each in its op."""
    before = parse(TIED)
    after = quantize(before, chosen(before, "aten.embedding", "aten.linear")[:2], to).graph
    assert len({p.part for p in prepared_of(after)} & {"rows", "weight"}) == 2
    assert compare(before, after).same
