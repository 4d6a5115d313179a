"""Physical self-checks of device sheets: figures that contradict each other or any device."""

from __future__ import annotations

from collections.abc import Iterator

from costmodels.devices.sheet import DeviceSheet, Figure
from irgraph.diagnostics.units import (
    BANDWIDTH,
    BYTES,
    FREQUENCY,
    POWER,
    RATE,
    TIME,
    Unit,
    range_error,
)

RANGES: dict[str, tuple[float, float, Unit]] = {
    "clock_mhz": (100, 6000, FREQUENCY),
    "units_mhz": (100, 6000, FREQUENCY),
    "sustained_mhz": (100, 6000, FREQUENCY),
    "dram_gbs": (5, 50_000, BANDWIDTH),
    "l2_gbs": (5, 500_000, BANDWIDTH),
    "link_gbs": (1, 2000, BANDWIDTH),
    "pinned_gbs": (1, 2000, BANDWIDTH),
    "pinned_to_host_gbs": (1, 2000, BANDWIDTH),
    "pageable_gbs": (0.5, 2000, BANDWIDTH),
    "pageable_to_host_gbs": (0.5, 2000, BANDWIDTH),
    "launch_us": (0.5, 200, TIME),
}
"""Smallest and largest figure of any card: links from PCIe 1.1 to NVLink 5, memory from LPDDR."""

NUMBER_RANGES: dict[str, tuple[float, float, Unit]] = {
    "memory_bytes": (1e8, 1e13, BYTES),
    "l2_bytes": (2**16, 2**31, BYTES),
    "shared_bytes": (2**12, 2**22, BYTES),
    "watts": (5, 5000, POWER),
}
"""Smallest and largest memory, cache, shared memory and power limit of any card."""

FLOP_PER_CYCLE = (16, 1024)
"""float32 FLOP of a multiprocessor per cycle, if a sheet lacks its lanes."""

LANES_TOLERANCE = 0.05
"""Share by which a datasheet's peak may differ from its lanes and clock: makers round both."""

CALIBRATED_FACTOR = 4.0
"""The same as a factor for a peak that was measured, at a clock that the driver reports."""

MEASURED_RANGE = (0.01, 1.15)
"""Measured figure as a share of the datasheet's. Boards run above the boost clock of the datasheet:
an RTX 5090 reaches 1.12 of its peak in f16."""

PEAKS = {
    **dict.fromkeys(("fp64_gflops", "fp64_units_gflops"), (1 / 130, 2.5)),
    **dict.fromkeys(("fp32_units_gflops", "tf32_gflops"), (0.4, 64)),
    **dict.fromkeys(("fp16_gflops", "bf16_gflops", "fp8_gflops", "int8_gflops"), (0.4, 256)),
    "fp4_gflops": (0.4, 512),
}
"""Peaks as multiples of the plain cores' float32 peak, of any card."""


def contradictions(sheet: DeviceSheet) -> Iterator[str]:
    """Yield the figures of a sheet that are physically impossible, with the units to check.

    Of a host's own processor, which is measured and has no datasheet, only the relations between
    figures are checked.
    """
    for name in sheet.__struct_fields__:
        value = getattr(sheet, name)
        if isinstance(value, Figure):
            yield from _figure_errors(name, value, checks_range=not sheet.is_host)
    if sheet.is_host:
        return
    for name, (low, high, unit) in NUMBER_RANGES.items():
        number = getattr(sheet, name)
        if number is not None:
            yield range_error(name, number, low, high, unit)
    yield from _l2_errors(sheet)
    yield from _peak_errors(sheet)


def _figure_errors(name: str, figure: Figure, *, checks_range: bool) -> Iterator[str]:
    low, high, unit = RANGES.get(name, (0.0, float("inf"), RATE))
    for part in ("datasheet", "measured", "sustained"):
        number = getattr(figure, part)
        if number is not None and checks_range:
            yield range_error(f"{name}.{part}", number, low, high, unit)
        if figure.datasheet is not None and number is not None and part != "datasheet":
            bounds = [figure.datasheet * share for share in MEASURED_RANGE]
            reason = range_error(f"{name}.{part}", number, bounds[0], bounds[1], unit)
            yield f"{reason} (its datasheet has {figure.datasheet:,g})" if reason else ""


def _l2_errors(sheet: DeviceSheet) -> Iterator[str]:
    cache, memory = sheet.l2_gbs.value, sheet.dram_gbs.value
    if cache is not None and memory is not None:
        reason = range_error("l2_gbs", cache, memory, RANGES["l2_gbs"][1], BANDWIDTH)
        yield f"{reason}: a cache is at least as fast as the memory behind it" if reason else ""


def _peak_errors(sheet: DeviceSheet) -> Iterator[str]:
    peak, clock = sheet.fp32_gflops.datasheet, sheet.clock_mhz.datasheet
    if peak is None or clock is None:
        return
    cycles = sheet.sms * clock / 1e3
    if sheet.fp32_lanes is None:
        low, high = (share * cycles for share in FLOP_PER_CYCLE)
        relation = f"{sheet.sms} multiprocessors at {clock:g} MHz"
    else:
        by_lanes = cycles * 2 * sheet.fp32_lanes
        factor = CALIBRATED_FACTOR if peak == sheet.fp32_gflops.measured else 1 + LANES_TOLERANCE
        low, high = by_lanes / factor, by_lanes * factor
        relation = f"{sheet.sms} sms x {sheet.fp32_lanes} fp32_lanes x 2 x {clock:g} MHz"
    reason = range_error("fp32_gflops.datasheet", peak, low, high, RATE)
    yield f"{reason} ({relation})" if reason else ""
    for name, (low, high) in PEAKS.items():
        number = getattr(sheet, name).datasheet
        if number is not None:
            reason = range_error(f"{name}.datasheet", number, peak * low, peak * high, RATE)
            yield f"{reason} (fp32_gflops is {peak:,g})" if reason else ""
