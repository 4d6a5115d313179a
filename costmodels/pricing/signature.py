"""Signatures of calls: everything that affects a call's time, but no names, notes or addresses."""

from __future__ import annotations

from collections.abc import Iterable

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

MAX_TYPES = 65536
"""Maximum number of tensor types with cached tokens."""

_TOKENS: dict[object, object] = {}


class Signatures:
    """Signatures of calls of one graph; each of its tensors is inspected once."""

    def __init__(self) -> None:
        self._types: dict[int, object] = {}
        self._names: dict[str, int] = {}
        self._buffers: dict[str, tuple[int, int]] = {}

    def signature(self, op: Op) -> tuple[object, ...]:
        """Return a signature that is equal for calls of equal time.

        It includes the identity of operands and their distances in a buffer: tensors and buffers
        have numbers in the order of their first occurrence. All parts are in one flat tuple, as
        garbage collection visits every tuple of a new step.
        """
        self._names, self._buffers = {}, {}
        parts: list[object] = []
        self._add_op(op, parts)
        return tuple(parts)

    def _add_op(self, op: Op, parts: list[object]) -> None:
        """Add an op and all ops below it."""
        attributes = op.attributes
        counts = len(op.body), len(op.operands), len(op.results), len(attributes)
        parts += op.name, *counts, *attributes
        for child in op.body:
            self._add_op(child, parts)
        self._add_values(op.operands, op, parts)
        self._add_values(op.results, op, parts)
        if attributes:
            self._add_values(attributes.values(), op, parts)

    def _add_values(self, values: Iterable[object], op: Op, parts: list[object]) -> None:
        names, buffers, types = self._names, self._buffers, self._types
        for value in values:
            if type(value) is Tensor:
                kind = types.get(id(value))
                if kind is None:
                    kind = types[id(value)] = _type_token(value)
                number, start = buffers.setdefault(value.buffer, (len(buffers), value.offset))
                name = names.setdefault(value.name, len(names))
                parts += kind, value.offset - start, number, name, value.name in op.written
            elif type(value) is tuple:
                parts += "[]", len(value)
                self._add_values(value, op, parts)
            else:
                parts.append(value)


def _type_token(tensor: Tensor) -> object:
    """Return the token of a tensor's type, which is independent of its address."""
    kind = (tensor.dtype, tensor.shape, tensor.strides, tensor.device)
    token = _TOKENS.get(kind)
    if token is None:
        if len(_TOKENS) >= MAX_TYPES:
            _TOKENS.clear()  # a signature refers to its tokens: none is used twice
        token = _TOKENS[kind] = object()
    return token
