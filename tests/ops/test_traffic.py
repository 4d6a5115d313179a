"""The bytes that a call must move, by hand."""

from __future__ import annotations

import pytest

from irgraph.ops.traffic import traffic
from irgraph.text import parse

HEAD = """model "m" {{ format = 1 }}

device @gpu0 "v100"
input %a : f32[8, 4] in $a
input %b : f32[4, 2] in $b
input %c : f32[8, 4; 0, 1] in $c
input %i : i64[8] in $i

{}
"""


@pytest.mark.parametrize(
    ("line", "nbytes"),
    [
        ("%y = aten.mm(%a, %b) : f32[8, 2] in $y", 4 * (32 + 8 + 16)),
        ("%y = aten.relu(%a) : f32[8, 4] in $y", 4 * (32 + 32)),
        ("%y = aten.add(%a, %c) : f32[8, 4] in $y", 4 * (32 + 4 + 32)),
        ("%y = aten.mul(%a, %a) : f32[8, 4] in $y", 4 * (32 + 32)),
        ("%y = aten.gt(%a, 0) : bool[8, 4] in $y", 4 * 32 + 32),
        ("%y = aten.sum(%a) : f32[] in $y", 4 * (32 + 1)),
        ("aten.relu_(%a!)", 4 * (32 + 32)),
        ("aten.fill_(%a!, 0)", 4 * 32),
        ("aten.copy_(%a!, %c)", 4 * (32 + 4)),
        ("%y = aten.index_select(%a, 0, %i) : f32[8, 4] in $y", None),
        ("aten.mm(%a, %b)", None),
    ],
)
def test_each_tensor_is_read_or_written_once(line: str, nbytes: int | None) -> None:
    (op,) = parse(HEAD.format(line)).ops
    assert traffic(op) == nbytes
