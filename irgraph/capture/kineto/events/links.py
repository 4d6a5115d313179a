"""Links between events by ids: from device work and backward operators to operators."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from irgraph.capture.kineto.reading.trace import EventKind, Integers, KinetoTrace


def linked_operators(trace: KinetoTrace, launch: Integers) -> Integers:
    """Return the operator of device work without a launch by its ``External id``, -1 for none.

    Ids that several operators share are ambiguous.
    """
    columns = trace.columns
    linked = np.full(len(trace), -1, "i4")
    work = np.flatnonzero(trace.on_device & (launch < 0) & (columns["external"] > 0))
    operators = np.flatnonzero((columns["kind"] == EventKind.OP) & (columns["external"] > 0))
    ids, first, counts = np.unique(
        columns["external"][operators], return_index=True, return_counts=True
    )
    if len(work) and len(ids):
        positions = np.minimum(np.searchsorted(ids, columns["external"][work]), len(ids) - 1)
        is_known = (ids[positions] == columns["external"][work]) & (counts[positions] == 1)
        linked[work[is_known]] = operators[first[positions[is_known]]]
    return linked


def forward_operators(trace: KinetoTrace, engine: Collection[int]) -> dict[int, int]:
    """Return the forward operator by backward operator, from sequence numbers or flow events.

    Several forward operators share a number, as views have none of their own: the last of them
    created the autograd node. ``engine`` has the numbers of autograd's threads.
    """
    sequence, forward = trace.columns["sequence"], trace.columns["forward"]
    operators = np.flatnonzero((trace.columns["kind"] == EventKind.OP) & (sequence >= 0))
    backward = np.isin(trace.columns["thread"][operators], list(engine))
    backward |= forward[operators] > 0
    last: dict[int, int] = {}
    forward_by_backward: dict[int, int] = {}
    for row, is_backward in zip(operators.tolist(), backward.tolist(), strict=True):
        number = int(sequence[row])
        if not is_backward:
            last[number] = row
        elif number in last:
            forward_by_backward[row] = last[number]
    for row, origin in trace.forward_links.items():
        forward_by_backward.setdefault(row, origin)
    return forward_by_backward
