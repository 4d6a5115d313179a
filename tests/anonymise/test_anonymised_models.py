"""Models without the names of their program."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from irgraph.anonymise.models import anonymous_graph
from irgraph.anonymise.public_names import public_names
from irgraph.anonymise.renaming import Anonymiser
from irgraph.execute import compare, execute
from irgraph.ir.narrow.prepared import PREPARED, prepared_of
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict
from irgraph.text import IrgraphError, parse, print_graph
from irgraph.tiers.library import list_tiers
from irgraph.verbs.place import place
from irgraph.verbs.quantize import quantize
from irgraph.verbs.tiered_lookups import TablePlacement

TEXT = """model "secret_model" { format = 1  dims = {B = 8}  source = "/home/alice/et.json" }

device @gpu0 "v100"
input %secret_in : f32[B, 4] in $b1
param %secret_w "secret.tower.weight" : f32[4, 4] in $b2

"## secret ##"() {
  %secret_out = aten.mm(%secret_in, %secret_w) : f32[B, 4] in $b3 in module "secret.tower" from "/home/alice/et.json#3"
  aten.relu_(%secret_out!) in module "secret.tower"
}
"""  # noqa: E501


def test_no_word_is_left_and_the_graph_is_sound() -> None:
    before = parse(TEXT)
    after = anonymous_graph(before)
    text = print_graph(after)
    assert "secret" not in text and "alice" not in text
    assert verify(after) == []
    assert print_graph(parse(text)) == text
    pairs = zip(before.walk(), after.walk(), strict=True)
    assert all(a.is_annotation or a.name == b.name for a, b in pairs)
    assert [t.shape for op in before.walk() for t in op.inputs] == [
        t.shape for op in after.walk() for t in op.inputs
    ]
    assert 'from "trace#3"' in text and "aten.relu_(%t3!)" in text


def test_operators_of_the_program_are_renamed() -> None:
    before = parse(TEXT.replace("aten.mm", "hush.lookup"))
    before = replace(before, schemas=("hush::lookup(Tensor a, Tensor b) -> Tensor",))
    after = anonymous_graph(before, Anonymiser("key"))
    text = print_graph(after)
    assert "hush" not in text and "aten.relu_" in text
    assert print_graph(parse(text)) == text
    assert after.schemas[0].startswith(next(after.leaves()).name.replace(".", "::"))
    assert "hush" not in print_graph(anonymous_graph(before))


SERVED = """model "secret" { format = 2  dims = {B = 32} }

device @gpu0 "v100"
input %secret_x : f32[B, 12] in $x
input %i : i64[3*B] in $i
input %o : i64[B] in $o
param %secret_t "secret.weight" : f32[50, 12] in $t
param %secret_w "secret.top" : f32[20, 12] in $w

%s, %s1, %s2, %s3 = aten._embedding_bag(%secret_t, %i, %o) : TYPES
%h = aten.add(%s, %secret_x) : f32[B, 12] in $h
%y = aten.linear(%h, %secret_w) : f32[B, 20] in $y
return %y
""".replace("TYPES", "f32[B, 12] in $s, i64[3*B] in $s1, i64[B] in $s2, i64[0] in $s3")


@pytest.mark.parametrize("to", ["f8e4m3", "i8", "i4"])
def test_quantised_and_placed_models_keep_what_they_need(to: str) -> None:
    before = parse(SERVED)
    narrow = quantize(before, before.ops[:1], to).graph
    narrow = quantize(narrow, [op for op in narrow.ops if op.base == "linear"], "i8").graph
    where = TablePlacement("NAND-P3700-800GB", cached={"secret.weight": 20})
    for model in (narrow, place(narrow, ["secret.weight"], where).graph):
        after = anonymous_graph(model)
        text = print_graph(after)
        assert "secret" not in text and parse(text) == after
        assert len(prepared_of(after)) == len(prepared_of(model)) >= 3
        assert predict(after, device="a100").step_time == predict(model, device="a100").step_time
        assert execute(after)[after.returned[0].name].isfinite().all()  # type: ignore[index]
        assert compare(after, after).same


def test_what_cannot_be_read_is_not_dropped() -> None:
    before = parse(SERVED)
    with pytest.raises(IrgraphError, match="cannot read what is prepared"):
        anonymous_graph(replace(before, settings={PREPARED: "nonsense"}))


def test_tiers_that_ship_are_public() -> None:
    assert set(list_tiers()) <= public_names("values")
