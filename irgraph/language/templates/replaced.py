"""The ops that new ones replace: the matched ones, and calls without effect on their results."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from irgraph.ir.op import Op, results_by_name, tensors_in
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.liveness import Liveness
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Bound, NewOp, flatten_lists
from irgraph.language.patterns.select import SelectionResult


def replaced_ops(selected: SelectionResult, match: Match, new_ops: Sequence[NewOp]) -> list[Op]:
    """Return the ops that new ones replace, in launch order.

    A call that only returns its operand, such as a cast to the operand's own type, is one of them
    if no new op makes this operand.
    """
    names = redefined_names(new_ops, match)
    remaining = {tensor.name for tensor in tensors_in([match.values[name] for name in names])}
    idle = _idle_readers(selected.index, match, remaining)
    return [selected.op(position) for position in sorted({*match.ops, *idle})]


def redefined_names(new_ops: Sequence[NewOp], match: Match) -> list[str]:
    """Return the names of the pattern that a template redefines."""
    names = [
        part.name
        for new in new_ops
        for part in flatten_lists(new.results)
        if isinstance(part, Bound)
    ]
    return [name for name in names if name in match.values]


def _idle_readers(index: Index, match: Match, remaining: Collection[str]) -> Iterator[int]:
    """Yield the positions of idle calls on results of a match that do not remain."""
    liveness = Liveness(index)
    inside = {i for outer in match.ops for i in range(outer, index.end[outer])}
    names = {name for outer in match.ops for name in results_by_name(index.ops[outer])}
    for name in names.difference(remaining):
        for position in index.users_of(name):
            op = index.ops[position]
            same_phase = op.phase == index.ops[match.root].phase
            if position not in inside and same_phase and not op.outputs and liveness.idle(op):
                yield _outermost_idle(index, liveness, position)


def _outermost_idle(index: Index, liveness: Liveness, position: int) -> int:
    """Return the position of the outermost idle call around an idle one."""
    parent = index.parent[position]
    while parent >= 0 and not index.ops[parent].is_annotation and liveness.idle(index.ops[parent]):
        position, parent = parent, index.parent[parent]
    return position
