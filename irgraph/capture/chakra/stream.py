"""Codec of Chakra files: ``GlobalMetadata``, then ``Node`` messages, each after its byte length.

Lengths are varints of protobuf (``src/third_party/utils/protolib.py`` of
github.com/mlcommons/chakra, ``feeder_v3/protobuf_util.h`` of ASTRA-sim).
"""

from __future__ import annotations

from collections.abc import Iterable

from irgraph.capture.chakra.json_form import decode_json
from irgraph.capture.chakra.schema import Message, messages
from irgraph.diagnostics import SourceSpan, fail

VERSION, ATTRIBUTE, NAME = 0x0A, 0x12, 0x0A
"""First bytes of the metadata's fields and of an attribute: field numbers of length-delimited
fields."""

NODE = (0x08, 0x12, 0x1A)
"""First bytes of a node: its id, or its name or type if the id is 0."""

MAX_LENGTH_BYTES = 5
"""Maximum bytes of a length."""

MAX_VERSION_BYTES = 32
"""Maximum bytes of a schema's version, such as ``0.0.4``."""


def varint(data: bytes, start: int) -> tuple[int, int]:
    """Return the number that starts at a byte, -1 if malformed, and the position after it."""
    value = 0
    for shift, byte in enumerate(data[start : start + MAX_LENGTH_BYTES]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, start + shift + 1
    return -1, len(data)


def encode(metadata: Message, nodes: Iterable[Message]) -> bytes:
    """Return the content of a file."""
    return b"".join(_delimited(message) for message in (metadata, *nodes))


def _delimited(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    size, head = len(data), bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size]) + data


def decode(data: bytes, source: str) -> tuple[Message, list[Message]]:
    """Return a file's metadata and its nodes; ``source`` is its name in messages.

    The file may be printed as JSON. Raises ``IrgraphError`` with the number of the affected
    message if it is truncated or damaged.
    """
    if data.lstrip()[:1] == b"{":
        return decode_json(data, source)
    kinds = messages()
    from google.protobuf.message import DecodeError

    parsed: list[Message] = []
    position = 0
    while position < len(data):
        size, start = varint(data, position)
        position = start + size
        kind = "Node" if parsed else "GlobalMetadata"
        location = f"message {len(parsed)} ({kind}) at byte {start}"
        if size < 0 or position > len(data):
            raise fail(f"the Chakra trace is cut off in {location}", SourceSpan(source))
        message = kinds[kind]()
        try:
            message.ParseFromString(data[start:position])
        except DecodeError as error:
            raise fail(
                f"the Chakra trace is damaged in {location}: {error}", SourceSpan(source)
            ) from None
        parsed.append(message)
    if not parsed:
        raise fail("the Chakra trace is empty", SourceSpan(source))
    return parsed[0], parsed[1:]


def is_chakra(start: bytes) -> bool:
    """Return whether the start of a file is that of a Chakra trace: metadata, then a node."""
    size, position = varint(start, 0)
    end = position + size
    fields = 0
    while position < min(end, len(start)):
        tag, (length, inner) = start[position], varint(start, position + 1)
        position = inner + length
        if tag not in (VERSION, ATTRIBUTE) or length < 0 or position > end:
            return False
        if tag == VERSION and length > MAX_VERSION_BYTES:
            return False
        if tag == ATTRIBUTE and start[inner : inner + 1] not in (b"", bytes([NAME])):
            return False
        fields += 1
    if not fields:
        return False
    _, node = varint(start, end)
    return end >= len(start) or start[node : node + 1] in [b"", *(bytes([b]) for b in NODE)]
