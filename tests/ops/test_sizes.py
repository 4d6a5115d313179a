"""How sizes follow, as declarations claim: torch's meta device takes each resized call."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator

import pytest
from msgspec.structs import replace

from irgraph.ir.edit import map_tensors
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import meaning_of
from irgraph.ops.inference import ShapeError, torch_results
from irgraph.text import parse
from irgraph.verbs import Axis, RefusedError, resize
from tests.ops.test_laws import ops, own_calls

GROWTH = 192
"""Growth of an axis: windows of any step and rounded sums fit."""

MIN_SHRUNK = 4
"""Smallest size of an axis that is also halved."""

MIN_TRUE_OF_OWN = 500
"""Claims about the ops that torch lacks that must have been compared."""

MIN_TRUE = 3_000
"""Claims that must have been compared, so that the law cannot hold of nothing."""


def shapes(op: Op) -> list[tuple[int, ...]]:
    """Return the shapes that torch gives a call's results. Raises ``ShapeError``."""
    results = torch_results(op)
    pairs = zip(results, op.results, strict=False)
    return [t.shape for t in tensors_in(r for r, recorded in pairs if recorded is not None)]


def recorded(op: Op) -> list[tuple[int, ...]]:
    return [tensor.shape for tensor in op.outputs]


def graph_of(op: Op) -> Graph:
    """Return a step of one call, over contiguous inputs of its own."""
    declared = {tensor.name: tensor for tensor in op.inputs}
    return Graph("one", tensors=tuple(Declared("input", t) for t in declared.values()), ops=(op,))


def contiguous(op: Op) -> Op:
    """Return a call over tensors without gaps, each in a buffer of its own."""

    def tensor(old: Tensor) -> Tensor:
        return replace(old, buffer=old.name, strides=None, offset=0)

    return replace(map_tensors(op, tensor), body=())


def size_claims(op: Op) -> Iterator[tuple[str, str, str]]:
    """Yield ``true``, ``false``, ``refused`` or ``not run`` for each axis of a call that grows."""
    meaning = meaning_of(op)
    if meaning is None or meaning.sizes_by_torch:
        return
    try:
        is_reproduced = shapes(op) == recorded(op)
    except ShapeError as error:
        yield "not run", "", str(error)
        return
    if not is_reproduced:
        yield "not run", "", "torch has other sizes now"
        return
    op = contiguous(op)
    graph = graph_of(op)
    for tensor in (*op.inputs, *op.outputs):
        for index, size in enumerate(tensor.shape):
            axis = Axis(tensor.name, index)
            yield size_claim(graph, axis, size + GROWTH)
            if size >= MIN_SHRUNK and size % 2 == 0:
                yield size_claim(graph, axis, size // 2)


def size_claim(graph: Graph, axis: Axis, size: int) -> tuple[str, str, str]:
    """Return the outcome for an axis of a call at another size, the claim and the reason."""
    try:
        after = resize(graph, axis, size).graph.ops[0]
        found = shapes(after)
    except RefusedError as error:
        return "refused", str(axis), str(error)
    except ShapeError as error:
        return "false", f"{axis} = {size}", str(error)
    outcome = "true" if found == recorded(after) else "false"
    operands = ", ".join(str(tensor.shape) for tensor in after.inputs)
    reason = f"of {operands} torch makes {found}, not {recorded(after)}"
    return outcome, f"{axis} = {size}", reason


@pytest.mark.long
def test_torch_gives_resized_calls_the_sizes_that_follow() -> None:
    assert true_sizes(ops()) >= MIN_TRUE


def test_references_give_resized_calls_the_sizes_that_follow() -> None:
    assert true_sizes(own_calls()) >= MIN_TRUE_OF_OWN


def true_sizes(calls: Iterable[Op]) -> int:
    """Return the number of claims about calls that are true, after asserting that none is false."""
    counts: Counter[str] = Counter()
    false = []
    for op in calls:
        for outcome, claim, reason in size_claims(op):
            counts[outcome] += 1
            if outcome == "false":
                false.append(f"{op.name}: {meaning_of(op)}: {claim}: {reason}")
    sys.stdout.write(f"sizes that follow, compared with torch: {dict(counts)}\n")
    assert not false, "\n".join(false)
    return counts["true"]


EXTREMA = """
model "extrema" { format = 2 }

device @gpu0 "v100"
input %x : f32[8, 6] in $x

%y, %i = aten.max(%x, dim = 1) : f32[8] in $y, i64[8] in $i
%z = aten.min(%y) : f32[] in $z
%p = aten.maximum(%y, %y) : f32[8] in $p
return %p
"""


def test_extrema_along_an_axis_keep_the_others() -> None:
    graph = parse(EXTREMA)
    after = resize(graph, Axis("x", 0), 24).graph
    shapes_after = [tensor.shape for op in after.ops for tensor in op.outputs]
    assert shapes_after == [(24,), (24,), (), (24,)]
    longer = resize(graph, Axis("x", 1), 24).graph
    assert longer.ops[1:] == graph.ops[1:]
