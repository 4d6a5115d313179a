"""``fuse``, ``replace`` and ``insert`` compare what they replace by value."""

from __future__ import annotations

import pytest

from irgraph.facts import FactTable
from irgraph.language import load_script, run
from irgraph.language.run import Outcome
from irgraph.text import IrgraphError, parse
from irgraph.verbs import meanings

MODEL = """model "m" { format = 2  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B, 16] in $x
param %b : f32[16] in $b
param %w : f32[16, 16] in $w

%h = aten.add(%x, %b) : f32[B, 16] in $h
%y = aten.relu(%h) : f32[B, 16] in $y
%p = aten.mm(%y, %w) : f32[B, 16] in $p
%q = aten.gelu(%p) : f32[B, 16] in $q
%k = aten.mm(%w, %w) : f32[16, 16] in $k
return %q, %k
"""

LISTS = """model "m" { format = 2 }

device @gpu0 "v100"
param %a : f32[4] in $a
param %b : f32[4] in $b

aten._foreach_mul_([%a!, %b!], scalar = 2.0)
return
"""


def rewritten(script: str, model: str = MODEL) -> Outcome:
    return run(load_script(script), parse(model))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (
            "fuse { %h = aten.add(%x, %b)  %y = aten.relu(%h) }"
            " into %y = irgraph.bias_gelu(%x, %b)",
            "irgraph.bias_gelu computes something else: %y is off by ",
        ),
        (
            "fuse %k = aten.mm(%v, %w) where %v.shape[0] == 16 into %k = aten.add(%v, %w)",
            "aten.add computes something else: %k is off by ",
        ),
        (
            "fuse %y = aten.relu(%h) into %y = aten.clone(%h)",
            "aten.clone computes something else: %y is off by ",
        ),
        (
            "fuse { %h = aten.add(%x, %b)  %y = aten.relu(%h) } into %y = aten.clamp(%x, %b)",
            "aten.clamp computes something else: %y is off by ",
        ),
    ],
)
def test_what_computes_something_else_is_not_fused(script: str, reason: str) -> None:
    with pytest.raises(IrgraphError) as caught:
        rewritten(script)
    assert reason in caught.value.diagnostics[0].message
    assert "assuming" in caught.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("aten.clamp(%h, min = -50.0, max = 50.0)", "aten.clone(%h)"),
        ("aten.threshold(%h, 3.0, 0.0)", "aten.threshold(%h, 3.00001, 0.0)"),
        ("aten.nan_to_num(%h)", "aten.clone(%h)"),
        ("aten.maximum(%h, %x)", "aten.fmax(%h, %x)"),
    ],
)
def test_values_at_and_beyond_constants_show_other_rules(old: str, new: str) -> None:
    script = f"fuse %y = {old} into %y = {new}"
    with pytest.raises(IrgraphError, match="computes something else"):
        rewritten(script, MODEL.replace("aten.relu(%h)", old))


def test_a_reason_allows_other_results() -> None:
    script = 'fuse %y = aten.relu(%h) into %y = aten.clone(%h) assuming "no element is negative"'
    (entry,) = rewritten(script).report.entries
    assert entry.assumptions == ("aten.clone (%y): no element is negative",)
    assert not entry.legal
    assert "results change (%y is off by " in entry.unproven[0]


@pytest.mark.parametrize("verb", ["fuse {} into {}", "replace {} with {}"])
def test_products_in_tf32_are_equal_within_their_rounding(verb: str) -> None:
    script = verb.format("%p = aten.mm(%y, %w)", "%p = irgraph.mm_tf32(%y, %w)")
    (entry,) = rewritten(script).report.entries
    assert entry.legal[0].endswith("equal within the rounding of irgraph.mm_tf32 (0.002)")


def test_a_replacement_that_computes_something_else_is_not_called_legal() -> None:
    (entry,) = rewritten("replace %y = aten.relu(%h) with %y = aten.sigmoid(%h)").report.entries
    assert (entry.legal, entry.uncompared, entry.replaced) == ((), (), 1)
    assert "results change (%y is off by " in str(entry)
    assert "legal" not in str(entry)


def test_an_equal_replacement_is_legal() -> None:
    script = "replace %y = aten.relu(%h) with %y = aten.clamp_min(%h, min = 0)"
    (entry,) = rewritten(script).report.entries
    assert entry.legal and not entry.unproven


