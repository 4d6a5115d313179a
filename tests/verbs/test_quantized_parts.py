"""Layers whose weights are rows of a packed one; and weights that are no rows of a parameter."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from irgraph.anonymise.models import anonymous_graph
from irgraph.execute import compare, execute
from irgraph.execute.narrow.preparation import prepare
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.prepared import PREPARED, prepared_of
from irgraph.ir.op import Op
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.precision.candidates import candidates
from irgraph.text import parse, print_graph
from irgraph.verbs.quantize import check_quantize, quantize
from irgraph.verbs.refusal import RefusedError

PACKED = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "h100"
input %q : f32[B, 24] in $q
input %k : f32[B, 24] in $k
param %w "a.in_proj_weight" : f32[72, 24] in $w
param %b "a.in_proj_bias" : f32[72] in $b

[%w1, %w2] = aten.split_with_sizes(%w, split_sizes = [20, 52]) : [f32[20, 24] in $w, f32[52, 24] in $w+1920]
[%b1, %b2] = aten.split_with_sizes(%b, split_sizes = [20, 52]) : [f32[20] in $b, f32[52] in $b+80]
%t = aten.t(%w2) : f32[24, 52; 1, 24] in $w+1920
%y = aten.linear(%q, %w1, %b1) : f32[B, 20] in $y
%z = aten.addmm(%b2, %k, %t) : f32[B, 52] in $z
return %y, %z
"""  # noqa: E501
"""Projections of attention over something else: one weight, split in the step."""

WAYS = [("i8", 0.0), ("i8", 3.0), ("f8e4m3", 0.0), ("f8e5m2", 0.0), ("i4", 0.0),
        ("f16", 0.0), ("bf16", 0.0)]  # fmt: skip


def products(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.name in ("aten.linear", "aten.addmm", "aten.mm")]


@pytest.mark.parametrize(("to", "span"), WAYS)
def test_rows_of_a_packed_weight_are_prepared_each_by_itself(to: str, span: float) -> None:
    before = parse(PACKED)
    after = quantize(before, products(before), to, span).graph
    assert not verify(after) and parse(print_graph(after)) == after
    assert compare(before, after).same
    assert {one.rows for one in prepared_of(after)} == {(0, 20), (20, 72)}
    assert not any(op.name == "aten.t" or op.inputs[0].name == "w" for op in after.leaves())
    other = anonymous_graph(after)
    assert [one.rows for one in prepared_of(other)] == [one.rows for one in prepared_of(after)]
    assert "in_proj" not in print_graph(other) and parse(print_graph(other)) == other


@pytest.mark.parametrize("to", ["i8", "f8e4m3", "i4", "bf16"])
def test_other_rows_of_it_are_told(to: str) -> None:
    """Rows 20 to 72 become 19 to 71, of the weight or, where it has some, of its scales."""
    before = parse(PACKED)
    after = quantize(before, products(before), to).graph
    for part in ("weight", "scales") if to != "bf16" else ("weight",):
        text = str(after.settings[PREPARED])
        said = [one for one in prepared_of(after) if one.part == part and one.rows == (20, 72)]
        assert len(said) == 1
        moved = text.replace(str(said[0]), str(said[0]).replace("rows 20 to 72", "rows 19 to 71"))
        wrong = replace(after, settings={**after.settings, PREPARED: moved})
        assert moved != text and not compare(before, wrong).same


def test_rows_hold_what_they_do_in_the_whole_weight() -> None:
    """Outputs are rounded each by itself: a part is that of the whole, to the last bit."""
    torch.manual_seed(1)
    values = torch.randn(72, 24)
    before = parse(PACKED)
    for to in ("i8", "f8e4m3", "i4", "f16"):
        after = quantize(before, products(before), to).graph
        one = next(p for p in prepared_of(after) if p.part == "weight" and p.rows[0] == 20)
        part, whole = prepare(one, values), prepare(replace(one, span=()), values)
        same = (part[:52], whole[20:72]) if to == "i4" else (part[:24, :52], whole[:24, 20:72])
        assert torch.equal(same[0].float(), same[1].float())
    given = {"q": torch.randn(32, 24), "k": torch.randn(32, 24), "w": values, "b": torch.randn(72)}
    after = quantize(before, products(before), "i8").graph
    found = execute(after, given).values["z"]
    rows, weight = (t / t.abs().amax(1, keepdim=True) * 127 for t in (given["k"], values[20:]))
    size = given["k"].abs().amax(1, keepdim=True) * values[20:].abs().amax(1) / 127**2
    by_hand = rows.round().double() @ weight.round().double().t() * size + given["b"][20:]
    torch.testing.assert_close(found.double(), by_hand, rtol=1e-5, atol=1e-5)


