"""Device sheets: shipped ones, a user's own, and what is said about a bad one."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from costmodels.devices.library import (
    device_rows,
    list_devices,
    load_device,
    recorded_sheet,
    same_model,
)
from costmodels.devices.sheet import MAX_PAGEABLE_GBS, UNMEASURED_SHARE
from irgraph.backend import architecture_of
from irgraph.diagnostics import IrgraphError

NAMED = (
    "V100-SXM2-16GB", "V100-PCIE-32GB", "V100-SXM2-32GB", "P100-PCIE-16GB", "TITAN-Xp",
    "Quadro-GV100", "A100-PCIE-40GB", "A100-SXM4-40GB", "A100-80GB-PCIe", "H100-80GB-HBM3", "H200",
)  # fmt: skip

OWN = {
    "name": "mine", "architecture": "ampere", "sms": 10, "memory_bytes": 2**30, "l2_bytes": 2**20,
    "clock_mhz": {"datasheet": 1000}, "fp32_gflops": {"datasheet": 2000},
    "dram_gbs": {"datasheet": 500}, "pinned_gbs": {"datasheet": 16},
}  # fmt: skip


def _written(tmp_path: Path, **changes: object) -> str:
    path = tmp_path / "my.json"
    path.write_text(json.dumps({**OWN, **changes}), encoding="utf-8")
    return str(path)


def test_every_variant_that_the_data_name_has_a_sheet() -> None:
    assert set(NAMED) <= set(list_devices())


def test_each_sheet_lies_in_a_file_of_its_name() -> None:
    folder = resources.files("costmodels.devices")
    files = {item.name for item in folder.iterdir() if item.name.endswith(".json")}
    named = {f"{name.lower()}.json" for name in list_devices()}
    assert files == named, f"files {files - named} should be called {named - files}"


def test_names_and_aliases_are_unique() -> None:
    sheets = [load_device(name) for name in list_devices()]
    words = [w.lower() for s in sheets for w in (s.name, *s.aliases) if w.lower() != s.name.lower()]
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("alias", "name"),
    [
        ("v100", "V100-SXM2-16GB"),
        ("a100", "A100-SXM4-40GB"),
        ("H100", "H100-80GB-HBM3"),
        ("Tesla V100-SXM2-16GB", "V100-SXM2-16GB"),
        ("gv100", "Quadro-GV100"),
        ("titan xp", "TITAN-Xp"),
        ("NVIDIA A100-PCIE-40GB", "A100-PCIE-40GB"),
    ],
)
def test_short_names_and_the_drivers_own_find_a_sheet(alias: str, name: str) -> None:
    assert load_device(alias).name == name


def test_measured_figures_do_not_exceed_the_datasheet() -> None:
    for sheet in map(load_device, list_devices()):
        for name in ("clock_mhz", "dram_gbs", "pinned_gbs"):
            figure = getattr(sheet, name)
            if figure.measured and figure.datasheet:
                assert figure.measured <= figure.datasheet, (sheet.name, name)


def test_tf32_is_off_as_torch_has_it() -> None:
    assert not any(load_device(name).tf32 for name in list_devices())


def test_the_peak_follows_the_clock_at_which_the_card_ran() -> None:
    sheet = load_device("v100@1297")
    assert sheet.peak("f32") == (pytest.approx(15700 * 1297 / 1530), False)
    assert sheet.peak("f16")[1] is True
    assert sheet.peak("bf16") == sheet.peak("f32")  # no matrix units for it: the plain cores
    assert sheet.peak("f64")[0] < sheet.peak("f32")[0]


def test_the_peak_of_matrix_units_follows_the_clock_that_it_holds_at() -> None:
    """Those of an H100 hold at 1,830 MHz, its boost clock is 1,980."""
    whole = load_device("h100").peak("bf16")
    assert whole == load_device("h100@1830").peak("bf16") == (989_400, True)
    assert load_device("h100@915").peak("bf16") == (pytest.approx(whole[0] / 2), True)
    assert load_device("h100@990").peak("f32")[0] == pytest.approx(
        load_device("h100").peak("f32")[0] / 2
    )
    assert load_device("mi300x@1050").peak("bf16")[0] == pytest.approx(
        load_device("mi300x").peak("bf16")[0] / 2
    )


def test_an_unmeasured_bandwidth_is_a_share_of_the_datasheets() -> None:
    assert load_device("h200").bandwidth == pytest.approx(4800 * UNMEASURED_SHARE)
    assert load_device("v100").bandwidth == pytest.approx(816.953)


def test_rows_show_both_figures_and_tf32() -> None:
    row = next(r for r in device_rows() if r["name"] == "V100-SXM2-16GB")
    assert row["DRAM GB/s"] == "900 / 816.953"
    assert row["tf32"] == "off"
    assert {len(r) for r in device_rows()} == {len(row)}


def test_a_users_sheet_is_read_from_a_path(tmp_path: Path) -> None:
    sheet = load_device(_written(tmp_path, tf32=True))
    assert (sheet.name, sheet.tf32) == ("mine", True)
    assert sheet.host_bandwidth(pinned=True) > sheet.host_bandwidth(pinned=False) > 0


def _message(tmp_path: Path, **changes: object) -> str:
    with pytest.raises(IrgraphError) as caught:
        load_device(_written(tmp_path, **changes))
    assert "my.json" in str(caught.value)
    return str(caught.value)


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(IrgraphError, match="no device sheet named 'v10'; did you mean 'V100-") as e:
        load_device("v10")
    assert e.value.exit_code == 2
    assert "irgraph devices" in str(e.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(IrgraphError, match=r"cannot read device sheet 'no/such.json'"):
        load_device("no/such.json")


def test_a_file_that_is_not_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "my.json"
    path.write_text("{", encoding="utf-8")
    with pytest.raises(IrgraphError, match="not JSON"):
        load_device(path)


def test_a_file_that_is_no_object_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my.json"
    path.write_text("[1]", encoding="utf-8")
    with pytest.raises(IrgraphError, match="Expected 'object', got 'array'"):
        load_device(path)


def test_a_missing_field_is_named(tmp_path: Path) -> None:
    without = {k: v for k, v in OWN.items() if k != "sms"}
    path = tmp_path / "my.json"
    path.write_text(json.dumps(without), encoding="utf-8")
    with pytest.raises(IrgraphError, match="missing field 'sms'"):
        load_device(path)


def test_a_wrong_type_is_named(tmp_path: Path) -> None:
    assert "field 'sms': expected `int`, got `str`" in _message(tmp_path, sms="many")


def test_an_unknown_field_suggests_the_nearest(tmp_path: Path) -> None:
    assert "no field 'dram_gb'; did you mean 'dram_gbs'?" in _message(tmp_path, dram_gb=1)


def test_an_unknown_field_of_a_figure_suggests_the_nearest(tmp_path: Path) -> None:
    message = _message(tmp_path, dram_gbs={"datasheet": 1, "mesured": 2})
    assert "no field 'dram_gbs.mesured'; did you mean 'measured'?" in message


def test_a_rate_that_formulas_need_must_be_there(tmp_path: Path) -> None:
    assert "dram_gbs.datasheet is missing" in _message(tmp_path, dram_gbs={"measured": 400})
    assert "pinned_gbs has neither" in _message(tmp_path, pinned_gbs={})


@pytest.mark.parametrize("field", ["sms", "l2_bytes"])
def test_a_size_must_be_above_zero(tmp_path: Path, field: str) -> None:
    assert f"{field} must be above zero" in _message(tmp_path, **{field: 0})


def test_a_rate_must_be_above_zero(tmp_path: Path) -> None:
    assert "dram_gbs must be above zero" in _message(tmp_path, dram_gbs={"datasheet": -1})


def test_sheets_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        load_device("v100").sms = 81  # type: ignore[misc]
    assert msgspec.structs.replace(load_device("v100"), sms=81).sms == 81


def test_an_architecture_that_no_formula_knows_is_named(tmp_path: Path) -> None:
    sheet = msgspec.to_builtins(load_device("v100"))
    path = tmp_path / "mine.json"
    path.write_bytes(msgspec.json.encode({**sheet, "architecture": "Volta"}))
    with pytest.raises(IrgraphError, match="no architecture 'Volta'; did you mean 'volta'"):
        load_device(path)


def test_convolutions_use_tf32_where_there_are_units_for_it() -> None:
    assert load_device("a100").convolution_dtype == "tf32"
    assert load_device("v100").convolution_dtype == "f32"


def test_pageable_copies_do_not_gain_from_a_faster_bus() -> None:
    h200 = load_device("h200")
    assert h200.host_bandwidth(pinned=False) == MAX_PAGEABLE_GBS < h200.host_bandwidth(pinned=True)


def test_copies_of_the_h100_are_as_measured() -> None:
    h100 = load_device("h100")
    assert [h100.host_bandwidth(True, way) for way in (False, True)] == [55.3, 55.3]
    assert [h100.host_bandwidth(False, way) for way in (False, True)] == [11.0, 17.0]


@pytest.mark.parametrize(
    ("name", "gflops", "units"),
    [
        ("a100", 19500, True),
        ("h100", 66900, True),
        ("h200", 66900, True),
        ("l4", 473, False),
        ("t4", 254, False),
    ],
)
def test_products_in_f64_run_on_matrix_units_where_a_card_has_them(
    name: str, gflops: float, units: bool
) -> None:
    sheet = load_device(name)
    clock = sheet.clock / (sheet.clock_mhz.datasheet or 0.0)
    assert sheet.peak("f64") == (pytest.approx(gflops * clock), units)


def test_every_shipped_sheet_tells_the_peak_of_f64() -> None:
    lacking = [name for name in list_devices() if not load_device(name).fp64_gflops.datasheet]
    assert not lacking, "fp64_gflops: give it its datasheet figure"


def test_a_sheet_without_f64_is_not_taken_for_one_as_fast_as_f32(tmp_path: Path) -> None:
    sheet = load_device(_written(tmp_path))
    with pytest.raises(IrgraphError, match="sheet mine has no fp64_gflops"):
        sheet.peak("f64")


def test_a_measured_rate_of_f64_counts_where_no_datasheet_does(tmp_path: Path) -> None:
    sheet = load_device(_written(tmp_path, fp64_gflops={"measured": 60}))
    assert sheet.peak("f64") == (pytest.approx(80.0), True)


@pytest.mark.parametrize(
    ("driver", "name"),
    [
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA GeForce RTX 5090", "RTX-5090"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("NVIDIA H100 NVL", "H100-NVL"),
        ("NVIDIA GH200 480GB", "GH200-480GB"),
        ("NVIDIA B200", "B200"),
        ("NVIDIA B300 SXM6 AC", "B300"),
        ("NVIDIA L40S", "L40S"),
        ("AMD Instinct MI300X", "MI300X"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000-Blackwell-Server-Edition"),
    ],
)
def test_a_card_is_found_by_what_its_driver_calls_it(driver: str, name: str) -> None:
    found = recorded_sheet(driver)
    assert found is not None
    assert found.name == name
    assert architecture_of(driver) == found.architecture


@pytest.mark.parametrize(
    ("card", "other", "same"),
    [
        ("NVIDIA L40S", "NVIDIA L40", False),
        ("NVIDIA L40S", "L40S", True),
        ("AMD Instinct MI250", "AMD Instinct MI250X", False),
        ("NVIDIA A10G", "NVIDIA A10", False),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "Quadro RTX 6000", False),
        ("NVIDIA GH200 480GB", "NVIDIA H200", False),
        ("NVIDIA H100 PCIe", "H100-NVL", True),
    ],
)
def test_models_are_told_apart_by_their_last_letter(card: str, other: str, same: bool) -> None:
    assert same_model(card, other) is same


def test_products_of_eight_bits_run_on_matrix_units_where_a_card_has_them() -> None:
    assert load_device("h100").peak("f8e4m3") == (pytest.approx(1978900), True)
    assert load_device("a100").peak("f8e5m2")[1] is False
    assert load_device("a100").peak("i8") == (pytest.approx(624000), True)


def test_products_in_float32_run_on_matrix_units_that_take_it() -> None:
    assert load_device("mi250").peak("f32") == (pytest.approx(45300), True)
    assert load_device("mi300x").convolution_dtype == "f32"


def test_a_card_runs_at_stock_clocks_unless_one_is_locked() -> None:
    stock, locked = load_device("v100"), load_device("V100@1297")
    assert (stock.clock, locked.clock) == (1530, 1297)
    assert (locked.name, locked.card) == ("V100-SXM2-16GB@1297", stock.name)
    assert locked.peak("f32")[0] == pytest.approx(15700 * 1297 / 1530)
    assert locked.bandwidth == stock.bandwidth


@pytest.mark.parametrize("mhz", ["1531", "99", "0"])
def test_a_clock_that_a_card_does_not_have_is_refused(mhz: str) -> None:
    with pytest.raises(
        IrgraphError, match=rf"cannot run at {mhz} MHz: it runs between 100 MHz and"
    ):
        load_device(f"v100@{mhz}")


def test_what_large_products_reach_is_a_share_of_the_datasheets_peak() -> None:
    assert load_device("l4").measured_share("f32") == pytest.approx(10660 / 30300)
    assert load_device("t4").measured_share("f16") == pytest.approx(42710 / 65000)
    assert load_device("v100").measured_share("f32") is None  # another benchmark, of 64 lanes
    assert load_device("b300").measured_share("bf16") is None  # nobody measured


@pytest.mark.parametrize("name", ["rtx-2080-ti", "rtx-3090", "rtx-4090", "rtx-5090"])
def test_geforce_accumulates_at_half_of_the_rate(name: str) -> None:
    sheet = load_device(name)
    whole = sheet.at_whole_rate()
    assert sheet.halved and not whole.halved
    assert whole.peak("f16")[0] == pytest.approx(2 * sheet.peak("f16")[0])
    assert whole.peak("i8") == sheet.peak("i8")
    most = sheet.measured_share("f16") or 1.0
    assert sheet.reached_share("f16", 0.75) == pytest.approx(most, rel=0.1)
    assert sheet.reached_share("f16", 0.1) == pytest.approx(0.2, rel=0.01)
    assert sheet.reached_share("i8", 0.75) == 0.75


@pytest.mark.parametrize("name", ["t4", "a40", "a10", "l4", "l40s", "rtx-pro-6000", "a100", "h100"])
def test_boards_for_servers_do_not(name: str) -> None:
    sheet = load_device(name)
    assert not sheet.halved
    assert sheet.at_whole_rate() is sheet
    assert sheet.reached_share("f16", 0.75) == 0.75


def test_a_clock_is_locked_once() -> None:
    with pytest.raises(IrgraphError, match="no device sheet named 'v100@1297@1000'"):
        load_device("v100@1297@1000")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clock_mhz": {"datasheet": 1.53}}, "clock_mhz.datasheet is 1.53 MHz, .* GHz, write 1530"),
        ({"dram_gbs": {"datasheet": 0.9}}, "dram_gbs.datasheet is 0.9 GB/s, .* TB/s, write 900"),
        ({"dram_gbs": {"datasheet": 900_000}}, "dram_gbs.datasheet .* MB/s, write 900"),
        (
            {"dram_gbs": {"datasheet": 900, "measured": 0.8}},
            r"dram_gbs.measured is 0.8 GB/s, .* TB/s, write 800",
        ),
        (
            {"dram_gbs": {"datasheet": 900, "measured": 1200}},
            r"dram_gbs.measured is 1,200 GB/s, .* \(its datasheet has 900\)",
        ),
        ({"fp32_gflops": {"datasheet": 2}}, "fp32_gflops.datasheet .* TFLOP/s, write 2000"),
        (
            {"fp32_lanes": 64, "fp32_gflops": {"datasheet": 2560}},
            r"fp32_gflops.datasheet is 2,560 GFLOP/s, .* \(10 sms x 64 fp32_lanes x 2 x 1000 MHz\)",
        ),
        ({"fp16_gflops": {"datasheet": 8}}, "fp16_gflops.datasheet .* TFLOP/s, write 8000"),
        ({"l2_gbs": {"measured": 2.3}}, "l2_gbs.measured .* TB/s, write 2300"),
        ({"l2_gbs": {"measured": 400}}, "l2_gbs is 400 GB/s, .*: a cache is at least as fast"),
        ({"launch_us": {"measured": 4500}}, "launch_us.measured is 4,500 us, .* ns, write 4.5"),
        ({"launch_us": {"measured": 0.0045}}, "launch_us.measured .* ms, write 4.5"),
        ({"link_gbs": {"datasheet": 0.9}}, "link_gbs.datasheet .* TB/s, write 900"),
        ({"pinned_gbs": {"datasheet": 16_000}}, "pinned_gbs.datasheet .* MB/s, write 16"),
        ({"memory_bytes": 16}, "memory_bytes is 16 bytes, .* GB, write 1.6e\\+10"),
        ({"l2_bytes": 50}, "l2_bytes is 50 bytes, .* MB, write 5e\\+07"),
        ({"l2_bytes": 6 * 10**9}, "l2_bytes is 6e\\+09 bytes"),
        ({"shared_bytes": 96}, "shared_bytes is 96 bytes, .* KB, write 96000"),
        ({"watts": 0.7}, "watts is 0.7 W, .* kW, write 700"),
    ],
)
def test_a_figure_in_another_unit_is_refused_with_that_unit(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    assert re.search(message, _message(tmp_path, **changes))


def test_a_host_that_was_measured_itself_is_no_card(tmp_path: Path) -> None:
    """Its clock is nominal, and its caches are those of cores."""
    host = {"architecture": "cpu", "l2_bytes": 4096, "launch_us": {"measured": 0.2}}
    assert load_device(_written(tmp_path, **host)).is_host


def test_a_field_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "my.json"
    path.write_text(json.dumps(OWN)[:-1] + ', "sms": 80}', encoding="utf-8")
    with pytest.raises(IrgraphError, match="an object has the key 'sms' twice"):
        load_device(path)
