"""Checks and repairs of damaged recordings: values that make no sense, text that is no JSON."""

from __future__ import annotations

import json
import re
import reprlib

short_repr = reprlib.repr
"""Return a value's representation for a message, abbreviated if it is long."""

MAX_INT64 = 2**63 - 1
"""Largest number in a recording: torch counts in 64 bits."""

# torch does not escape the texts of record_function and the names of modules
_NESTED = re.compile(rb'("id": \d+, "name": ")(.*?)(", "ctrl_deps": \d)', re.DOTALL)
_FLAT = re.compile(rb'(\{\s*"name": ")(.*?)(", "id": \d+, "rf_id": \d)', re.DOTALL)

_SIGN_EXTENDED = re.compile(rb"(?<!\\)((?:\\\\)*)\\uffffff([89a-f][0-9a-f])")


class DamagedError(ValueError):
    """Raised for a recorded value that makes no sense; the message names it and the reason."""


def require_int(value: object, label: str, minimum: int | None = None) -> int:
    """Return a recorded integer.

    Raises:
        DamagedError: the value is no integer, is less than ``minimum`` or does not fit into 64
            bits.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise DamagedError(f"its {label} is {short_repr(value)}, not a whole number")
    if minimum is not None and value < minimum:
        raise DamagedError(f"its {label} is {value}, less than {minimum}")
    if not -MAX_INT64 <= value <= MAX_INT64:
        raise DamagedError(f"its {label} does not fit into 64 bits")
    return value


def as_utf8(data: bytes) -> tuple[bytes, list[str]]:
    """Return a text with a mark for each byte that is no UTF-8, and a note on their number."""
    try:
        data.decode()
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        count = text.count("\ufffd") - data.count("\ufffd".encode())
        return text.encode(), [f"{count} bytes are no UTF-8: read as \ufffd"]
    return data, []


def restore_bytes(data: bytes) -> bytes:
    r"""Return a text with the bytes restored that torch wrote as if they were characters.

    torch 2.13 writes every byte beyond ASCII as a sign-extended number: ``\uffffffc3``.
    """
    if b"\\uffffff" not in data:
        return data
    return _SIGN_EXTENDED.sub(lambda match: match[1] + bytes.fromhex(match[2].decode()), data)


def escape_names(data: bytes) -> tuple[bytes, list[str]]:
    """Return the text of a recording with its names escaped for JSON, and a note on their number.

    torch escapes neither quotes nor line ends in the names of ranges.
    """
    count = 0

    def escape(match: re.Match[bytes]) -> bytes:
        nonlocal count
        prefix, name, suffix = match.groups()
        try:
            json.loads(b'"' + name + b'"')
        except ValueError:
            count += 1
            name = json.dumps(name.decode("utf-8", "replace"))[1:-1].encode()
        return prefix + name + suffix

    data = (_FLAT if b'"attrs"' not in data else _NESTED).sub(escape, data)
    note = f"{count} names hold characters that torch did not escape: read as they are"
    return data, [note] if count else []
