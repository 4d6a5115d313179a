"""Layers in f8, in ``i8`` with one range, with weights in ``i4``: by hand, and what is refused."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from irgraph.execute import compare, execute
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.prepared import PREPARED
from irgraph.ir.op import Op
from irgraph.ir.tensor import DType
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph
from irgraph.verbs.cast import cast
from irgraph.verbs.quantize import check_quantize, quantize
from irgraph.verbs.refusal import RefusedError

TEXT = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "h100"
input %x : f32[B, 40] in $x
param %v "v" : f32[20, 40] in $v
param %c "c" : f32[20] in $c
param %w "w" : f32[8, 20] in $w

%y = aten.linear(%x, %v, %c) : f32[B, 20] in $y
%r = aten.relu(%y) : f32[B, 20] in $r
%z = aten.linear(%r, %w) : f32[B, 8] in $z
return %z, %y
"""
ALIKE = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "h100"
input %x : f32[B, 40] in $x
param %v "v" : f32[40, 40] in $v
param %w "w" : f32[40, 40] in $w

%y = aten.linear(%x, %v) : f32[B, 40] in $y
%z = aten.linear(%x, %w) : f32[B, 40] in $z
return %z, %y
"""
TYPES = {"f8e4m3": torch.float8_e4m3fn, "f8e5m2": torch.float8_e5m2}
WAYS = [("i8", 0.0), ("i8", 3.0), ("f8e4m3", 0.0), ("f8e5m2", 0.0), ("i4", 0.0),
        ("f16", 0.0), ("bf16", 0.0)]  # fmt: skip


def layers(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.name == "aten.linear"]


def given() -> dict[str, torch.Tensor]:
    torch.manual_seed(3)
    return {
        "x": torch.randn(32, 40),
        "v": torch.randn(20, 40),
        "c": torch.randn(20),
        "w": torch.randn(8, 20),
    }


def executed(to: str, span: float = 0.0) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the values of a step and what its first layer gives in a format, in f64."""
    before, values = parse(TEXT), given()
    after = quantize(before, layers(before)[:1], to, span).graph
    return values, execute(after, values, dims={"B": 32})["y"].double()


@pytest.mark.parametrize(("to", "span"), WAYS)
def test_layers_in_every_format_give_what_it_holds(to: str, span: float) -> None:
    before = parse(TEXT)
    done = quantize(before, layers(before), to, span)
    assert len(done.ops) == 2 and not done.refused
    assert not verify(done.graph)
    assert parse(print_graph(done.graph)) == done.graph
    assert {"v", "w"}.isdisjoint(done.graph.by_name)
    result = compare(before, done.graph)
    assert result.same and len(result.compared) == 2
    assert any("moves by" in note for note in result.notes)


@pytest.mark.parametrize("to", ["i8", "f8e4m3", "i4"])
@pytest.mark.parametrize(
    ("between", "roundings"),
    [
        ("", 1),
        ("aten.add_(%c!, 1.0)", 1),
        ("aten.add_(%r!, 1.0)", 2),
        ("aten.add_(%part!, 1.0)", 2),
    ],
)
def test_rows_are_rounded_again_where_they_were_written_since(
    to: str, between: str, roundings: int
) -> None:
    given, *_ = ALIKE.split("%y = ")
    before = parse(
        given
        + f"""%r = aten.relu(%x) : f32[B, 40] in $r
%c = aten.neg(%x) : f32[B, 40] in $c
%part = aten.slice(%r, dim = 1, start = 0, end = 8) : f32[B, 8; 40, 1] in $r
%y = aten.linear(%r, %v) : f32[B, 40] in $y
{between}
%z = aten.linear(%r, %w) : f32[B, 40] in $z
return %z, %y
"""
    )
    after = quantize(before, layers(before), to).graph
    assert len(layers(after)) == 0
    made = [op for op in after.leaves() if any(t.buffer == "r" for t in op.inputs)]
    result = compare(before, after)
    assert result.same, str(result)
    assert [op.base for op in made if op.base not in ("slice", "add_")] == [
        made[-1].base
    ] * roundings


