"""The host's share of a measured time, and how it is separated from the kernel's.

The measurements time one op on an idle stream with device events. The first event is recorded
immediately; the host then needs ``before`` microseconds until the kernel starts, and ``hidden``
more until it has recorded the second event::

    measured = before + max(kernel, hidden)

Short kernels give the floor ``before + hidden``. ``before`` is the remainder of longer ones if a
law for the kernel is known: the time of element-wise kernels is linear in their bytes, the time of
products on one tile shape is linear in waves and in waves times depth.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from costmodels.learnable.hardware import Floats, Hardware
from costmodels.learnable.inputs import START
from costmodels.learnable.measurements import Measurements
from irgraph.diagnostics import fail

Flags = NDArray[np.bool_]
NEAR_FLOOR = 1.12
"""Minimum ratio of a measured time to its floor; shorter kernels are censored."""
TINY_BASE = 6.0
"""Microseconds of base below which no kernel of these tables outlasts its launch."""
MAX_FITTED_TIME = 500.0
"""Measured microseconds beyond which a kernel contributes little to the fit of its launch."""
OCCUPANCIES = (1, 2, 3, 4, 5, 6, 8, 10_000)
"""Concurrent thread blocks of a multiprocessor; the last value makes waves continuous."""
MIN_ROWS, MAX_ERROR, MAX_WAVE_START = 100, 0.06, 5.0
"""Conditions for a law: its minimum number of rows, maximum median error, as a share, and maximum
microseconds to start a wave."""


class HostLaunch(Struct, frozen=True):
    """Host time around one op, in microseconds, as defined by the module's text.

    Attributes:
        before, hidden: time until the kernel starts, and from there until the second event.
        drift: growth of ``before`` at evenly spaced positions of the run, empty if it is constant.
    """

    before: float
    hidden: float
    drift: tuple[float, ...] = ()

    def drift_at(self, place: Floats) -> Floats:
        """Return the growth of ``before`` at positions from 0 to 1 of the run, in microseconds."""
        if not self.drift:
            return np.zeros_like(place)
        knots = np.linspace(0, 1, len(self.drift))
        return np.asarray(np.interp(place, knots, self.drift), np.float32)

    @property
    def floor(self) -> float:
        """Minimum measurable time."""
        return self.before + self.hidden


KNOTS, MAX_SHORT_TIME = 9, 240.0
"""Number of positions of a run at which a growing launch is fitted, and the maximum time of a
kernel, in microseconds, to be used in that fit."""

Launches = dict[tuple[str, str], HostLaunch]
"""By op and device."""


Law: TypeAlias = Callable[[Measurements, Hardware, Floats, Launches], Launches]
"""Function from measurements, a device for each row, the base of each kernel in microseconds, and
the launches of similar kernels, to launches by op and device. Only training rows are used."""


def no_launch(data: Measurements, device: Hardware, base: Floats, similar: Launches) -> Launches:
    """Return zero launches, for kernel times measured by profilers."""
    return {(op, name): HostLaunch(0.0, 0.0) for op, name, _ in _groups(data)}


def borrowed_launches(
    data: Measurements, device: Hardware, base: Floats, similar: Launches
) -> Launches:
    """Return launches with the floor of the data and ``hidden`` of similar ops on the device.

    Raises ``IrgraphError`` if no similar op was measured on a device.
    """
    launches: Launches = {}
    for op, name, rows in _groups(data):
        hidden = [launch.hidden for (_, other), launch in similar.items() if other == name]
        if not hidden:
            message = f"nothing tells how much of a launch {op} hides on {name}"
            raise fail(message, hint="name a family that was measured there: similar=...")
        floor = _floor(data, base, rows)
        launches[op, name] = _launch(floor - float(np.median(hidden)), floor)
    return launches


def linear_in_bytes(nbytes: Callable[[Measurements], Floats]) -> Law:
    """Return the law of kernels whose time is linear in bytes: the intercept is their launch.

    ``nbytes`` returns the number of bytes that each kernel moves, in any unit.
    """

    def law(data: Measurements, device: Hardware, base: Floats, similar: Launches) -> Launches:
        launches: Launches = {}
        byte_counts = nbytes(data)
        for op, name, rows in _groups(data):
            floor = _floor(data, base, rows)
            fitted_rows = rows & (data.times > floor + 15) & (data.times < MAX_FITTED_TIME)
            inputs = np.stack([np.ones(fitted_rows.sum()), byte_counts[fitted_rows]], 1)
            (intercept, _), _ = _robust_fit(inputs, data.times[fitted_rows])
            launches[op, name] = _launch(float(intercept) - START, floor)
        return {key: _plausible_launch(launches, key) for key in launches}

    return law


def linear_in_waves(
    data: Measurements, device: Hardware, base: Floats, similar: Launches
) -> Launches:
    """Return the launches of products: the remainder of a tile's law, else like similar ops'."""
    launches = borrowed_launches(data, device, base, similar)
    for op, name, rows in _groups(data):
        floor = _floor(data, base, rows)
        fitted_rows = rows & (data.times > floor + 25) & (data.times < MAX_FITTED_TIME)
        laws = [
            _tile_law(data, fitted_rows & (data.kernels == k), k, device)
            for k in np.unique(data.kernels[fitted_rows])
        ]
        accepted_laws = [law for law in laws if law is not None]
        if accepted_laws:
            weights = [count / error**2 for _, error, count in accepted_laws]
            before = float(np.average([b for b, _, _ in accepted_laws], weights=weights))
            launches[op, name] = _launch(before - START, floor)
    return launches


def growing_launches(expected: Callable[[Measurements, Hardware], Floats], similar_op: str) -> Law:
    """Return the law of launches that grow over the run, like those of convolutions.

    The times of short kernels follow their position in the file regardless of their size (rank
    correlation 0.92 to 0.99 on each card), perhaps because plans are cached by shape and every
    shape was new. ``before`` is their remainder after a multiple of the ``expected`` time of the
    kernel, in microseconds, at ``KNOTS`` positions joined by lines; ``hidden`` is that of
    ``similar_op``.
    """

    def law(data: Measurements, device: Hardware, base: Floats, similar: Launches) -> Launches:
        launches: Launches = {}
        knots = np.linspace(0, 1, KNOTS)
        times = expected(data, device)
        for op, name, rows in _groups(data):
            fitted_rows = rows & (times < MAX_SHORT_TIME)
            if not fitted_rows.any():
                launches[op, name] = similar[similar_op, name]
                continue
            hats = np.stack(
                [np.interp(data.position[fitted_rows], knots, row) for row in np.eye(KNOTS)], 1
            )
            inputs = np.concatenate([hats, times[fitted_rows][:, None]], 1)
            coefficients, _ = _robust_fit(inputs, data.times[fitted_rows])
            start, *_ = before = np.maximum(coefficients[:-1] - START, 0)
            drift = tuple(round(float(x - start), 3) for x in before)
            launches[op, name] = HostLaunch(
                round(float(start), 3), similar[similar_op, name].hidden, drift
            )
        return launches

    return law


def _groups(data: Measurements) -> Iterator[tuple[str, str, Flags]]:
    """Yield each op and device with their training rows."""
    for number, op in enumerate(data.ops):
        for device in data.devices:
            rows = (data.op == number) & data.rows_of(device) & ~data.dev
            if rows.any():
                yield op, device, rows


def _floor(data: Measurements, base: Floats, rows: Flags) -> float:
    """Return the median time of kernels that end before their launch does."""
    tiny = rows & (base < TINY_BASE)
    times = data.times[tiny] if tiny.sum() >= 10 else np.sort(data.times[rows])[:10]
    return float(np.median(times))


def _plausible_launch(launches: Launches, key: tuple[str, str]) -> HostLaunch:
    """Return a launch, with the typical ``hidden`` of its device if its own is far from it.

    The work that follows a launch on the host hardly depends on the op; a kernel bound by
    arithmetic at medium sizes spoils the intercept.
    """
    hidden = [launch.hidden for (_, device), launch in launches.items() if device == key[1]]
    typical, own_launch = float(np.median(hidden)), launches[key]
    if abs(own_launch.hidden - typical) <= 0.25 * typical:
        return own_launch
    return _launch(own_launch.floor - typical, own_launch.floor)


def _launch(before: float, floor: float) -> HostLaunch:
    before = min(max(before, 0.2 * floor), 0.95 * floor)
    return HostLaunch(round(before, 3), round(floor - before, 3))


def _robust_fit(inputs: NDArray[np.float64], times: Floats) -> tuple[NDArray[np.float64], float]:
    """Fit ``inputs @ x = times`` by relative error; return x and the median relative error."""
    target = times.astype(np.float64)
    weights = 1 / target
    for _ in range(20):
        x = np.linalg.lstsq(inputs * weights[:, None], target * weights, rcond=None)[0]
        error = np.abs(inputs @ x - target) / target
        weights = 1 / target / np.sqrt(np.maximum(error, 0.003))
    return np.asarray(x), float(np.median(error))


def _tile_law(
    data: Measurements, rows: Flags, kernel: str, device: Hardware
) -> tuple[float, float, int] | None:
    """Return intercept, median error and rows of ``time = before + waves (depth s + start)``."""
    shape = re.search(r"_(\d+)x(\d+)_", kernel)
    rows = rows & (data.sizes["k"] > 16)
    if shape is None or rows.sum() < MIN_ROWS:
        return None
    size = {name: data.sizes[name][rows].astype(np.float64) for name in ("batch", "m", "n", "k")}
    grid = size["batch"] * np.ceil(size["n"] / int(shape[1])) * np.ceil(size["m"] / int(shape[2]))
    depth = np.ceil(size["k"] / 8) * 8
    best: tuple[float, float, int] | None = None
    for occupancy in OCCUPANCIES:
        slots = device.sms[rows] * occupancy
        waves = np.ceil(grid / slots) if occupancy < OCCUPANCIES[-1] else grid / device.sms[rows]
        inputs = np.stack([np.ones(len(grid)), waves * depth, waves], 1)
        (before, _, start), error = _robust_fit(inputs, data.times[rows])
        fits = error < MAX_ERROR and 0 <= start <= MAX_WAVE_START
        if fits and (best is None or error < best[1]):
            best = float(before), error, int(rows.sum())
    return best
