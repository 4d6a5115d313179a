"""Structural equality of operations, and keys of calls that are equal in all that counts."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import TypeAlias

from irgraph.ir.op import Op, Result, Value


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


ValueForm: TypeAlias = Callable[["Value | Result"], Hashable]
"""Returns the key of a tensor or of a literal."""


def call_form(op: Op, form: ValueForm) -> Hashable:
    """Return the key of a call and of all calls below it.

    It has the name, the form of each operand, result and attribute, and which operands are
    written.
    """
    attributes: Hashable = ()
    if op.attributes:
        pairs = op.attributes.items()
        attributes = tuple([(name, value_form(value, form)) for name, value in pairs])
    marks: Hashable = ()
    if op.written:
        marks = tuple([tensor.name in op.written for tensor in op.inputs])
    body: Hashable = ()
    if op.body:
        body = tuple([call_form(child, form) for child in op.body])
    operands = value_form(op.operands, form)
    results = value_form(op.results, form)
    return op.name, operands, attributes, results, marks, body


def value_form(value: Value | Result | tuple[Result, ...], form: ValueForm) -> Hashable:
    """Return the key of a value: a list as the keys of its items."""
    if type(value) is not tuple:
        return form(value)
    # keys are computed for every op of a new step: one call for each item that is no list
    return tuple([value_form(v, form) if type(v) is tuple else form(v) for v in value])


def typed(value: Value | Result) -> Hashable:
    """Return a literal with its type: 1, 1.0 and True are equal, but mean different things."""
    return type(value), value
