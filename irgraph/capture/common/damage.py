"""What may be wrong with a recording: values that make no sense, text that is no JSON."""

from __future__ import annotations

import json
import re
import reprlib

short_repr = reprlib.repr
"""Show a value in a message, cut where it is long."""

MAX_INT64 = 2**63 - 1
"""torch counts in 64 bits."""

# torch writes the words of record_function and the names of modules as they are
_NESTED = re.compile(rb'("id": \d+, "name": ")(.*?)(", "ctrl_deps": \d)', re.DOTALL)
_FLAT = re.compile(rb'(\{\s*"name": ")(.*?)(", "id": \d+, "rf_id": \d)', re.DOTALL)

_SIGN_EXTENDED = re.compile(rb"(?<!\\)((?:\\\\)*)\\uffffff([89a-f][0-9a-f])")


class DamagedError(ValueError):
    """A recorded value makes no sense; the message says which one and why."""


def require_int(value: object, label: str, minimum: int | None = None) -> int:
    """Return a recorded whole number.

    Raises:
        DamagedError: it is none, is less than ``minimum`` or does not fit into 64 bits.
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise DamagedError(f"its {label} is {short_repr(value)}, not a whole number")
    if minimum is not None and value < minimum:
        raise DamagedError(f"its {label} is {value}, less than {minimum}")
    if not -MAX_INT64 <= value <= MAX_INT64:
        raise DamagedError(f"its {label} does not fit into 64 bits")
    return value


def as_utf8(data: bytes) -> tuple[bytes, list[str]]:
    """Return a text with a mark in place of each byte that is no UTF-8, and a note of them."""
    try:
        data.decode()
    except UnicodeDecodeError:
        text = data.decode("utf-8", "replace")
        count = text.count("\ufffd") - data.count("\ufffd".encode())
        return text.encode(), [f"{count} bytes are no UTF-8: read as \ufffd"]
    return data, []


def restore_bytes(data: bytes) -> bytes:
    r"""Return a text with the bytes back that torch wrote as if they were characters.

    torch 2.13 writes every byte beyond ASCII as a sign-extended number: ``\uffffffc3``.
    """
    return _SIGN_EXTENDED.sub(lambda match: match[1] + bytes.fromhex(match[2].decode()), data)


def escape_names(data: bytes) -> tuple[bytes, list[str]]:
    """Return the text of a recording with its names escaped as JSON wants it, and a note of them.

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
