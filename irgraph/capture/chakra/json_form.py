"""Reads Chakra traces as ``chakra_jsonizer`` prints them: one JSON object for each message."""

from __future__ import annotations

import json
import re

from irgraph.capture.chakra.schema import Message, messages
from irgraph.diagnostics import SourceSpan, fail

FEEDER_KEY = "workload_graph"
"""Key of the JSON that Chakra's feeder reads: nodes with durations, and without operands."""

_BLANKS = re.compile(r"\s*")


def decode_json(data: bytes, source: str) -> tuple[Message, list[Message]]:
    """Return the metadata and the nodes of a printed trace; ``source`` is its name in messages.

    The objects follow each other without a separator (``src/jsonizer/jsonizer.py`` of
    github.com/mlcommons/chakra). Raises ``IrgraphError`` with the number of the affected message
    if the text is truncated or damaged.
    """
    kinds = messages()
    from google.protobuf.json_format import ParseDict, ParseError

    parsed: list[Message] = []
    for number, value in enumerate(_objects(data, source)):
        kind = "Node" if number else "GlobalMetadata"
        try:
            parsed.append(ParseDict(value, kinds[kind](), ignore_unknown_fields=True))
        except (ParseError, TypeError, ValueError, RecursionError) as error:
            message = f"the Chakra trace is damaged in message {number} ({kind}): {error}"
            raise fail(message, SourceSpan(source)) from None
    return parsed[0], parsed[1:]


def _objects(data: bytes, source: str) -> list[dict[str, object]]:
    """Return the JSON objects of a text, of which there is at least one."""
    text, decoder = data.decode("utf-8", "replace"), json.JSONDecoder()
    objects: list[dict[str, object]] = []
    position = _end_of_blanks(text, 0)
    while position < len(text):
        try:
            value, end = decoder.raw_decode(text, position)
        except (ValueError, RecursionError) as error:
            place = f"message {len(objects)} at character {position}"
            message = f"the Chakra trace is cut off or damaged in {place}: {error}"
            raise fail(message, SourceSpan(source)) from None
        if not isinstance(value, dict):
            message = f"message {len(objects)} of the Chakra trace is no object"
            raise fail(message, SourceSpan(source))
        if FEEDER_KEY in value:
            raise _feeder_error(source)
        objects.append(value)
        position = _end_of_blanks(text, end)
    return objects


def _end_of_blanks(text: str, position: int) -> int:
    match = _BLANKS.match(text, position)
    return match.end() if match else position


def _feeder_error(source: str) -> Exception:
    return fail(
        f"the Chakra trace ({FEEDER_KEY}) carries no tensors, so no model can be made of it: this "
        "form has names, durations and dependencies alone",
        SourceSpan(source),
        hint="give the .et file that chakra_converter made, or what chakra_jsonizer prints of it",
    )