def test_a_packed_weight_goes_over_wholly_and_is_one_candidate() -> None:
    before = parse(PACKED)
    done = quantize(before, products(before)[:1], "i8")
    assert not done.ops and "aten.addmm reads %t too" in done.refused[0][1].reason
    (one,) = candidates(before, ["i8", "i4"])
    assert one.name == "a.in_proj_weight" and one.formats == ("i8", "i4")
    assert one.results == ("y", "z")


TURNED = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "h100"
input %x : f32[B, 40] in $x
input %i : i64[B] in $i
param %w "w" : f32[40, 40] in $w
param %v "v" : f32[20, 80] in $v

%q = aten.t(%w) : f32[40, 40; 1, 40] in $w
%u = aten.view(%v, size = [40, 40]) : f32[40, 40] in $v
%c = aten.slice(%v, dim = 1, start = 0, end = 40) : f32[20, 40; 80, 1] in $v
%y = CALL
return %y
"""


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("aten.linear(%x, %q) : f32[B, 40] in $y", "multiplies with %q row by row"),
        ("aten.linear(%x, %u) : f32[B, 40] in $y", "uses %u, a part or another shape of v"),
        ("aten.linear(%x, %c) : f32[B, 20] in $y", "multiplies with %c row by row"),
        ("aten.mm(%x, %w) : f32[B, 40] in $y", "multiplies with %w row by row"),
        ("aten.embedding(%u, %i) : f32[B, 40] in $y", "uses %u, .* and takes a table as it is"),
    ],
)
def test_what_is_no_rows_of_a_weight_is_refused(call: str, why: str) -> None:
    """A square weight transposed, and one of another shape, take as many bytes as it has."""
    before = parse(TURNED.replace("CALL", call))
    op = next(op for op in before.ops if op.outputs[0].name == "y")
    with pytest.raises(RefusedError, match=why):
        check_quantize(before, op, "i8")


def test_a_weight_of_one_output_is_one_transposed_or_not() -> None:
    text = TURNED.replace("CALL", "aten.mm(%x, %o) : f32[B, 1] in $y").replace(
        "%q = aten.t(%w) : f32[40, 40; 1, 40] in $w", "%o = aten.t(%p) : f32[40, 1] in $p"
    )
    before = parse(text.replace("param %w", 'param %p "p" : f32[1, 40] in $p\nparam %w'))
    after = quantize(before, products(before), "f16").graph
    assert compare(before, after).same and "p_f16" in after.by_name


@pytest.mark.parametrize("to", ["i4", "i8", "f8e4m3", "bf16"])
def test_a_format_is_a_word_or_a_text(to: str) -> None:
    before = parse(PACKED)
    scripts = (f"quantize many aten.{{linear,addmm}} to {form}" for form in (to, f'"{to}"'))
    first, second = (run(load_script(text), before) for text in scripts)
    assert first.graph == second.graph != before


CALLED = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "h100"
input %x : f32[B, 3, 24] in $x
input %a : f32[B, 2, 24] in $a
input %c : f32[B, 24, 2] in $c
param %w "w" : f32[40, 24] in $w

%t = aten.t(%w) : f32[24, 40; 1, 24] in $w
%y = aten.matmul(%x, %t) : f32[B, 3, 40] in $y
%z = aten.matmul(%a, %c) : f32[B, 2, 2] in $z
return %y, %z
"""


@pytest.mark.parametrize(("to", "span"), WAYS)
def test_a_product_with_a_transposed_weight_is_a_layer(to: str, span: float) -> None:
    """``x @ w.t()``; a product of two tensors of the step, batch by batch, is no candidate."""
    before = parse(CALLED)
    layer, other = (op for op in before.ops if op.name == "aten.matmul")
    after = quantize(before, [layer], to, span).graph
    assert not verify(after) and compare(before, after).same
    assert "w" not in after.by_name and other in after.ops
    (one,) = candidates(before, ["i8"])
    assert (one.name, one.ops, one.formats) == ("w", ("aten.matmul",), ("i8",))
    with pytest.raises(RefusedError, match="nor a linear layer"):
        check_quantize(before, other, "i8")
