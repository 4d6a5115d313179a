"""Device sheets: figures of a card from its datasheet and as measured."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec

from irgraph.diagnostics import SourceSpan, fail, suggestion
from irgraph.ir.tf32 import CONVOLUTIONS, PRODUCTS

UNMEASURED_SHARE = 0.9
"""Share of a datasheet's DRAM bandwidth that is taken as reachable where nobody measured it: the
cards measured at their stock memory clock reach 0.89 (A100) and 0.91 (V100) of it."""

UNITS_SHARE = 0.75
"""Share of the matrix units' peak that large products reach (``costmodels.formulas.tiles.TILES``):
what a measured rate of such products is divided by where no datasheet gives the peak."""

LANES = 128
"""Lanes of a multiprocessor whose products reach a share of the peak that differs by card."""

WHOLE_RATE = 1024
"""Flop in 16 bits that the matrix units of a multiprocessor do a cycle, accumulating in float32,
where nothing holds them back."""

HALVING = ("sm_75", "sm_86", "sm_89", "sm_120")
"""Chips that GeForce boards have, too, on which accumulating in float32 takes twice as long (NVIDIA
Ampere GA102, Ada and RTX Blackwell whitepapers: appendices)."""

HALVED = ("tf32", "f16", "bf16", "f8e4m3", "f8e5m2")
"""Types of which that is so."""

HALVED_SHARE = 1.0
"""Share of the halved peak that large products reach where nobody measured: 0.94 (RTX 4090), 1.07
(3090) and 1.12 (5090) were, at clocks above those that datasheets name."""

SHARPNESS = 4
"""How a kernel's time on halved units follows from two bounds, what it takes at their whole rate
and what its flop take at the halved one: the norm of this order. Twelve f16 products of an RTX 4090
and eight of a 5090 (512 to 28,672 a side, by cuBLAS under torch 2.13; public sweeps of
cloudrift-ai/emmy, July 2026) come out within 4.4 and 5.1 % on average, by the greater bound alone
within 4.0 and 11.6 %, and as on units of that peak 26 and 44 % too long. Units are what limits such
kernels: others idle half of the time (triton-lang/triton issue 10851, RTX 4060)."""

LINK_SHARE, PAGEABLE_SHARE = 0.79, 0.65
"""Share of the raw PCIe rate that a copy from pinned memory reaches, and share of that which one
from pageable memory reaches, where nobody measured: both as measured on V100-SXM2-16GB."""

PAGEABLE_MOST = 8.1
"""GB/s of copies from pageable memory that a faster bus does not raise: one host thread stages them
(the same 8.1 GB/s were measured on V100 and A100, on buses of 15.8 and 31.5 GB/s; a trace of an
RTX 2080 Ti shows 3 to 4)."""

LOCKED = "@"
"""Stands between the name of a card and the clock in MHz at which it is locked."""

ARCHITECTURES = (
    "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cpu",
)  # fmt: skip
"""What formulas distinguish; a card of another one takes the nearest of these."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One property of a card.

    Attributes:
        datasheet: the maker's figure, in the unit that the sheet's field names.
        measured: what a benchmark reached (of a peak: large products, or the benchmark that the
            source names), or the setting the card was measured at.
        source: where both come from.
    """

    datasheet: float | None = None
    measured: float | None = None
    source: str = ""

    @property
    def value(self) -> float | None:
        """The measured figure, or the datasheet's where nobody measured."""
        return self.datasheet if self.measured is None else self.measured


class DeviceSheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of a card.

    Attributes:
        name: such as ``V100-SXM2-16GB``.
        aliases: other names that stand for this sheet.
        architecture: one of ``ARCHITECTURES``.
        target: what its kernels are compiled for: ``sm_90``, ``gfx942``. Cards of one architecture
            differ by it: ``sm_100`` and ``sm_103`` have the matrix units and the shared memory of
            a data centre's Blackwell, ``sm_120`` those of a desktop's.
        note: what the sheet stands for, where a name alone would leave it open.
        source: where the plain numbers come from.
        sms: streaming multiprocessors (AMD: compute units).
        fp32_lanes: float32 multiply-adds that a multiprocessor starts a cycle.
        shared_bytes: shared memory of a multiprocessor, bytes.
        memory_bytes: device memory, bytes.
        l2_bytes: the last cache before device memory that all multiprocessors share, bytes.
        dies: compute dies that torch sees as one device.
        watts: power limit of the board.
        clock_mhz: the boost clock that the datasheet's peaks hold at, and the clock at which the
            card that the measurements come from really ran.
        units_mhz: the clock that the matrix units' peaks hold at, where it is not the boost clock,
            and the clock that large products on them hold within the power limit.
        sustained_mhz: the clock that large products on the plain cores hold within the power limit.
        fp32_gflops, fp64_gflops: peak of the plain cores, GFLOP/s.
        fp32_units_gflops, fp64_units_gflops, tf32_gflops, fp16_gflops, bf16_gflops, fp8_gflops,
        int8_gflops, fp4_gflops: dense peak of the matrix units, GFLOP/s (integers: GOP/s),
            accumulated in float32; absent where the card has none for the type.
        dram_gbs, l2_gbs: bandwidth of device memory and of the cache of ``l2_bytes``, GB/s.
        pinned_gbs, pageable_gbs: bandwidth of copies between host and device, by the kind of
            host memory, GB/s; the datasheet's is the raw rate of the bus.
        pinned_to_host_gbs, pageable_to_host_gbs: the same of copies to the host; absent where they
            are as fast as those from it.
        launch_us: of an op that computes next to nothing, from the call to the end, microseconds:
            to compare with a host's overheads, which schedules take.
        link_gbs: bandwidth to other cards, both directions together, GB/s.
        tf32: whether float32 matrix products use the matrix units' tf32 (torch's default: no),
            where the program does not say.
        tf32_convolutions: the same of convolutions (torch's default: yes, where there are such
            units).
    """

    name: str
    architecture: str
    sms: int
    memory_bytes: int
    l2_bytes: int
    clock_mhz: Figure
    fp32_gflops: Figure
    dram_gbs: Figure
    pinned_gbs: Figure
    pageable_gbs: Figure = Figure()
    pinned_to_host_gbs: Figure = Figure()
    pageable_to_host_gbs: Figure = Figure()
    launch_us: Figure = Figure()
    l2_gbs: Figure = Figure()
    units_mhz: Figure = Figure()
    sustained_mhz: Figure = Figure()
    fp32_units_gflops: Figure = Figure()
    fp64_gflops: Figure = Figure()
    fp64_units_gflops: Figure = Figure()
    tf32_gflops: Figure = Figure()
    fp16_gflops: Figure = Figure()
    bf16_gflops: Figure = Figure()
    fp8_gflops: Figure = Figure()
    int8_gflops: Figure = Figure()
    fp4_gflops: Figure = Figure()
    link_gbs: Figure = Figure()
    target: str = ""
    fp32_lanes: int | None = None
    shared_bytes: int | None = None
    dies: int = 1
    watts: float | None = None
    aliases: tuple[str, ...] = ()
    note: str = ""
    source: str = ""
    tf32: bool = False
    tf32_convolutions: bool = True

    @property
    def clock(self) -> float:
        """MHz at which the multiprocessors run."""
        return _known(self.clock_mhz.value)

    @property
    def is_host(self) -> bool:
        """Whether this is the host's own processor: calls run where they are made."""
        return self.architecture == "cpu"

    @property
    def card(self) -> str:
        """The name without the clock that ``NAME@MHZ`` locks."""
        return self.name.partition(LOCKED)[0]

    @property
    def bandwidth(self) -> float:
        """Reachable DRAM bandwidth in GB/s: measured, else a share of the datasheet's."""
        if self.dram_gbs.measured is not None:
            return self.dram_gbs.measured
        return _known(self.dram_gbs.datasheet) * UNMEASURED_SHARE

    @property
    def l2_bandwidth(self) -> float:
        """Bandwidth of the second-level cache in GB/s; twice the DRAM's where nobody measured."""
        return self.l2_gbs.value or 2 * self.bandwidth

    def host_bandwidth(self, pinned: bool, to_host: bool = False) -> float:
        """Return the bandwidth of copies between host and device in GB/s."""
        back = self.pinned_to_host_gbs if pinned else self.pageable_to_host_gbs
        if to_host and back.value is not None:
            return back.value
        raw = _known(self.pinned_gbs.datasheet or self.pinned_gbs.measured)
        best = self.pinned_gbs.measured or raw * LINK_SHARE
        if pinned:
            return best
        return self.pageable_gbs.value or min(best * PAGEABLE_SHARE, PAGEABLE_MOST)

    @property
    def convolution_dtype(self) -> str:
        """The type in which convolutions of float32 compute: ``tf32`` or ``f32``."""
        return "tf32" if self.tf32_convolutions and self.has_tf32 else "f32"

    @property
    def has_tf32(self) -> bool:
        """Whether the sheet knows of matrix units that multiply in tf32."""
        return self.tf32_gflops.value is not None

    def set_by(self, settings: Mapping[str, object]) -> DeviceSheet:
        """Return the sheet as a program's own settings round float32 (``irgraph.ir.tf32``)."""
        given = {key: bool(settings[key]) for key in (PRODUCTS, CONVOLUTIONS) if key in settings}
        return msgspec.structs.replace(self, **given) if given and self.has_tf32 else self

    def peak(self, dtype: str) -> tuple[float, bool]:
        """Return the peak of matrix products in GFLOP/s, and whether matrix units give it.

        The datasheet's peak, scaled from the clock that it holds at (of matrix units ``units_mhz``,
        else the boost clock) to that at which the card ran. A rate of f64 products that somebody
        measured, where no datasheet tells the peak, counts as that of matrix units. Raises
        ``IrgraphError`` where the sheet says nothing of f64.
        """
        boost = _known(self.clock_mhz.datasheet)
        kind = "tf32" if dtype == "f32" and self.tf32 else dtype
        units = self._units().get(kind, Figure())
        if units.value is not None:
            scale = min(self.clock / (self.units_mhz.datasheet or boost), 1.0)
            return (units.datasheet or units.value / UNITS_SHARE) * scale, True
        plain = self._plain(dtype)
        if plain.datasheet is None:
            raise fail(
                f"device sheet {self.name} has no fp64_gflops, which products in f64 need",
                hint="add the datasheet's figure; fp64_units_gflops is that of its matrix units",
            )
        return plain.datasheet * self.clock / boost, False

    def reached(self, dtype: str) -> float | None:
        """Return what large products reach of the datasheet's peak, if somebody measured it.

        Of plain cores only where they have 128 lanes or share the power of a small board (Turing):
        the figures of other cards come from benchmarks of another kind.
        """
        figure = self._units().get("tf32" if dtype == "f32" and self.tf32 else dtype, Figure())
        if figure.value is None:
            alike = self.fp32_lanes == LANES or self.architecture == "turing"
            figure = self._plain(dtype) if alike else Figure()
        if figure.measured is None or figure.datasheet is None:
            return None
        return figure.measured / figure.datasheet

    @property
    def halved(self) -> bool:
        """Whether its matrix units accumulate in float32 at half of their rate, as GeForce's do."""
        peak, hertz = self.fp16_gflops.datasheet, self.units_mhz.datasheet
        if peak is None or self.target not in HALVING:
            return False
        clock = hertz or _known(self.clock_mhz.datasheet)
        return peak * 1e3 / (self.sms * clock) < 0.75 * WHOLE_RATE

    def whole_rate(self) -> DeviceSheet:
        """Return the sheet as if its matrix units accumulated at their whole rate, unmeasured."""
        if not self.halved:
            return self
        names = ("tf32_gflops", "fp16_gflops", "bf16_gflops", "fp8_gflops")
        figures = {n: f for n in names if (f := getattr(self, n)).datasheet is not None}
        doubled = {n: Figure(2 * f.datasheet, source=f.source) for n, f in figures.items()}
        return msgspec.structs.replace(self, **doubled)

    def shared(self, dtype: str, share: float) -> float:
        """Return the share of the peak that kernels reach which reach ``share`` of a whole rate."""
        if not (self.halved and dtype in HALVED):
            return share
        most = self.reached(dtype) or HALVED_SHARE
        both = (2 * share) ** -SHARPNESS + most**-SHARPNESS
        return float(both ** (-1 / SHARPNESS))

    def _plain(self, dtype: str) -> Figure:
        return self.fp64_gflops if dtype == "f64" else self.fp32_gflops

    def _units(self) -> dict[str, Figure]:
        f64 = self.fp64_units_gflops
        if f64.value is None and self.fp64_gflops.datasheet is None:
            f64 = self.fp64_gflops
        return {
            "f64": f64,
            "f32": self.fp32_units_gflops,
            "tf32": self.tf32_gflops,
            "f16": self.fp16_gflops,
            "bf16": self.bf16_gflops,
            "f8e4m3": self.fp8_gflops,
            "f8e5m2": self.fp8_gflops,
            "i8": self.int8_gflops,
        }


