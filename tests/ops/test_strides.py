"""Strides and offsets of views, as declarations claim, against torch's."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, canonical_strides, row_major
from irgraph.ops.book import meaning_of
from irgraph.ops.inference import ShapeError, torch_results
from irgraph.ops.strides import Layout, Numbers, View, merges_gaps
from tests.ops.test_laws import ops as calls
from tests.ops.test_sizes import contiguous

MIN_VIEWS = 60
"""Views that must have been compared, so that the law cannot hold of nothing."""


def views(op: Op) -> Iterator[Tensor]:
    """Yield the results that torch returns as views of the first operand."""
    for result in torch_results(op, (), {}):
        for tensor in result if isinstance(result, tuple) else [result]:
            if isinstance(tensor, Tensor) and op.inputs and tensor.buffer == op.inputs[0].buffer:
                yield tensor


def test_views_have_the_layouts_that_torch_gives() -> None:
    counts: Counter[str] = Counter()
    for recorded in calls():
        op = contiguous(recorded)
        meaning = meaning_of(op)
        try:
            expected = list(views(op))
        except ShapeError:
            continue
        if meaning is None or not expected or len(expected) != len(op.outputs):
            continue
        operand = op.inputs[0]
        layout = Layout(operand.shape, row_major(operand.shape))
        assert not merges_gaps(meaning, layout)
        shapes = [tensor.shape for tensor in expected]
        found = View(meaning, layout, Numbers()).layouts(shapes, operand.itemsize)
        for ours, theirs in zip(found, expected, strict=True):
            assert ours.offset == theirs.offset, op
            ours_canonical = canonical_strides(ours.shape, ours.strides)
            theirs_canonical = canonical_strides(
                theirs.shape, theirs.strides or row_major(ours.shape)
            )
            assert ours_canonical == theirs_canonical, op
            counts[op.name] += 1
    sys.stdout.write(f"layouts of views, compared with torch: {dict(counts)}\n")
    assert counts.total() >= MIN_VIEWS, counts
