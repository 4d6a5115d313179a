"""Attributes of decoded records as arrays, with one comprehension for each.

CPython reads the slot of a named attribute four times as fast as ``attrgetter`` or ``getattr``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from irgraph.capture.kineto.reading.trace import COLUMNS, Array

Records: TypeAlias = Sequence[Any]

VALUES: dict[str, Callable[[Records], list[Any]]] = {
    "ts": lambda records: [r.ts for r in records],
    "dur": lambda records: [r.dur for r in records],
    "external": lambda records: [r.external for r in records],
    "external_old": lambda records: [r.external_old for r in records],
    "correlation": lambda records: [r.correlation for r in records],
    "record": lambda records: [r.record for r in records],
    "sequence": lambda records: [r.sequence for r in records],
    "forward": lambda records: [r.forward for r in records],
    "stream": lambda records: [r.stream for r in records],
    "device": lambda records: [r.device for r in records],
    "nbytes": lambda records: [r.nbytes for r in records],
    "wait_record": lambda records: [r.wait_record for r in records],
    "wait_stream": lambda records: [r.wait_stream for r in records],
    "device_type": lambda records: [r.device_type for r in records],
    "allocated": lambda records: [r.allocated for r in records],
    "reserved": lambda records: [r.reserved for r in records],
}
"""List of an attribute of records, by its name."""


def integer_array(records: Records, key: str) -> Array:
    """Return an integer attribute of each record, as int32 if all values fit, else as int64.

    Raises ``TypeError`` or ``ValueError`` for values of other types, ``OverflowError`` for values
    out of range.
    """
    values = VALUES[key](records)
    try:
        return np.fromiter(values, "i4", len(values))
    except OverflowError:
        return np.fromiter(values, "i8", len(values))


def argument_column(args: Records, key: str) -> Array:
    """Return an argument of each event as integers in the type of its column, -1 if out of range.

    Old traces spell streams ``stream 7``.
    """
    try:
        values = integer_array(args, key)
    except (TypeError, ValueError):
        values = np.fromiter(map(_integer, VALUES[key](args)), "i8", len(args))
    return _narrowed(values, COLUMNS[key])


def _integer(value: object) -> int:
    if isinstance(value, int):
        return value
    digits = value.removeprefix("stream ") if isinstance(value, str) else ""
    return int(digits) if digits.isdecimal() else -1


def _narrowed(values: Array, dtype: str) -> Array:
    if np.can_cast(values.dtype, dtype):
        return values
    limits = np.iinfo(dtype)
    return np.where((values < limits.min) | (values > limits.max), -1, values).astype(dtype)
