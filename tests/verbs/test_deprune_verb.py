"""``deprune``: lookups in pruned tables become lookups in whole ones, the same to the last bit."""

from __future__ import annotations

import pytest
import torch

from irgraph.anonymise.models import anonymous_graph
from irgraph.backend import backend
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare, execute
from irgraph.ir.cost import PriceOptions
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.expanded import expanded_of
from irgraph.ops.verify import verify
from irgraph.text import parse, print_graph
from irgraph.verbs.deprune import DepruneResult, check_deprune, deprune
from irgraph.verbs.place import place
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.tiered_lookups import TablePlacement

TEXT = """model "m" { format = 2  dims = {B = 32} }

device @gpu0 "v100"
input %ids : i64[6*B] in $ids
input %starts : i64[B] in $starts
input %weights : f32[6*B] in $weights
param %w "items.weight" : u8[20, WIDTH] in $w
param %map "items.mapping" : i32[50] in $map
param %v "users.weight" : u8[30, WIDTH] in $v

%y = quantized.embedding_bag_BITS_rowwise_offsets(%w, %ids, %starts, pruned_weights = true, compressed_indices_mapping = %map) : f32[B, 8] in $y
%z = quantized.embedding_bag_BITS_rowwise_offsets(%w, %ids, %starts, false, 0, true, %weights, %map) : f32[B, 8] in $z
return %y, %z
"""  # noqa: E501
WIDTHS = {"byte": 16, "4bit": 8, "2bit": 6}


def graph(bits: str = "byte") -> Graph:
    return parse(TEXT.replace("BITS", bits).replace("WIDTH", str(WIDTHS[bits])))


def depruned(known: Graph) -> DepruneResult:
    lookups = [op for op in known.leaves() if op.name.startswith("quantized.")]
    return deprune(known, lookups)


