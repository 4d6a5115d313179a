"""What new ops read and write beside what the old ones did, byte by byte."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.text import parse
from irgraph.verbs.extra_accesses import check_extra_accesses
from irgraph.verbs.refusal import RefusedError

TEXT = """model "m" {{ format = 2 }}

device @gpu0 "v100"
input %x : f32[8] in $x

%t = aten.neg(%x) : f32[8] in $t
%low = aten.slice(%t, dim = 0, start = 0, end = 4) : f32[4] in $t
%high = aten.slice(%t, dim = 0, start = 4, end = 8) : f32[4] in $t+16
%a = aten.exp(%{read}) : f32[{size}] in $a
{between}
%b = aten.exp(%a) : f32[{size}] in $b
%c = aten.sum(%{used}) : f32[] in $c
return %c
"""
SIZES = {"t": 8, "low": 4, "high": 4}


def graph_of(
    read: str, between: str = "%n = aten.neg(%x) : f32[8] in $n", used: str = "x"
) -> Graph:
    return parse(TEXT.format(read=read, size=SIZES[read], between=between, used=used))


def check(graph: Graph, touched: str, name: str = "aten.exp") -> None:
    """Check an op that touches a tensor in the place of ``%a`` and ``%b``."""
    members = [op for op in graph.ops if op.name == "aten.exp"]
    tensor = graph.by_name[touched]
    if name == "aten.exp":
        new = replace(members[1], operands=(tensor,))
    else:
        new = Op(name, (tensor,), written=frozenset([touched]))
    check_extra_accesses(graph, members, [new])


@pytest.mark.parametrize(
    ("read", "touched", "written", "refused"),
    [
        ("t", "low", "low", False),  # read before, too, as part of the whole
        ("low", "t", "high", True),
        ("low", "high", "high", True),
        ("low", "high", "low", False),  # other bytes are written
        ("low", "low", "low", False),
    ],
)
def test_what_is_read_anew_is_not_written_in_between(
    read: str, touched: str, written: str, refused: bool
) -> None:
    graph = graph_of(read, f"aten.add_(%{written}!, 1.0)")
    if not refused:
        check(graph, touched)
        return
    with pytest.raises(RefusedError, match="would be read, and is written in between"):
        check(graph, touched)


@pytest.mark.parametrize(
    ("touched", "used", "refused"),
    [("low", "high", False), ("low", "low", True), ("low", "t", True), ("high", "low", False)],
)
def test_what_is_written_anew_is_used_by_nobody_else(
    touched: str, used: str, refused: bool
) -> None:
    graph = graph_of("t", used=used)
    if not refused:
        check(graph, touched, "aten.neg_")
        return
    with pytest.raises(RefusedError, match="would be written, and is used elsewhere"):
        check(graph, touched, "aten.neg_")
