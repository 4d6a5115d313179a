"""The host's share of a measured time, and how it is separated from the kernel's.

The measurements time one op on an idle stream with device events. The first event is recorded at
once; the host then needs ``before`` microseconds until the kernel starts, and ``hidden`` more
until it has recorded the second event. So::

    measured = before + max(kernel, hidden)

Short kernels give the floor ``before + hidden``. ``before`` is what remains of longer ones where
a law for the kernel is known: element-wise kernels take a time that is linear in their bytes,
products on one tile shape one that is linear in waves and in waves times depth.
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
"""A kernel is timed if it lasts this many times what its launch hides; else it is censored."""
TINY = 6.0
"""Microseconds of base below which no kernel of these tables outlasts its launch."""
LONGEST = 500.0
"""Microseconds measured beyond which a kernel says little about its launch."""
OCCUPANCIES = (1, 2, 3, 4, 5, 6, 8, 10_000)
"""Thread blocks a multiprocessor may run at once; the last makes waves continuous."""
ENOUGH, CLOSE, WAVE_START = 100, 0.06, 5.0
"""A law counts with at least so many rows, a median error of at most this share, and between zero
and so many microseconds a wave."""


class Launch(Struct, frozen=True):
    """Host time around one op, in microseconds: see the module's text.

    Attributes:
        before, hidden: until the kernel starts, and from there until it could have ended unseen.
        drift: what ``before`` had grown by at even places of the run, if it grew.
    """

    before: float
    hidden: float
    drift: tuple[float, ...] = ()

    def drifted(self, place: Floats) -> Floats:
        """Return the microseconds that ``before`` had grown by at places from 0 to 1 of the run."""
        if not self.drift:
            return np.zeros_like(place)
        knots = np.linspace(0, 1, len(self.drift))
        return np.asarray(np.interp(place, knots, self.drift), np.float32)

    @property
    def floor(self) -> float:
        """The least that can be measured."""
        return self.before + self.hidden


KNOTS, SHORT = 9, 240.0
"""Positions of a run at which a growing launch is fitted, and microseconds of a kernel up to
which its measured time is used for it."""

Launches = dict[tuple[str, str], Launch]
"""By op and device."""


Law: TypeAlias = Callable[[Measurements, Hardware, Floats, Launches], Launches]
"""How launches are found: measurements, a device a row, the base of each kernel in microseconds,
and the launches of similar kernels in; launches by op and device out. Only training rows count."""


def no_launch(data: Measurements, device: Hardware, base: Floats, similar: Launches) -> Launches:
    """Return zero launches, for kernel times as profilers measure them."""
    return {(op, name): Launch(0.0, 0.0) for op, name, _ in _groups(data)}


def borrowed(data: Measurements, device: Hardware, base: Floats, similar: Launches) -> Launches:
    """Return launches with the floor of the data and what similar ops of the device hide.

    Raises ``IrgraphError`` where no similar op was measured on a device.
    """
    found: Launches = {}
    for op, name, rows in _groups(data):
        hidden = [launch.hidden for (_, other), launch in similar.items() if other == name]
        if not hidden:
            message = f"nothing tells how much of a launch {op} hides on {name}"
            raise fail(message, hint="name a family that was measured there: similar=...")
        floor = _floor(data, base, rows)
        found[op, name] = _launch(floor - float(np.median(hidden)), floor)
    return found


def linear_in(nbytes: Callable[[Measurements], Floats]) -> Law:
    """Return the law of kernels whose time is linear in bytes: the intercept is their launch.

    ``nbytes`` returns the bytes that each kernel moves, in any unit.
    """

    def law(data: Measurements, device: Hardware, base: Floats, similar: Launches) -> Launches:
        found: Launches = {}
        moved = nbytes(data)
        for op, name, rows in _groups(data):
            floor = _floor(data, base, rows)
            used = rows & (data.times > floor + 15) & (data.times < LONGEST)
            inputs = np.stack([np.ones(used.sum()), moved[used]], 1)
            (intercept, _), _ = _robust(inputs, data.times[used])
            found[op, name] = _launch(float(intercept) - START, floor)
        return {key: _usual(found, key) for key in found}

    return law


def linear_in_waves(
    data: Measurements, device: Hardware, base: Floats, similar: Launches
) -> Launches:
    """Return the launches of products: what a tile's law leaves, else as similar ops have it."""
    found = borrowed(data, device, base, similar)
    for op, name, rows in _groups(data):
        floor = _floor(data, base, rows)
        used = rows & (data.times > floor + 25) & (data.times < LONGEST)
        laws = [
            _tile_law(data, used & (data.kernels == k), k, device)
            for k in np.unique(data.kernels[used])
        ]
        good = [law for law in laws if law is not None]
        if good:
            weights = [count / error**2 for _, error, count in good]
            before = float(np.average([b for b, _, _ in good], weights=weights))
            found[op, name] = _launch(before - START, floor)
    return found


