"""Duplicate keys of JSON objects, which decoders drop without a word."""

from __future__ import annotations

import json
from collections.abc import Sequence


def unique_keys(items: Sequence[tuple[str, object]]) -> dict[str, object]:
    """Return a JSON object; raise ``ValueError`` for a duplicate key (a hook of ``json``)."""
    result = dict(items)
    if len(result) < len(items):
        keys = [key for key, _ in items]
        duplicate = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"an object has the key {duplicate!r} twice")
    return result


def refuse_duplicate_keys(data: bytes | str) -> None:
    """Raise ``ValueError`` if an object of valid JSON has a key twice."""
    json.loads(data, object_pairs_hook=unique_keys)