def test_random_numbers_are_not_compared() -> None:
    script = """replace %y = aten.relu(%h) with {
      %a = aten.relu(%h)  %y = aten.dropout(%a, p = 0.5, train = true) }"""
    (entry,) = rewritten(script).report.entries
    assert entry.uncompared == ("aten.dropout draws random numbers",)
    assert "meaning not compared (aten.dropout draws random numbers)" in entry.unproven[0]


@pytest.mark.parametrize(
    ("op", "is_equal"), [("aten.clone(%y)", True), ("aten.neg(%y)", False)], ids=["clone", "neg"]
)
def test_an_inserted_tensor_is_compared_with_the_one_that_it_replaces(
    op: str, is_equal: bool
) -> None:
    script = f"insert %z = {op} after %y = aten.relu(_) using %z for %y"
    (entry,) = rewritten(script).report.entries
    assert bool(entry.legal) == is_equal
    assert any("results change (%y" in text for text in entry.unproven) != is_equal


def test_calls_that_differ_in_names_alone_are_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    second = "%y2 = aten.relu(%p) : f32[B, 16] in $y2"
    model = MODEL.replace("return %q, %k", f"{second}\nreturn %q, %y2")
    runs: list[object] = []
    compare = meanings._compare
    monkeypatch.setattr(meanings, "_COMPARISONS", FactTable(8))
    monkeypatch.setattr(meanings, "_compare", lambda *a: runs.append(a) or compare(*a))
    script = "replace many %y = aten.relu(%h) with %y = aten.clamp_min(%h, min = 0)"
    (entry,) = rewritten(script, model).report.entries
    assert (entry.groups, len(entry.legal), len(runs)) == (2, 2, 1)


def test_long_axes_are_shortened_alike_on_both_sides() -> None:
    model = """model "m" { format = 2 }

device @gpu0 "v100"
input %x : f32[65536, 4096] in $x
param %w : f32[16384, 4096] in $w
param %c : f32[16384] in $c

%h = aten.linear(%x, %w, %c) : f32[65536, 16384] in $h
%y = aten.relu(%h) : f32[65536, 16384] in $y
return %y
"""
    script = "fuse %y = aten.relu(aten.linear(%x, %w, %c)) into %y = irgraph.linear_relu({})"
    assert rewritten(script.format("%x, %w, %c"), model).report.entries[0].legal
    other = script.replace("aten.relu(", "aten.gelu(").format("%x, %w, %c")
    with pytest.raises(IrgraphError, match="computes something else"):
        rewritten(other, model.replace("aten.relu", "aten.gelu"))


def test_the_options_of_a_call_count() -> None:
    script = "fuse %q = aten.gelu(%p) into %q = aten.gelu(%p, approximate = {})"
    assert rewritten(script.format('"none"')).report.entries[0].legal
    with pytest.raises(IrgraphError, match="computes something else"):
        rewritten(script.format('"tanh"'))


def test_a_list_has_a_name_for_each_tensor() -> None:
    script = """replace many aten._foreach_mul_(%p!, %a) with {
      [%n] = aten._foreach_mul(%p, %a)  aten._foreach_copy_(%p!, [%n]) }"""
    (refused,) = rewritten(script, LISTS).report.refused
    assert refused.message == (
        "aten._foreach_mul_ (%a) is not replaced: aten._foreach_mul returns a list of 2 tensors,"
        " and [%n] names 1: write %n = aten._foreach_mul(...) for the whole list"
    )


def test_a_name_may_be_a_list_of_any_length() -> None:
    script = """replace many aten._foreach_mul_(%p!, %a) with {
      %n = aten._foreach_mul(%p, %a)  aten._foreach_copy_(%p!, %n) }"""
    outcome = rewritten(script, LISTS)
    assert outcome.report.entries[0].legal
    product, copy = outcome.graph.ops
    assert [tensor.name for tensor in product.outputs] == ["n", "n_1"]
    assert copy.operands[1] == product.results[0]


def test_pieces_of_a_split_have_a_name_each() -> None:
    script = "insert [%u, %v] = aten.split(%y, 6, -1) after %y = aten.relu(_)"
    with pytest.raises(IrgraphError, match=r"returns a list of 3 tensors, and .* names 2"):
        rewritten(script)


def test_a_copy_to_another_device_is_a_tensor_there() -> None:
    outcome = rewritten("insert %z = aten.to(%y, device = @cpu) after %y = aten.relu(_)")
    copied = outcome.graph.by_name["z"]
    assert (copied.device, copied.buffer) == ("cpu", "z")