@pytest.mark.parametrize(("to", "span"), WAYS)
def test_wrong_weights_and_scales_are_told(to: str, span: float) -> None:
    before = parse(ALIKE)
    after = quantize(before, layers(before), to, span).graph
    assert compare(before, after).same
    text = str(after.settings[PREPARED])
    swapped = text.replace("of v :", "of ? :").replace("of w :", "of v :").replace("of ?", "of w")
    assert not compare(before, replace(after, settings={PREPARED: swapped})).same
    if span:
        static = next(op for op in after.ops if op.name == "irgraph.quantize_static")
        wrong = replace(static, attributes={**static.attributes, "scale": 1.0})
        ops = tuple(wrong if op is static else op for op in after.ops)
        assert not compare(before, replace(after, ops=ops)).same


@pytest.mark.parametrize("to", TYPES)
def test_layers_in_f8_by_hand(to: str) -> None:
    """Rows and weights over their largest elements, as numbers of their types; sums in f64."""
    values, found = executed(to)
    sides = []
    for name, kind in (("x", TYPES[to]), ("v", torch.float8_e4m3fn)):
        scale = values[name].abs().amax(1, keepdim=True) / torch.finfo(kind).max
        sides.append((values[name] / scale).to(kind).double() * scale.double())
    by_hand = sides[0] @ sides[1].t() + values["c"]
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-4)
    exact = values["x"].double() @ values["v"].double().t() + values["c"]
    assert 1e-2 < float((found - exact).norm() / exact.norm()) < 6e-2


def test_rows_in_steps_of_one_range_are_those_of_torch() -> None:
    """Rounded and cut off as torch's training for integers does it, and multiplied."""
    values, found = executed("i8", 2.0)
    held = torch.fake_quantize_per_tensor_affine(values["x"], 2.0 / 127, 0, -127, 127).double()
    assert bool((values["x"].abs() > 2).any())
    scale = values["v"].abs().amax(1, keepdim=True).double() / 127
    by_hand = held @ ((values["v"] / scale).round() * scale).t() + values["c"]
    torch.testing.assert_close(found, by_hand, rtol=1e-4, atol=1e-4)


def test_weights_in_i4_by_hand() -> None:
    """Groups of 32 along the depth, their least value and a fifteenth of their range in bf16."""
    values, found = executed("i4")
    weight, held = torch.zeros(20, 64), torch.zeros(20, 64)
    weight[:, :40] = values["v"]
    for start in (0, 32):
        part = weight[:, start : start + 32]
        low, high = part.amin(1, keepdim=True), part.amax(1, keepdim=True)
        scale = ((high - low) / 15).bfloat16().float()
        zero = (low + 8 * scale).bfloat16().float()
        steps = ((part - zero) / scale).round().clamp(-8, 7)
        held[:, start : start + 32] = steps * scale + zero
    assert held.unique().numel() <= 16 * 40
    by_hand = values["x"].bfloat16().double() @ held[:, :40].double().t() + values["c"]
    torch.testing.assert_close(found, by_hand, rtol=2e-2, atol=2e-2)
    assert 0.02 < float((held - weight).norm() / weight.norm()) < 0.12


@pytest.mark.parametrize(("to", "span"), WAYS)
def test_formats_stand_beside_casts(to: str, span: float) -> None:
    before = parse(TEXT)
    narrow = quantize(before, layers(before)[:1], to, span).graph
    for kind in ("bf16", "tf32"):
        after = cast(narrow, layers(narrow), kind).graph
        assert not verify(after)
        assert compare(before, after).same


