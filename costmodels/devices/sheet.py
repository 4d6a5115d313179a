"""Device sheets: figures of a card from its datasheet and from measurements."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from irgraph.diagnostics import fail
from irgraph.ir.tf32 import CONVOLUTIONS, PRODUCTS

UNMEASURED_SHARE = 0.9
"""Share of a datasheet's DRAM bandwidth that is assumed to be reachable if it was not measured:
cards with measurements at their stock memory clock reach 0.89 (A100) and 0.91 (V100) of it."""

UNITS_SHARE = 0.75
"""Share of the matrix units' peak that large products reach (``costmodels.formulas.tiles.TILES``):
divisor of their measured rate if no datasheet gives the peak."""

LANES = 128
"""Number of lanes of multiprocessors whose share of the peak in products differs by card."""

WHOLE_RATE = 1024
"""FLOP in 16 bits per cycle of a multiprocessor's matrix units, accumulating in float32, at their
full rate."""

HALVING = ("sm_75", "sm_86", "sm_89", "sm_120")
"""Targets of chips that are also on GeForce boards, where accumulation in float32 runs at half the
rate (NVIDIA Ampere GA102, Ada and RTX Blackwell whitepapers: appendices)."""

HALVED = ("tf32", "f16", "bf16", "f8e4m3", "f8e5m2")
"""Types with the halved rate."""

HALVED_SHARE = 1.0
"""Share of the halved peak that large products reach on unmeasured cards: 0.94 (RTX 4090), 1.07
(3090) and 1.12 (5090) were measured, at clocks above the datasheets'."""

SHARPNESS = 4
"""Order of the norm of two bounds that is a kernel's time on halved units: its time at their whole
rate, and the time of its FLOP at the halved one. Twelve f16 products of an RTX 4090 and eight of a
5090 (512 to 28,672 a side, by cuBLAS under torch 2.13; public sweeps of cloudrift-ai/emmy, July
2026) are predicted with mean errors of 4.4 and 5.1 %, by the larger bound alone 4.0 and 11.6 %, and
like on units of that peak 26 and 44 % too long. Units limit such kernels; everything else idles
half of the time (triton-lang/triton issue 10851, RTX 4060)."""

LINK_SHARE, PAGEABLE_SHARE = 0.79, 0.65
"""Share of the raw PCIe rate that a copy from pinned memory reaches, and share of the pinned rate
that a copy from pageable memory reaches, on unmeasured cards: both measured on V100-SXM2-16GB."""

MAX_PAGEABLE_GBS = 8.1
"""Maximum rate of copies from pageable memory, in GB/s, on any bus: one host thread stages them
(the same 8.1 GB/s were measured on V100 and A100, on buses of 15.8 and 31.5 GB/s; a trace of an RTX
2080 Ti shows 3 to 4)."""

LOCKED = "@"
"""Separator between the name of a card and its locked clock in MHz."""

ARCHITECTURES = (
    "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell", "cdna2", "cdna3", "cpu",
)  # fmt: skip
"""Architectures that formulas distinguish; sheets of others name the most similar one."""


class Figure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One property of a card.

    Attributes:
        datasheet: the maker's figure, in the unit of the sheet's field.
        measured: result of a benchmark (for a peak: large products, or the benchmark in
            ``source``), or the setting during measurements of the card.
        sustained: for a peak, the rate of large products that run without a pause, so that the
            power limit holds.
        source: source of all of them.
    """

    datasheet: float | None = None
    measured: float | None = None
    sustained: float | None = None
    source: str = ""

    @property
    def value(self) -> float | None:
        """The measured figure, or else the datasheet's."""
        return self.datasheet if self.measured is None else self.measured