def growing(expected: Callable[[Measurements, Hardware], Floats], like: str) -> Law:
    """Return the law of launches that grow over the run, as those of convolutions do.

    The times of short kernels follow their place in the file whatever their size (rank correlation
    0.92 to 0.99 on each card), perhaps because plans are kept by shape and every shape was new.
    ``before`` is what remains of them beside a multiple of what is ``expected`` of the kernel, in
    microseconds, at ``KNOTS`` places joined by lines; what is hidden is as the op ``like`` has it.
    """

    def law(data: Measurements, device: Hardware, base: Floats, similar: Launches) -> Launches:
        found: Launches = {}
        knots = np.linspace(0, 1, KNOTS)
        times = expected(data, device)
        for op, name, rows in _groups(data):
            used = rows & (times < SHORT)
            if not used.any():
                found[op, name] = similar[like, name]
                continue
            hats = np.stack([np.interp(data.place[used], knots, row) for row in np.eye(KNOTS)], 1)
            inputs = np.concatenate([hats, times[used][:, None]], 1)
            fitted, _ = _robust(inputs, data.times[used])
            first, *_ = before = np.maximum(fitted[:-1] - START, 0)
            drift = tuple(round(float(x - first), 3) for x in before)
            found[op, name] = Launch(round(float(first), 3), similar[like, name].hidden, drift)
        return found

    return law


def _groups(data: Measurements) -> Iterator[tuple[str, str, Flags]]:
    """Yield op, device and its training rows."""
    for number, op in enumerate(data.ops):
        for device in data.devices:
            rows = (data.op == number) & data.of(device) & ~data.dev
            if rows.any():
                yield op, device, rows


def _floor(data: Measurements, base: Floats, rows: Flags) -> float:
    """Return the median time of kernels that end before their launch does."""
    tiny = rows & (base < TINY)
    times = data.times[tiny] if tiny.sum() >= 10 else np.sort(data.times[rows])[:10]
    return float(np.median(times))


def _usual(launches: Launches, key: tuple[str, str]) -> Launch:
    """Return a launch, with what is usual on its device hidden where its own intercept is far off.

    What follows a launch on the host hardly depends on the op; a kernel bound by arithmetic at
    medium sizes spoils the intercept.
    """
    hidden = [launch.hidden for (_, device), launch in launches.items() if device == key[1]]
    usual, own = float(np.median(hidden)), launches[key]
    if abs(own.hidden - usual) <= 0.25 * usual:
        return own
    return _launch(own.floor - usual, own.floor)


def _launch(before: float, floor: float) -> Launch:
    before = min(max(before, 0.2 * floor), 0.95 * floor)
    return Launch(round(before, 3), round(floor - before, 3))


def _robust(inputs: NDArray[np.float64], times: Floats) -> tuple[NDArray[np.float64], float]:
    """Fit ``inputs @ x = times`` by relative error; return x and the median relative error."""
    goal = times.astype(np.float64)
    weights = 1 / goal
    for _ in range(20):
        x = np.linalg.lstsq(inputs * weights[:, None], goal * weights, rcond=None)[0]
        error = np.abs(inputs @ x - goal) / goal
        weights = 1 / goal / np.sqrt(np.maximum(error, 0.003))
    return np.asarray(x), float(np.median(error))


def _tile_law(
    data: Measurements, rows: Flags, kernel: str, device: Hardware
) -> tuple[float, float, int] | None:
    """Return intercept, median error and rows of ``time = before + waves (depth s + start)``."""
    shape = re.search(r"_(\d+)x(\d+)_", kernel)
    rows = rows & (data.sizes["k"] > 16)
    if shape is None or rows.sum() < ENOUGH:
        return None
    size = {name: data.sizes[name][rows].astype(np.float64) for name in ("batch", "m", "n", "k")}
    grid = size["batch"] * np.ceil(size["n"] / int(shape[1])) * np.ceil(size["m"] / int(shape[2]))
    depth = np.ceil(size["k"] / 8) * 8
    best: tuple[float, float, int] | None = None
    for together in OCCUPANCIES:
        slots = device.sms[rows] * together
        waves = np.ceil(grid / slots) if together < OCCUPANCIES[-1] else grid / device.sms[rows]
        inputs = np.stack([np.ones(len(grid)), waves * depth, waves], 1)
        (before, _, start), error = _robust(inputs, data.times[rows])
        fits = error < CLOSE and 0 <= start <= WAVE_START
        if fits and (best is None or error < best[1]):
            best = float(before), error, int(rows.sum())
    return best
