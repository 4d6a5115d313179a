"""Text of files for terminals and JSON, with control and invisible characters as codes."""

from __future__ import annotations

import json
import math
import re
from typing import Any

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\ud800-\udfff\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Control characters except tab and line feed, marks of direction, characters without width, and
surrogates."""


def visible_text(text: str) -> str:
    """Return a text with the code of every character that a terminal would obey or hide."""
    return _HIDDEN.sub(lambda match: _code(match[0]), text)


def _code(char: str) -> str:
    number = ord(char)
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def json_text(value: Any, *, indent: int | None = None) -> str:  # noqa: ANN401
    """Return a value as JSON that is safe to show; a number that is not finite is ``null``."""
    try:
        text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(value), indent=indent, ensure_ascii=False)
    return _HIDDEN.sub(lambda match: json.dumps(match[0])[1:-1], text)


def _finite(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
