"""Rates of large products that cards sustain within their power limit."""

from __future__ import annotations

import math
from functools import cache

from costmodels.devices.library import list_devices, load_device
from costmodels.devices.sheet import UNITS_SHARE, DeviceSheet
from irgraph.predict.power import EXPONENT


@cache
def sustained_rate(sheet: DeviceSheet, dtype: str) -> float | None:
    """Return the GFLOP/s that a card's products sustain in a type, ``None`` if unknown.

    It is the sheet's figure, or else the figure of a card with the same kind of multiprocessors and
    the most similar power for each, scaled to the power of this card: the draw grows with
    the clock to the power of ``EXPONENT``. It is at most the rate of short kernels. Units that
    accumulate at half of their rate do not reach the limit.
    """
    if sheet.halved or sheet.is_host:
        return None
    rate = sheet.sustained_rate(dtype) or _scaled_rate(sheet, dtype)
    if rate is None:
        return None
    share = sheet.measured_share(dtype) or UNITS_SHARE
    return min(rate, sheet.peak(dtype)[0] * share)


def _scaled_rate(sheet: DeviceSheet, dtype: str) -> float | None:
    """Return the rate of the nearest relative, scaled to a card's multiprocessors and power."""
    relative = _nearest_relative(sheet, dtype)
    if relative is None:
        return None
    rate = relative.sustained_rate(dtype) or 0.0
    power_ratio = _watts_each(sheet) / _watts_each(relative)
    clock_ratio = float(power_ratio ** (1 / EXPONENT))
    return rate * clock_ratio * sheet.sms / relative.sms


def _nearest_relative(sheet: DeviceSheet, dtype: str) -> DeviceSheet | None:
    """Return the card with a sustained rate and the same target whose power is most similar."""
    if sheet.watts is None or not sheet.target:
        return None
    cards = [load_device(name) for name in list_devices()]
    cards = [card for card in cards if card.target == sheet.target and card.watts]
    relatives = [card for card in cards if card.sustained_rate(dtype)]
    watts = _watts_each(sheet)
    return min(relatives, key=lambda c: abs(math.log(_watts_each(c) / watts)), default=None)


def _watts_each(sheet: DeviceSheet) -> float:
    """Return the power limit for each multiprocessor."""
    return (sheet.watts or 0.0) / sheet.sms
