"""Calls of backward that a recording leaves open, because an exception ended what they called.

Checkpointing (without re-entry, torch's default) computes again until the last tensor that is
needed, and then stops by an exception. The observer of execution traces does not close the ranges
that end so, and everything after counts as called by them: with every checkpointed layer, all that
follows lies some ranges deeper.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from irgraph.capture.common.nodes import RecordedNode

EVALUATE = "autograd::engine::evaluate_function: "

_BUILT_IN = re.compile(r"(Backward\d+|torch::autograd::\w+)$", re.ASCII)
"""Ends of the names of nodes that torch defines; they run no backward of their own, as functions
written in Python may."""


def close_interrupted(nodes: Sequence[RecordedNode]) -> None:
    """Take calls out of those of backward that had ended; nodes are given in order of starts.

    The engine evaluates nodes one after the other, so the next one shows that one has ended, unless
    that one is written in Python, calls backward itself, and nothing was interrupted in it.
    """
    by_id = {node.id: node for node in nodes}
    evaluating: dict[int, int] = {}  # the innermost evaluation around each range, or itself
    ended: set[int] = set()
    last_orphan = 0
    for node in nodes:
        if node.parent and node.parent not in by_id:
            last_orphan = node.id
        is_evaluation = node.name.startswith(EVALUATE)
        enclosing = evaluating.get(node.parent, 0)
        while enclosing:
            if is_evaluation and _is_over(by_id[enclosing], node.parent, last_orphan):
                ended.add(enclosing)
            if enclosing not in ended:
                break
            node.parent = by_id[enclosing].parent
            enclosing = evaluating.get(node.parent, 0)
        evaluating[node.id] = node.id if is_evaluation else enclosing


def _is_over(evaluation: RecordedNode, caller: int, last_orphan: int) -> bool:
    """Return whether a node's evaluation has ended where another is called by a range in it."""
    if caller == evaluation.id or last_orphan > evaluation.id:
        return True
    return _BUILT_IN.search(evaluation.name) is not None
