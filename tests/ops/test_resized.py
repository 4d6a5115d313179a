"""What declarations confirm of a resized call, torch accepts, with the same sizes."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from importlib import resources

import pytest
from msgspec.structs import replace

from irgraph.ir.edit import map_tensors
from irgraph.ir.op import Op, Value
from irgraph.ir.resize import with_dims
from irgraph.ir.tensor import Tensor
from irgraph.ops.inference import ShapeError, declared_shapes
from irgraph.ops.resized import confirms_resize
from irgraph.text import parse
from irgraph.verbs import torch_check
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.torch_check import check_sizes
from tests.ops.test_laws import ops as calls
from tests.ops.test_sizes import contiguous, recorded, shapes

STEP = resources.files("costmodels.evaluate") / "data" / "dlrm_default.ir"

MIN_CONFIRMED, MIN_REFUSED = 1_000, 1_000


def variants(op: Op) -> Iterator[Op]:
    """Yield calls of which one size is another one, or all sizes of one number are."""
    tensors = {tensor.name: tensor for tensor in (*op.inputs, *op.outputs)}
    sizes = {int(size) for tensor in tensors.values() for size in tensor.shape}
    for size in sorted(sizes):
        for other in {1, size - 1, size + 1, 2 * size} - {size, 0, -1}:
            yield resized(op, {name: all_sizes(t, size, other) for name, t in tensors.items()})
    for name, tensor in tensors.items():
        for axis, size in enumerate(tensor.shape):
            for other in {1, size - 1, 3 * size} - {size, 0, -1}:
                shape = (*tensor.shape[:axis], other, *tensor.shape[axis + 1 :])
                yield resized(op, {name: shape})


def all_sizes(tensor: Tensor, size: int, other: int) -> tuple[int, ...]:
    return tuple(other if s == size else s for s in tensor.shape)


def resized(op: Op, shapes: dict[str, tuple[int, ...]]) -> Op:
    """Return a call with other shapes by name, and with arguments that follow for some."""

    def tensor(old: Tensor) -> Tensor:
        return replace(old, shape=shapes.get(old.name, old.shape))

    return map_tensors(op, tensor)


def with_arguments(op: Op, size: int, other: int) -> Op:
    """Return a call whose arguments of one number are another one."""

    def value(old: Value) -> Value:
        if isinstance(old, tuple):
            return tuple(map(value, old))
        return other if type(old) is int and old == size else old

    return replace(op, attributes={name: value(v) for name, v in op.attributes.items()})


def pairs() -> Iterator[tuple[Op, Op]]:
    """Yield calls that torch reproduces, each with calls of other sizes."""
    for call in calls():
        op = contiguous(call)
        try:
            if not op.outputs or shapes(op) != recorded(op):
                continue
        except ShapeError:
            continue
        for variant in variants(op):
            yield op, variant
            old = {int(s) for t in (*op.inputs, *op.outputs) for s in t.shape}
            new = {int(s) for t in (*variant.inputs, *variant.outputs) for s in t.shape} - old
            for gone in old - {1} if len(new) == 1 else ():
                with_others = with_arguments(variant, gone, *new)
                if with_others.attributes != variant.attributes:
                    yield op, with_others


@pytest.mark.long
def test_torch_accepts_what_declarations_confirm() -> None:
    counts: Counter[str] = Counter()
    wrong = []
    for original, variant in pairs():
        by_original = confirms_resize(original, variant)
        by_itself = declared_shapes(variant) == recorded(variant)
        if not (by_original or by_itself):
            counts["not confirmed"] += 1
            continue
        counts["confirmed"] += 1
        try:
            found = shapes(variant)
        except ShapeError as error:
            wrong.append((variant, by_original, by_itself, str(error)))
        else:
            if found != recorded(variant):
                wrong.append((variant, by_original, by_itself, found))
    sys.stdout.write(f"resized calls, compared with torch: {dict(counts)}\n")
    assert wrong == []
    assert counts["confirmed"] >= MIN_CONFIRMED, counts
    assert counts["not confirmed"] >= MIN_REFUSED, counts


def test_a_declaration_needs_its_sizes_to_be_those_of_the_call() -> None:
    text = """model "m" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B, 8] in $x
input %w : f32[8, 4] in $w

%y = aten.t(%x) : f32[8, B; 1, 8] in $x
%z = aten.mm(%y, %w) : f32[8, 4] in $z
"""
    graph = parse(text)
    with pytest.raises(RefusedError, match=r"aten\.mm does not take this size"):
        check_sizes(graph, with_dims(graph, {"B": 9}))


def test_a_declared_view_stays_within_its_operand() -> None:
    text = """model "m" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[2, 8] in $x

%y = aten.select(%x, 0, 1) : f32[8] in $x+4*B
"""
    graph = parse(text)
    with pytest.raises(RefusedError, match="beyond what it is a view of"):
        check_sizes(graph, with_dims(graph, {"B": 16}))


def test_declarations_confirm_every_op_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    step = parse(STEP.read_text(encoding="utf-8"))
    names: set[str] = set()
    monkeypatch.setattr(torch_check, "_mismatch", lambda op, graph: names.add(op.name) or "")
    check_sizes(step, with_dims(step, {"B": 779}))
    assert names == set()