class DeviceSheet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One variant of a card.

    Attributes:
        name: such as ``V100-SXM2-16GB``.
        aliases: other names of this sheet.
        architecture: one of ``ARCHITECTURES``.
        target: compilation target of its kernels: ``sm_90``, ``gfx942``. It distinguishes cards of
            one architecture: ``sm_100`` and ``sm_103`` have the matrix units and the shared memory
            of a data centre's Blackwell, ``sm_120`` those of a desktop's.
        note: card that the sheet represents, if the name alone is ambiguous.
        source: source of the plain numbers.
        sms: number of streaming multiprocessors (AMD: compute units).
        fp32_lanes: float32 multiply-adds per cycle of a multiprocessor.
        shared_bytes: shared memory of a multiprocessor, bytes.
        memory_bytes: device memory, bytes.
        l2_bytes: last cache before device memory that all multiprocessors share, bytes.
        dies: number of compute dies that torch treats as one device.
        watts: power limit of the board.
        clock_mhz: boost clock of the datasheet's peaks, and actual clock of the measured card.
        units_mhz: clock of the matrix units' peaks, if it is not the boost clock, and clock that
            large products on them sustain within the power limit.
        sustained_mhz: clock that large products on the plain cores sustain within the power limit.
        fp32_gflops, fp64_gflops: peak of the plain cores, GFLOP/s.
        fp32_units_gflops, fp64_units_gflops, tf32_gflops, fp16_gflops, bf16_gflops, fp8_gflops,
        int8_gflops, fp4_gflops: dense peak of the matrix units, GFLOP/s (integers: GOP/s),
            accumulated in float32; absent if the card has none for the type.
        dram_gbs, l2_gbs: bandwidth of device memory and of the cache of ``l2_bytes``, GB/s.
        pinned_gbs, pageable_gbs: bandwidth of copies between host and device, by the kind of
            host memory, GB/s; the datasheet's is the raw rate of the bus.
        pinned_to_host_gbs, pageable_to_host_gbs: bandwidth of copies to the host; absent if it is
            equal to that of copies from the host.
        launch_us: time of a tiny op from the call to its end, microseconds, to compare with a
            host's overheads, which schedules use.
        link_gbs: bandwidth to other cards, sum of both directions, GB/s.
        tf32: whether float32 matrix products use the matrix units' tf32 unless the program
            specifies it (torch's default: no).
        tf32_convolutions: whether float32 convolutions use tf32 (torch's default: yes, if there are
            such units).
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
        """Clock of the multiprocessors in MHz."""
        return _required(self.clock_mhz.value)

    @property
    def is_host(self) -> bool:
        """Whether this is the host's own processor, which runs calls itself."""
        return self.architecture == "cpu"

    @property
    def card(self) -> str:
        """The name without the locked clock of ``NAME@MHZ``."""
        return self.name.partition(LOCKED)[0]

    @property
    def bandwidth(self) -> float:
        """Reachable DRAM bandwidth in GB/s: measured, or else a share of the datasheet's."""
        if self.dram_gbs.measured is not None:
            return self.dram_gbs.measured
        return _required(self.dram_gbs.datasheet) * UNMEASURED_SHARE

    @property
    def l2_bandwidth(self) -> float:
        """Bandwidth of the second-level cache in GB/s; if unknown, twice the DRAM's."""
        return self.l2_gbs.value or 2 * self.bandwidth

    def host_bandwidth(self, pinned: bool, to_host: bool = False) -> float:
        """Return the bandwidth of copies between host and device in GB/s."""
        to_host_figure = self.pinned_to_host_gbs if pinned else self.pageable_to_host_gbs
        if to_host and to_host_figure.value is not None:
            return to_host_figure.value
        raw = _required(self.pinned_gbs.datasheet or self.pinned_gbs.measured)
        best = self.pinned_gbs.measured or raw * LINK_SHARE
        if pinned:
            return best
        return self.pageable_gbs.value or min(best * PAGEABLE_SHARE, MAX_PAGEABLE_GBS)

    @property
    def convolution_dtype(self) -> str:
        """The type in which convolutions of float32 compute: ``tf32`` or ``f32``."""
        return "tf32" if self.tf32_convolutions and self.has_tf32 else "f32"

    @property
    def has_tf32(self) -> bool:
        """Whether the sheet has matrix units that multiply in tf32."""
        return self.tf32_gflops.value is not None

    def with_settings(self, settings: Mapping[str, object]) -> DeviceSheet:
        """Return the sheet with a program's settings of tf32 (``irgraph.ir.tf32``)."""
        choices = {key: bool(settings[key]) for key in (PRODUCTS, CONVOLUTIONS) if key in settings}
        return msgspec.structs.replace(self, **choices) if choices and self.has_tf32 else self

    def peak(self, dtype: str) -> tuple[float, bool]:
        """Return the peak of matrix products in GFLOP/s, and whether it is that of matrix units.

        It is the datasheet's peak, scaled from its clock (for matrix units ``units_mhz``, else the
        boost clock) to the card's actual clock. If no datasheet gives the f64 peak, a measured rate
        of f64 products counts as one of matrix units. Raises ``IrgraphError`` if the sheet has no
        f64 figure.
        """
        boost = _required(self.clock_mhz.datasheet)
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

    def measured_share(self, dtype: str) -> float | None:
        """Return the measured share of the datasheet's peak of large products, ``None`` if unknown.

        The share of plain cores is known only with 128 lanes or on small boards that share power
        (Turing): the figures of other cards come from benchmarks of another kind.
        """
        figure = self._units().get("tf32" if dtype == "f32" and self.tf32 else dtype, Figure())
        if figure.value is None:
            is_comparable = self.fp32_lanes == LANES or self.architecture == "turing"
            figure = self._plain(dtype) if is_comparable else Figure()
        if figure.measured is None or figure.datasheet is None:
            return None
        return figure.measured / figure.datasheet

    def sustained_rate(self, dtype: str) -> float | None:
        """Return the sustained GFLOP/s of large products on matrix units, ``None`` if unknown."""
        return self._units().get(dtype, Figure()).sustained

    @property
    def halved(self) -> bool:
        """Whether its matrix units accumulate in float32 at half of their rate, as on GeForce."""
        peak, hertz = self.fp16_gflops.datasheet, self.units_mhz.datasheet
        if peak is None or self.target not in HALVING:
            return False
        clock = hertz or _required(self.clock_mhz.datasheet)
        return peak * 1e3 / (self.sms * clock) < 0.75 * WHOLE_RATE

    def at_whole_rate(self) -> DeviceSheet:
        """Return the sheet as if its matrix units accumulated at their whole rate, unmeasured."""
        if not self.halved:
            return self
        names = ("tf32_gflops", "fp16_gflops", "bf16_gflops", "fp8_gflops")
        figures = {n: f for n in names if (f := getattr(self, n)).datasheet is not None}
        doubled = {n: Figure(2 * f.datasheet, source=f.source) for n, f in figures.items()}
        return msgspec.structs.replace(self, **doubled)

    def reached_share(self, dtype: str, share: float) -> float:
        """Return the reached share of a halved peak for kernels with ``share`` of a whole rate."""
        if not (self.halved and dtype in HALVED):
            return share
        max_share = self.measured_share(dtype) or HALVED_SHARE
        power_sum = (2 * share) ** -SHARPNESS + max_share**-SHARPNESS
        return float(power_sum ** (-1 / SHARPNESS))

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


def _required(value: float | None) -> float:
    if value is None:
        raise fail("a rate that this formula needs is missing from the device sheet")
    return value