LEAST, MOST = 1e-6, 1e15
"""No figure of a device is beyond these, whatever its unit."""


def read_sheet(text: str, source: str) -> DeviceSheet:
    """Return the sheet of a JSON text. Raises ``IrgraphError`` with the field at fault."""
    place = SourceSpan(source)
    try:
        raw = json.loads(text)
        json.dumps(raw, ensure_ascii=False).encode()  # half a character is no text
    except (ValueError, RecursionError) as error:
        raise fail(f"device sheet is not JSON: {error}", place) from None
    _check_fields(raw, DeviceSheet, "", place)
    try:
        sheet = msgspec.convert(raw, DeviceSheet)
    except msgspec.ValidationError as error:
        raise fail(f"device sheet: {_words(str(error))}", place) from None
    _check_values(sheet, place)
    return sheet


def _check_fields(raw: object, kind: type[msgspec.Struct], where: str, place: SourceSpan) -> None:
    """Name an unknown field and the nearest known one."""
    if not isinstance(raw, dict):
        return
    known = kind.__struct_fields__
    for key, value in raw.items():
        if key not in known:
            raise fail(f"device sheet has no field {where + key!r}{suggestion(key, known)}", place)
        if isinstance(value, dict) and kind is DeviceSheet:
            _check_fields(value, Figure, f"{key}.", place)


