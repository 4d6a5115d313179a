"""Signatures of calls: everything that affects a call's time, but no names, notes or addresses."""

from __future__ import annotations

from itertools import count

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

MAX_TYPES = 65536
"""Maximum number of tensor types with cached numbers."""

_TYPES: dict[object, int] = {}
_NUMBERS = count()


class Signatures:
    """Signatures of calls of one graph; each of its tensors is inspected once."""

    def __init__(self) -> None:
        self._types: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._buffers: dict[str, tuple[int, int]] = {}

    def signature(self, op: Op) -> tuple[object, ...]:
        """Return a signature that is equal for calls of equal time.

        It includes the identity of operands and their distances in a buffer: tensors and buffers
        have numbers in the order of their first occurrence.
        """
        self._names, self._buffers = {}, {}
        return self._op_signature(op)

    def _op_signature(self, op: Op) -> tuple[object, ...]:
        written, sketch = op.written, self._sketch
        body = tuple([self._op_signature(child) for child in op.body]) if op.body else ()
        operands = tuple([sketch(value, written) for value in op.operands])
        results = tuple([sketch(value, written) for value in op.results])
        if not op.attributes:
            return op.name, body, operands, results
        attributes = [sketch(value, written) for value in op.attributes.values()]
        return op.name, body, operands, results, *op.attributes, *attributes

    def _sketch(self, value: object, written: frozenset[str]) -> object:
        if type(value) is Tensor:
            kind = self._types.get(id(value))
            if kind is None:
                kind = self._types[id(value)] = _type_number(value)
            names, buffers = self._names, self._buffers
            buffer_number, start = buffers.setdefault(value.buffer, (len(buffers), value.offset))
            name_number = names.setdefault(value.name, len(names))
            return (kind, value.offset - start, buffer_number, name_number, value.name in written)
        if type(value) is tuple:
            return ("[]", *[self._sketch(item, written) for item in value])
        return value


def _type_number(tensor: Tensor) -> int:
    """Return the number of a tensor's type, which is independent of its address."""
    kind = (tensor.dtype, tensor.shape, tensor.strides, tensor.device)
    number = _TYPES.get(kind)
    if number is None:
        if len(_TYPES) >= MAX_TYPES:
            _TYPES.clear()  # numbers are never given twice
        number = _TYPES[kind] = next(_NUMBERS)
    return number
