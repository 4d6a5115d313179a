"""Reads device sheets: JSON, whose errors name the invalid field."""

from __future__ import annotations

import json
import re

import msgspec

from costmodels.devices.physics import contradictions
from costmodels.devices.sheet import ARCHITECTURES, DeviceSheet, Figure
from irgraph.diagnostics import SourceSpan, fail, suggestion
from irgraph.diagnostics.json_keys import unique_keys

MIN_FIGURE, MAX_FIGURE = 1e-6, 1e15
"""Bounds of all figures of a device, in any unit."""


def read_sheet(text: str, source: str) -> DeviceSheet:
    """Return the sheet of a JSON text. Raises ``IrgraphError`` with the invalid field."""
    span = SourceSpan(source)
    try:
        raw = json.loads(text, object_pairs_hook=unique_keys)
        json.dumps(raw, ensure_ascii=False).encode()  # half a character is no text
    except (ValueError, RecursionError) as error:
        raise fail(f"device sheet is not JSON: {error}", span) from None
    _check_fields(raw, DeviceSheet, "", span)
    try:
        sheet = msgspec.convert(raw, DeviceSheet)
    except msgspec.ValidationError as error:
        raise fail(f"device sheet: {_reworded(str(error))}", span) from None
    _check_values(sheet, span)
    return sheet


def _check_fields(raw: object, kind: type[msgspec.Struct], prefix: str, span: SourceSpan) -> None:
    """Reject an unknown field; the error suggests the nearest known one."""
    if not isinstance(raw, dict):
        return
    fields = kind.__struct_fields__
    for key, value in raw.items():
        if key not in fields:
            raise fail(f"device sheet has no field {prefix + key!r}{suggestion(key, fields)}", span)
        if isinstance(value, dict) and kind is DeviceSheet:
            _check_fields(value, Figure, f"{key}.", span)


def _check_values(sheet: DeviceSheet, span: SourceSpan) -> None:
    """Reject a sheet without the rates that formulas divide by, or with an invalid number."""
    if sheet.architecture not in ARCHITECTURES:
        names = ", ".join(ARCHITECTURES)
        message = f"device sheet: no architecture {sheet.architecture!r}"
        guess = suggestion(sheet.architecture.lower(), ARCHITECTURES)
        raise fail(message + guess, span, hint=f"known: {names}")
    for name in ("clock_mhz", "fp32_gflops", "dram_gbs"):
        figure: Figure = getattr(sheet, name)
        if figure.datasheet is None:
            raise fail(f"device sheet: {name}.datasheet is missing", span)
    if sheet.pinned_gbs.value is None:
        raise fail("device sheet: pinned_gbs has neither a datasheet nor a measured value", span)
    for name in DeviceSheet.__struct_fields__:
        value = getattr(sheet, name)
        is_figure = isinstance(value, Figure)
        numbers = (value.datasheet, value.measured, value.sustained) if is_figure else (value,)
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if number <= 0:
                raise fail(f"device sheet: {name} must be above zero", span)
            if not MIN_FIGURE <= number <= MAX_FIGURE:
                raise fail(
                    f"device sheet: {name} must be within {MIN_FIGURE:g} and {MAX_FIGURE:g}", span
                )
    for reason in filter(None, contradictions(sheet)):
        raise fail(f"device sheet: {reason}", span, hint="docs/costs.md has the unit of each field")


def _reworded(message: str) -> str:
    """Return msgspec's message in the words of this package: ``$.sms`` is the field ``sms``."""
    match = re.match(r"(.*) - at `\$\.(.*)`$", message)
    if match:
        return f"field {match[2]!r}: {match[1][0].lower()}{match[1][1:]}"
    return message.replace("Object missing required field", "missing field").replace("`", "'")
