"""Times written as decimals, in thousandths: exact, as 64-bit floats of microseconds are not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Any

import numpy as np

from irgraph.capture.kineto.reading.trace import Array

MAX_NUMBER = 1 << 62
"""Maximum magnitude of a number in a trace."""

MAX_EXACT_FLOAT = 2.0**43
"""Maximum microseconds, 101 days, of which a 64-bit float still holds each nanosecond."""

MAX_DIGITS = 18
"""Maximum number of decimals that fit into 64 bits."""

_MAX_ERROR = 1000 * 2.0**-52
"""Maximum error of the thousandths of a decimal that was read as a float, as a share of it."""

_PLAIN = np.isin(np.arange(256), list(b"0123456789.,"))
"""Mask of the characters of plain decimals and of the commas between them."""


def thousandths(values: Sequence[Any]) -> Array:
    """Return numbers times 1000 as integers; further digits are truncated.

    Args:
        values: all of one type: floats, or decimal texts, which are read exactly.

    Raises ``ValueError`` or ``OverflowError`` for a text that is no number, or out of range.
    """
    if isinstance(values[0], float):
        return float_thousandths(np.fromiter(values, "f8", len(values)))
    text = b",".join(values)
    flat = np.frombuffer(text, "u1")
    dots, ends = np.flatnonzero(flat == ord(".")), np.flatnonzero(flat == ord(","))
    ends = np.append(ends, len(flat))
    if 0 < len(dots) < len(ends) and _PLAIN[flat].all():
        # some numbers are whole
        return thousandths([v if b"." in v else v + b".0" for v in map(bytes, values)])
    digits = ends - dots - 1 if len(dots) == len(ends) else np.zeros(0, "i8")
    if len(digits) and bool(np.all(digits == 3)) and b'"' not in text:
        numbers: Array = np.fromstring(text.replace(b".", b"").decode("ascii"), "i8", sep=",")
        # numbers beyond 64 bits are cut off without an error
        if int(numbers.max()) >= MAX_NUMBER or int(numbers.min()) <= -MAX_NUMBER:
            raise OverflowError
        return numbers
    if len(digits) and _PLAIN[flat].all() and digits.min() > 0 and digits.max() <= MAX_DIGITS:
        return _split_thousandths(text, digits)
    return np.array(list(map(_thousandth, map(bytes, values), repeat(MAX_NUMBER))), "i8")


def float_thousandths(values: Array) -> Array:
    """Return floats times 1000 as integers; decimals beyond their precision are rounded."""
    magnitudes = np.abs(values)
    if magnitudes.max() * 1000 > MAX_NUMBER:
        raise OverflowError
    # of the product of a whole float, rounding could change the last digit
    integers = np.floor(magnitudes)
    decimals = (magnitudes - integers) * 1000
    rounded = np.rint(decimals)
    has_further_digits = np.abs(decimals - rounded) > magnitudes * _MAX_ERROR
    if has_further_digits.any():
        rounded = np.where(has_further_digits, np.floor(decimals), rounded)
    result: Array = integers.astype("i8") * 1000 + rounded.astype("i8")
    return np.where(values < 0, -result, result)


def _split_thousandths(text: bytes, digits: Array) -> Array:
    """Return plain decimals times 1000, which have these numbers of decimals."""
    parts = np.fromstring(text.replace(b".", b",").decode("ascii"), dtype="i8", sep=",")
    integers, decimals = parts[::2], parts[1::2]
    if len(integers) != len(decimals) or int(integers.max()) > MAX_NUMBER // 1000:
        raise OverflowError
    scale = 10 ** np.abs(digits - 3).astype("i8")
    result: Array = integers * 1000 + np.where(digits < 3, decimals * scale, decimals // scale)
    return result


def _thousandth(text: bytes, limit: int) -> int:
    """Return one decimal text times 1000."""
    text = text.strip(b'"')
    head, _, tail = text.partition(b".")
    if not tail.isdigit() and (tail or not head.lstrip(b"-").isdigit()):
        number = round(float(text) * 1000)
    else:
        number = abs(int(head)) * 1000 + int((tail + b"000")[:3])
        number = -number if head.startswith(b"-") else number
    if abs(number) > limit:
        raise OverflowError
    return number
