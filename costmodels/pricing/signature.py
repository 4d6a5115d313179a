"""What the time of a call depends on: not its names, modules or notes, nor where buffers begin."""

from __future__ import annotations

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor


class _Names:
    """The tensors and buffers of a call by the order in which they are met.

    Attributes:
        names: numbers of tensors.
        buffers: numbers of buffers, each with the offset of the first tensor met there.
    """

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self.buffers: dict[str, tuple[int, int]] = {}


def signature(op: Op) -> tuple[object, ...]:
    """Return what calls have in common that take the same time.

    Which operands are the same tensor matters, and how far from each other they lie in a buffer.
    """
    return _signature(op, _Names())


def _signature(op: Op, known: _Names) -> tuple[object, ...]:
    written = op.written
    body = tuple([_signature(child, known) for child in op.body]) if op.body else ()
    operands = tuple([_sketch(value, written, known) for value in op.operands])
    results = tuple([_sketch(value, written, known) for value in op.results])
    if not op.attributes:
        return op.name, body, operands, results
    named = [_sketch(value, written, known) for value in op.attributes.values()]
    return op.name, body, operands, results, *op.attributes, *named


def _sketch(value: object, written: frozenset[str], known: _Names) -> object:
    if type(value) is Tensor:
        name, offset = value.name, value.offset
        which, start = known.buffers.setdefault(value.buffer, (len(known.buffers), offset))
        same = known.names.setdefault(name, len(known.names))
        return (
            value.dtype, value.shape, value.strides, offset - start, value.device, which, same,
            name in written,
        )  # fmt: skip
    if type(value) is tuple:
        return tuple([_sketch(item, written, known) for item in value])
    return value
