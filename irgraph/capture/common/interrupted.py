"""Repairs calls of backward that a recording leaves open because an exception ended their callees.

Checkpointing (without re-entry, torch's default) recomputes up to the last tensor that is needed,
and then stops with an exception. The observer of execution traces does not close ranges that an
exception ends, and all later calls count as called by them: each checkpointed layer nests all later
calls a few ranges deeper.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from irgraph.capture.common.nodes import RecordedNode

EVALUATE = "autograd::engine::evaluate_function: "

_BUILT_IN = re.compile(r"(Backward\d+|torch::autograd::\w+)$", re.ASCII)
"""Ends of the names of nodes that torch defines; unlike functions written in Python, these never
call backward themselves."""


def close_interrupted(nodes: Sequence[RecordedNode]) -> None:
    """Move calls out of evaluations that had ended before; ``nodes`` are in order of starts.

    The engine evaluates nodes one after the other, so the start of the next evaluation shows that
    the previous one has ended, unless the previous node is written in Python, calls backward
    itself, and nothing was interrupted in it.
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
    """Return whether a node's evaluation has ended when a range in it calls another one."""
    if caller == evaluation.id or last_orphan > evaluation.id:
        return True
    return _BUILT_IN.search(evaluation.name) is not None