def _check_values(sheet: DeviceSheet, place: SourceSpan) -> None:
    """A rate that a formula divides by must be there, and positive."""
    if sheet.architecture not in ARCHITECTURES:
        known = ", ".join(ARCHITECTURES)
        message = f"device sheet: no architecture {sheet.architecture!r}"
        guess = suggestion(sheet.architecture.lower(), ARCHITECTURES)
        raise fail(message + guess, place, hint=f"known: {known}")
    for name in ("clock_mhz", "fp32_gflops", "dram_gbs"):
        figure: Figure = getattr(sheet, name)
        if figure.datasheet is None:
            raise fail(f"device sheet: {name}.datasheet is missing", place)
    if sheet.pinned_gbs.value is None:
        raise fail("device sheet: pinned_gbs has neither a datasheet nor a measured value", place)
    for name in DeviceSheet.__struct_fields__:
        value = getattr(sheet, name)
        numbers = (value.datasheet, value.measured) if isinstance(value, Figure) else (value,)
        for number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float):
                continue
            if number <= 0:
                raise fail(f"device sheet: {name} must be above zero", place)
            if not LEAST <= number <= MOST:
                raise fail(f"device sheet: {name} must be within {LEAST:g} and {MOST:g}", place)


def _words(message: str) -> str:
    """Turn msgspec's wording into ours: ``$.sms`` is the field ``sms``."""
    found = re.match(r"(.*) - at `\$\.(.*)`$", message)
    if found:
        return f"field {found[2]!r}: {found[1][0].lower()}{found[1][1:]}"
    return message.replace("Object missing required field", "missing field").replace("`", "'")


def _known(value: float | None) -> float:
    if value is None:
        raise fail("a rate that this formula needs is missing from the device sheet")
    return value
