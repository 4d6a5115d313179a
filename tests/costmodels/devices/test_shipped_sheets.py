"""The shipped sheets against each other: peaks by lanes, clocks and targets, and their sources."""

from __future__ import annotations

import msgspec
import pytest

from costmodels.devices.library import list_devices, load_device
from costmodels.devices.sheet import DeviceSheet, Figure

TARGETS = {
    "sm_60": ("pascal", 64, 64, 0), "sm_61": ("pascal", 128, 96, 0),
    "sm_70": ("volta", 64, 96, 1024), "sm_75": ("turing", 64, 64, 1024),
    "sm_80": ("ampere", 64, 164, 2048), "sm_86": ("ampere", 128, 100, 1024),
    "sm_89": ("ada", 128, 100, 1024),
    "sm_90": ("hopper", 128, 228, 4096), "sm_100": ("blackwell", 128, 228, 8192),
    "sm_103": ("blackwell", 128, 228, 8192), "sm_120": ("blackwell", 128, 100, 1024),
    "gfx90a": ("cdna2", 64, 64, 1024), "gfx942": ("cdna3", 128, 64, 2048),
}  # fmt: skip
"""Architecture; lanes, KiB of shared memory and operations a cycle of the matrix units in f16 of a
multiprocessor (CUDA C++ Programming Guide, compute capabilities; AMD, CDNA whitepapers)."""

GEFORCE = ("RTX-2", "RTX-3", "RTX-4", "RTX-5")
"""Cards whose matrix units accumulate in float32 at half the rate."""

GPUS = [name for name in list_devices() if load_device(name).architecture != "cpu"]


def _ghz(sheet: DeviceSheet, *, units: bool = False) -> float:
    """Return the clock at which the datasheet's peaks hold."""
    boost = sheet.clock_mhz.datasheet or 0.0
    return ((units and sheet.units_mhz.datasheet) or boost) / 1e3


@pytest.mark.parametrize("name", GPUS)
def test_the_peak_in_float32_is_that_of_the_lanes_at_the_boost_clock(name: str) -> None:
    sheet = load_device(name)
    assert sheet.fp32_lanes
    lanes = sheet.sms * sheet.fp32_lanes * 2 * _ghz(sheet)
    assert sheet.fp32_gflops.datasheet == pytest.approx(lanes, rel=0.02)


@pytest.mark.parametrize("name", GPUS)
def test_matrix_peaks_are_dense_and_at_their_clock(name: str) -> None:
    """A sparse figure, or that of another clock, would not be in its place."""
    sheet = load_device(name)
    f16 = TARGETS[sheet.target][3] // (2 if name.startswith(GEFORCE) else 1)
    cycle = sheet.sms * _ghz(sheet, units=True)
    for field, ratio in (("fp16", 1), ("bf16", 1), ("tf32", 0.5), ("fp8", 2)):
        peak = getattr(sheet, f"{field}_gflops").datasheet
        if peak is not None:
            assert peak == pytest.approx(ratio * f16 * cycle, rel=0.02), field
    assert bool(f16) == (sheet.fp16_gflops.datasheet is not None)


@pytest.mark.parametrize("name", GPUS)
def test_narrower_types_are_no_slower_and_f64_no_faster(name: str) -> None:
    sheet = load_device(name)
    wide = [sheet.tf32_gflops, sheet.fp16_gflops, sheet.fp8_gflops, sheet.fp4_gflops]
    rates = [figure.datasheet for figure in wide if figure.datasheet]
    assert rates == sorted(rates)
    assert (sheet.fp64_gflops.datasheet or 0.0) <= sheet.fp32_gflops.datasheet


@pytest.mark.parametrize("name", GPUS)
def test_every_figure_and_every_plain_number_names_its_source(name: str) -> None:
    sheet = load_device(name)
    assert sheet.source
    figures = [f for f in msgspec.structs.asdict(sheet).values() if isinstance(f, Figure)]
    assert all(figure.source for figure in figures if figure.value is not None)


@pytest.mark.parametrize("name", GPUS)
def test_what_a_card_of_its_target_has_is_there(name: str) -> None:
    sheet = load_device(name)
    architecture, lanes, shared, _ = TARGETS[sheet.target]
    assert (sheet.architecture, sheet.fp32_lanes) == (architecture, lanes)
    assert (sheet.shared_bytes or 0) / 2**10 == shared
    assert 50 <= (sheet.watts or 0) <= 1500
    assert sheet.l2_gbs.value is None or sheet.l2_gbs.value > sheet.bandwidth
