"""What the time of a call depends on: not its names, modules or notes, nor where buffers begin."""

from __future__ import annotations

from itertools import count

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

MOST_TYPES = 65536
"""Types of tensors whose numbers are remembered."""

_TYPES: dict[object, int] = {}
_NUMBERS = count()


class Signatures:
    """Signatures of calls of one graph; each of its tensors is looked at once."""

    def __init__(self) -> None:
        self._types: dict[int, int] = {}
        self._names: dict[str, int] = {}
        self._buffers: dict[str, tuple[int, int]] = {}

    def of(self, op: Op) -> tuple[object, ...]:
        """Return what calls have in common that take the same time.

        Which operands are the same tensor matters, and how far from each other they lie in a
        buffer: tensors and buffers have numbers in the order in which they are met.
        """
        self._names, self._buffers = {}, {}
        return self._of(op)

    def _of(self, op: Op) -> tuple[object, ...]:
        written, sketch = op.written, self._sketch
        body = tuple([self._of(child) for child in op.body]) if op.body else ()
        operands = tuple([sketch(value, written) for value in op.operands])
        results = tuple([sketch(value, written) for value in op.results])
        if not op.attributes:
            return op.name, body, operands, results
        named = [sketch(value, written) for value in op.attributes.values()]
        return op.name, body, operands, results, *op.attributes, *named

    def _sketch(self, value: object, written: frozenset[str]) -> object:
        if type(value) is Tensor:
            kind = self._types.get(id(value))
            if kind is None:
                kind = self._types[id(value)] = _number(value)
            names, buffers = self._names, self._buffers
            which, start = buffers.setdefault(value.buffer, (len(buffers), value.offset))
            same = names.setdefault(value.name, len(names))
            return (kind, value.offset - start, which, same, value.name in written)
        if type(value) is tuple:
            return ("[]", *[self._sketch(item, written) for item in value])
        return value


def _number(tensor: Tensor) -> int:
    """Return what stands for all tensors of this type, wherever they lie on their device."""
    kind = (tensor.dtype, tensor.shape, tensor.strides, tensor.device)
    found = _TYPES.get(kind)
    if found is None:
        if len(_TYPES) >= MOST_TYPES:
            _TYPES.clear()  # numbers are never given twice
        found = _TYPES[kind] = next(_NUMBERS)
    return found
