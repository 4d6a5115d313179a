"""ONNX models."""

from __future__ import annotations

from collections.abc import Mapping

from irgraph.capture.common.result import Capture
from irgraph.capture.common.source import HEAD_BYTES, Source
from irgraph.capture.lower import FrontEnd

VARINT, BYTES = 0, 2
"""Wire types of protobuf: numbers, and texts or messages."""

FIELDS = {
    1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES, 5: VARINT, 6: BYTES, 7: BYTES, 8: BYTES, 14: BYTES,
    20: BYTES, 25: BYTES, 26: BYTES,
}  # fmt: skip
"""Wire types of the fields of a ``ModelProto``, by field number."""

GRAPH, OPSETS = 7, 8


def recognises(source: Source) -> bool:
    """Recognise a ``ModelProto`` by its fields: a graph or opsets, and only known fields."""
    data, position, seen = source.start, 0, set()
    try:
        while position < len(data):
            tag, position = _varint(data, position)
            if FIELDS.get(tag >> 3) != tag & 7:
                return False
            seen.add(tag >> 3)
            value, position = _varint(data, position)
            position += value if tag & 7 == BYTES else 0
    except IndexError:  # the first bytes end within a number
        position = len(data) + 1
    cut = position > len(data)
    return (GRAPH in seen or OPSETS in seen) and (not cut or len(data) >= HEAD_BYTES)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """Decode a number of seven bits per byte, -1 if malformed; return it with its end position."""
    value = 0
    for length in range(10):
        value |= (data[position + length] & 0x7F) << 7 * length
        if data[position + length] < 0x80:
            return value, position + length + 1
    return -1, len(data)


def lower(
    source: Source, *, name: str | None = None, dims: Mapping[str, int] | None = None
) -> Capture:
    """Lower the forward pass; ``dims`` are the sizes of its open dimensions, by name."""
    from irgraph.capture.onnx import lower_onnx

    return lower_onnx(source, dims=dims, name=name)


FRONT_END = FrontEnd(
    "an ONNX model", recognises, lower, reason="it is a forward pass without measurements"
)
