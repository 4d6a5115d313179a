"""Structural equality of operations."""

from __future__ import annotations

from irgraph.ir.op import Op


def same_op(a: Op, b: Op) -> bool:
    """Return whether two ops, bodies included, are equal; notes and origins are ignored."""
    return (
        _head(a) == _head(b)
        and dict(a.attributes) == dict(b.attributes)
        and len(a.body) == len(b.body)
        and all(map(same_op, a.body, b.body))
    )


def _head(op: Op) -> tuple[object, ...]:
    return (
        op.name,
        op.operands,
        op.results,
        op.written,
        op.thread,
        op.stream,
        op.module,
        op.phase,
    )