@pytest.mark.parametrize("to", ["f16", "bf16"])
def test_weights_in_short_types_are_brought_to_them_beforehand(to: str) -> None:
    kind = getattr(torch, {"f16": "float16", "bf16": "bfloat16"}[to])
    values, found = executed(to)
    by_hand = values["x"].to(kind).double() @ values["v"].to(kind).double().t() + values["c"]
    torch.testing.assert_close(found, by_hand, rtol=2e-2, atol=2e-2)
    before = parse(TEXT)
    after = quantize(before, layers(before), to).graph
    assert [op.name for op in after.ops][:3] == ["aten._to_copy", "aten.mm", "aten.add"]
    assert after.by_name[f"v_{to}"].dtype == to
    assert not any(t.name in ("v", "w") for op in after.ops for t in op.inputs)


def test_layers_that_share_rows_share_what_they_are_rounded_to() -> None:
    before = parse(TEXT.replace("aten.linear(%r, %w)", "aten.linear(%y, %w)"))
    twice = parse(
        print_graph(before).replace(
            "%z = aten.linear(%y, %w)",
            "%q = aten.linear(%x, %v) : f32[B, 20] in $q\n%z = aten.linear(%q, %w)",
        )
    )
    for to, name in (("f8e4m3", "irgraph.quantize_rows"), ("i4", "aten._to_copy")):
        after = quantize(twice, layers(twice)[:2], to).graph
        calls = [op for op in after.ops if op.name == name and op.inputs[0].name == "x"]
        assert len(calls) == 1
        assert compare(twice, after).same


@pytest.mark.parametrize(
    ("to", "span", "why"),
    [("f8", 0, "f8e4m3"), ("f8e4m3", 3, "no range"), ("i4", 3, "no range"), ("i2", 0, "i2")],
)
def test_what_no_layer_can_be_is_refused(to: str, span: float, why: str) -> None:
    before = parse(TEXT)
    with pytest.raises(RefusedError, match=why):
        check_quantize(before, layers(before)[0], to, span)


def test_few_rows_are_refused_to_integers_alone() -> None:
    before = parse(TEXT.replace("B = 32", "B = 4"))
    with pytest.raises(RefusedError, match="more than 16"):
        check_quantize(before, layers(before)[0], "i8")
    check_quantize(before, layers(before)[0], "i4")
    assert DType("f8e4m3") in str(quantize(before, layers(before), "f8e4m3").graph.ops[0])


ATTENTION = """model "m" { format = 2  dims = {B = 4} }

device @gpu0 "h100"
input %x : f32[B, 20, 32] in $x
param %v "a.in_proj_weight" : f32[96, 32] in $v
param %c "a.in_proj_bias" : f32[96] in $c

%t = aten.transpose(%x, 1, 0) : f32[20, B, 32; 32, 640, 1] in $x
%y = aten.linear(%t, %v, %c) : f32[20, B, 96] in $y
return %y
"""
"""The projection of ``MultiheadAttention``: all weights in one, of rows that lie batch by batch."""


@pytest.mark.parametrize(("to", "span"), WAYS)
def test_packed_projections_of_rows_with_gaps_are_quantised(to: str, span: float) -> None:
    before = parse(ATTENTION)
    after = quantize(before, layers(before), to, span).graph
    assert not verify(after) and parse(print_graph(after)) == after
    assert compare(before, after).same
    copied = [op for op in after.ops if op.name == "aten.clone"]
    assert [op.outputs[0].contiguous for op in copied] == [True]
    if to != "i8" or span:
        return
    torch.manual_seed(5)
    x, v, c = torch.randn(4, 20, 32), torch.randn(96, 32), torch.randn(96)
    found = execute(after, {"x": x, "v": v, "c": c}).values["y"]
    rows = x.transpose(0, 1).double()
    a, b = (w.abs().amax(-1, keepdim=True) / 127 for w in (rows, v.double()))
    by_hand = ((rows / a).round() * a) @ ((v / b).round() * b).t() + c
    torch.testing.assert_close(found.double(), by_hand, rtol=1e-4, atol=1e-4)
