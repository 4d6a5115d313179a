"""Models without the names of their program."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.anonymise.models import anonymous
from irgraph.anonymise.renaming import Anonymiser
from irgraph.ir.verify import verify
from irgraph.text import parse, print_graph

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
    after = anonymous(before)
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
    after = anonymous(before, Anonymiser("key"))
    text = print_graph(after)
    assert "hush" not in text and "aten.relu_" in text
    assert print_graph(parse(text)) == text
    assert after.schemas[0].startswith(next(after.leaves()).name.replace(".", "::"))
    assert "hush" not in print_graph(anonymous(before))
