"""Chakra files: a ``GlobalMetadata``, then ``Node`` messages, each after its length in bytes.

Lengths are varints of protobuf (``src/third_party/utils/protolib.py`` of
github.com/mlcommons/chakra, ``feeder_v3/protobuf_util.h`` of ASTRA-sim).
"""

from __future__ import annotations

from collections.abc import Iterable

from irgraph.capture.chakra.schema import Message, messages
from irgraph.diagnostics import SourceSpan, fail

VERSION, ATTRIBUTE, NAME = 0x0A, 0x12, 0x0A
"""First bytes of a metadata's fields, and of an attribute: their numbers, with a length."""

NODE = (0x08, 0x12, 0x1A)
"""First bytes of a node: its id, or its name or type where the id is 0."""

LONGEST = 5
"""Bytes of the longest length."""

LONGEST_VERSION = 32
"""Bytes of a schema's version, such as ``0.0.4``."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that starts at a byte, and where it ends; -1 where it is none."""
    value = 0
    for shift, byte in enumerate(data[at : at + LONGEST]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at + shift + 1
    return -1, len(data)


def encoded(metadata: Message, nodes: Iterable[Message]) -> bytes:
    """Return the content of a file."""
    return b"".join(_delimited(message) for message in (metadata, *nodes))


def _delimited(message: Message) -> bytes:
    data: bytes = message.SerializeToString()
    size, head = len(data), bytearray()
    while size > 0x7F:
        head.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes([*head, size]) + data


def decoded(data: bytes, source: str) -> tuple[Message, list[Message]]:
    """Return a file's metadata and its nodes; ``source`` names it in messages.

    Raises ``IrgraphError`` where it is cut off or damaged, with the message it happens in.
    """
    from google.protobuf.message import DecodeError

    kinds = messages()
    found: list[Message] = []
    at = 0
    while at < len(data):
        size, start = varint(data, at)
        at = start + size
        kind = "Node" if found else "GlobalMetadata"
        where = f"message {len(found)} ({kind}) at byte {start}"
        if size < 0 or at > len(data):
            raise fail(f"the Chakra trace is cut off in {where}", SourceSpan(source))
        message = kinds[kind]()
        try:
            message.ParseFromString(data[start:at])
        except DecodeError as error:
            raise fail(
                f"the Chakra trace is damaged in {where}: {error}", SourceSpan(source)
            ) from None
        found.append(message)
    if not found:
        raise fail("the Chakra trace is empty", SourceSpan(source))
    return found[0], found[1:]


def recognised(start: bytes) -> bool:
    """Return whether a file that starts so is a Chakra trace: metadata, then a node."""
    size, at = varint(start, 0)
    end = at + size
    fields = 0
    while at < min(end, len(start)):
        tag, (length, inner) = start[at], varint(start, at + 1)
        at = inner + length
        if tag not in (VERSION, ATTRIBUTE) or length < 0 or at > end:
            return False
        if tag == VERSION and length > LONGEST_VERSION:
            return False
        if tag == ATTRIBUTE and start[inner : inner + 1] not in (b"", bytes([NAME])):
            return False
        fields += 1
    if not fields:
        return False
    _, node = varint(start, end)
    return end >= len(start) or start[node : node + 1] in [b"", *(bytes([b]) for b in NODE)]
