"""Conditions such as ``card=V100*`` or ``mean_us > 5``, as SQL with parameters."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from irgraph.diagnostics import fail, suggestion

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement

_CONDITION = re.compile(r"\s*(\w+)\s*(<=|>=|!=|=|<|>)\s*(.*?)\s*", re.DOTALL)

COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip

_ESCAPE = "\\"


def conditions(
    texts: Sequence[str], columns: Mapping[str, ColumnElement[Any]]
) -> list[ColumnElement[bool]]:
    """Return SQL conditions, one for each of ``texts``.

    A text compares a column with a number or a word by ``=``, ``!=``, ``<``, ``<=``, ``>`` or
    ``>=``; in words ``*`` matches any text, and case is ignored.

    Raises ``IrgraphError`` (exit code 2) for an unknown column or an invalid condition.
    """
    return [_condition(text, columns) for text in texts]


def _condition(text: str, columns: Mapping[str, ColumnElement[Any]]) -> ColumnElement[bool]:
    match = _CONDITION.fullmatch(text)
    if match is None:
        message = f"--where: give COLUMN=VALUE, or another of {' '.join(COMPARE)}, not {text!r}"
        raise fail(message, exit_code=2)
    name, sign, value = match.groups()
    if name not in columns:
        message = f"--where: there is no column {name!r}{suggestion(name, columns)}"
        raise fail(message, hint=f"columns: {', '.join(columns)}", exit_code=2)
    column = columns[name]
    if column.type.python_type is str:
        return _text_condition(column, sign, value)
    return _number_condition(column, name, sign, value)


def _text_condition(column: ColumnElement[Any], sign: str, value: str) -> ColumnElement[bool]:
    from sqlalchemy import func

    lowered, value = func.lower(column), value.replace("\0", "\ufffd").lower()
    if "*" not in value or sign not in ("=", "!="):
        return COMPARE[sign](lowered, value)  # type: ignore[no-any-return]
    pattern = re.sub(r"([%_\\])", r"\\\1", value).replace("*", "%")
    condition = lowered.like(pattern, escape=_ESCAPE)
    return condition if sign == "=" else ~condition


def _number_condition(
    column: ColumnElement[Any], name: str, sign: str, value: str
) -> ColumnElement[bool]:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        message = f"--where: {name} is compared with a number, not with {value!r}"
        raise fail(message, exit_code=2)
    return COMPARE[sign](column, number)  # type: ignore[no-any-return]