def values(bits: str) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return a packed table, of which 20 of 50 rows are kept, and the 50 rows in f32."""
    source = torch.Generator().manual_seed(1)
    kept = torch.randperm(50, generator=source)[:20].sort().values
    table = torch.randn(20, 8, generator=source)
    pack, unpack = (
        getattr(torch.ops.quantized, f"embedding_bag_{bits}_{way}") for way in ("prepack", "unpack")
    )
    packed = pack(table)
    mapping = torch.full((50,), -1, dtype=torch.int32)
    mapping[kept] = torch.arange(20, dtype=torch.int32)
    whole = torch.zeros(50, 8)
    whole[kept] = unpack(packed)
    given = {
        "w": packed,
        "map": mapping,
        "ids": torch.randint(50, (192,), generator=source),
        "starts": torch.arange(32) * 6,
        "weights": torch.randn(192, generator=source),
    }
    return given, whole


@pytest.mark.parametrize("bits", list(WIDTHS))
def test_a_whole_table_gives_what_the_pruned_one_did(bits: str) -> None:
    before = graph(bits)
    done = depruned(before)
    after = done.graph
    assert not [d for d in verify(after) if d.severity == "error"]
    found = compare(before, after)
    assert found.same and max(one.absolute for one in found.compared) == 0.0
    again = parse(print_graph(after))
    assert print_graph(again) == print_graph(after)
    (whole,) = expanded_of(again)
    assert (whole.table.name, whole.mapping.name) == ("w", "map")
    assert {d.tensor.extent for d in after.tensors if d.label == "items.weight"} == {
        (0, 50 * WIDTHS[bits])
    }
    assert done.freed_bytes == 200 and done.added_bytes == (50 - 20) * WIDTHS[bits] - 200
    given, rows = values(bits)
    one, other = execute(before, given), execute(after, given)
    for name in ("y", "z"):
        assert torch.equal(one.values[name], other.values[name])
    bags = torch.nn.functional.embedding_bag(given["ids"], rows, given["starts"], mode="sum")
    torch.testing.assert_close(other.values["y"], bags)


def test_wide_values_have_pruned_rows_and_a_wrong_table_is_found() -> None:
    before = graph()
    after = depruned(before).graph
    given, _ = values("byte")
    good = execute(after, given).values["y"]
    given["map"] = given["map"].roll(1)
    assert not torch.equal(execute(after, given).values["y"], good)
    wrong = print_graph(after).replace("w_whole = w by map", "w_whole = v by map")
    wrong = wrong.replace("u8[20, 16], i32", "u8[30, 16], i32")
    assert not compare(before, parse(wrong)).same
    given["map"][3] = 20
    with pytest.raises(IrgraphError, match="row 20 of 20"):
        execute(after, given)


def test_a_depruned_table_can_be_placed() -> None:
    text = print_graph(graph()).replace("return %y, %z", "return %y")
    known = parse("\n".join(x for x in text.splitlines() if not x.startswith("%z")) + "\n")
    with pytest.raises(RefusedError, match="pruned"):
        place(known, ["items.weight"], TablePlacement("nand"))
    whole = depruned(known).graph
    for cached in ({}, {"items.weight": 10}):
        after = place(whole, ["items.weight"], TablePlacement("nand", cached=cached)).graph
        for first in (whole, known):
            found = compare(first, after)
            assert found.same and max(one.absolute for one in found.compared) == 0.0


def test_lookups_of_a_pruned_table_read_its_mapping_as_well() -> None:
    """Of 50,000,000 entries 393,216 lookups read 391,676 different ones, each in its sector."""
    text = TEXT.replace("BITS", "byte").replace("WIDTH", "16").replace("50]", "50000000]")
    before = parse(text.replace("u8[20,", "u8[2000000,").replace("B = 32", "B = 65536"))

    def time(known: Graph) -> float:
        priced = backend().price(known, "v100", PriceOptions())
        first = next(op for op in known.leaves() if op.name.startswith("quantized."))
        return sum(kernel.time for kernel in priced.of(first))

    plain = parse(
        print_graph(before).replace(
            ", pruned_weights = true, compressed_indices_mapping = %map", ""
        )
    )
    more = time(before) - time(plain)
    assert more == pytest.approx(391_676 * 32 / 900e3, rel=0.3), "at the card's 900 GB/s"


def test_names_are_new_in_an_anonymised_model() -> None:
    made = anonymous_graph(depruned(graph()).graph)
    (whole,) = expanded_of(made)
    assert {"w", "map"}.isdisjoint({whole.table.name, whole.mapping.name})
    assert compare(made, made).same


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("return %y", "%r = aten.add(%map, 1) : i32[50] in $r\nreturn %r, %y", "add reads %map"),
        ("return %y", "aten.add_(%w!, 1)\nreturn %y", "the step writes %w"),
        ("return %y", "return %w, %y", "the step returns %w"),
        ("i32[50]", "i32[1]", "no mapping of i32 for two"),
        ("pruned_weights = true", "pruned_weights = false", "not pruned"),
    ],
)
def test_odd_tables_are_refused(old: str, new: str, why: str) -> None:
    known = parse(print_graph(graph()).replace(old, new))
    lookups = [op for op in known.leaves() if op.name.startswith("quantized.")]
    with pytest.raises(RefusedError, match=why):
        for op in lookups:
            check_deprune(known, op)
        deprune(known, lookups)


@pytest.mark.parametrize(
    "text",
    [
        "w_whole",
        "w_whole = w by map : u8[20, 16]",
        "w_whole = w by map : u8[20, 16], i32[49]",
        "w_whole = w by map : f32[20, 16], i32[50]",
        "w_whole = w by map : u8[20, 99999999999999], i32[50]",
        "nothing = w by map : u8[20, 16], i32[50]",
    ],
)
def test_settings_that_cannot_be(text: str) -> None:
    good = print_graph(depruned(graph()).graph)
    with pytest.raises(IrgraphError):
        expanded_of(parse(good.replace("w_whole = w by map : u8[20, 16], i32[50]", text)))
