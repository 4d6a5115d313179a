"""Collectives of data ranks on a separate stream, concurrent with work, as in FSDP."""

from __future__ import annotations

from collections.abc import Iterator

from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.ranks import group_of, is_collective
from irgraph.plans.layout import SAMPLES
from irgraph.verbs.sharding.writer import GROUP
from irgraph.verbs.streams import on_streams

STREAM = "comm_data"
"""Name of the stream of collectives of data ranks."""


def with_overlap(step: Graph) -> Graph:
    """Return a rank's step whose collectives of data ranks run on a separate stream.

    Each begins when its operands exist, and only calls that read its result wait for it.
    """
    members = [(op, STREAM) for op in _calls(step)]
    if not members:
        return step
    overlapped, _ = on_streams(step, members)
    return overlapped


def _calls(step: Graph) -> Iterator[Op]:
    """Yield the collectives of data ranks, with the calls that wait for them."""
    buffers: set[str] = set()
    for op in step.leaves():
        if is_collective(op) and group_of(op) in (SAMPLES, GROUP):
            buffers.update(tensor.buffer for tensor in (*op.inputs, *op.outputs))
            yield op
        elif op.base == "wait_tensor" and op.inputs[0].buffer in buffers:
            yield op
