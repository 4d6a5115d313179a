"""Files of tiers and platforms: those that ship, and a user's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.tiers.library import list_platforms, list_tiers, load_platform, load_tier
from irgraph.tiers.tier import SourcedFigure

FOLDER = Path(__file__).parents[2] / "irgraph" / "tiers"
NAND = json.loads((FOLDER / "devices" / "nand-p3700-800gb.json").read_text("utf-8"))
HOST = json.loads((FOLDER / "platforms" / "dgx-1-nand.json").read_text("utf-8"))


def written(path: Path, content: Any) -> str:
    file = path / "my.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(file)


@pytest.mark.parametrize(
    ("fast", "says"),
    [
        ('{"tier": "uvm"}', "how much UVM-PCIe3 holds is not said"),
        ('{"tier": "uvm", "tables_gb": 1}', "fast memory is read as the device's own"),
        ('{"tier": "nand"}', "it is a slower tier"),
        ('{"tier": "hbm2", "tables_gb": 0}', "no fast memory is left for tables"),
    ],
)
def test_fast_memory_holds_something_and_is_the_devices(
    fast: str, says: str, tmp_path: Path
) -> None:
    text = '{"name": "p", "device": "v100", "base_watts": {"value": 9, "source": "x"}, "fast": %s}'
    (tmp_path / "p.json").write_text(text % fast)
    with pytest.raises(IrgraphError, match=says):
        load_platform(str(tmp_path / "p.json"))


def test_tiers_of_every_kind_ship_with_the_source_of_each_figure() -> None:
    tiers = [load_tier(name) for name in list_tiers()]
    assert {tier.kind for tier in tiers} == {"device", "memory", "link", "storage"}
    for tier in tiers:
        figures = [getattr(tier, name) for name in tier.__struct_fields__]
        assert all(f.source for f in figures if isinstance(f, SourcedFigure))
    names = [name.lower() for tier in tiers for name in (tier.name, *tier.aliases)]
    assert len(names) == len(set(names))


def test_platforms_name_tiers_that_are_there() -> None:
    for name in list_platforms():
        platform = load_platform(name)
        assert platform.base_watts.source


def test_names_are_compared_loosely() -> None:
    assert load_tier("nand_P3700 800gb") is load_tier("nand")


def test_a_users_own_file_is_read(tmp_path: Path) -> None:
    mine = {**NAND, "name": "mine", "iops": {"value": 1e6, "source": "measured here"}}
    assert load_tier(written(tmp_path, mine)).rate == pytest.approx(2.8e9 / 4096)
    host = {**HOST, "slow": [{"tier": written(tmp_path, mine), "count": 3}]}
    (tmp_path / "host.json").write_text(json.dumps(host))
    assert load_platform(str(tmp_path / "host.json")).slow[0].count == 3


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not a tier"),
        ("[1]", "not a tier"),
        ({k: v for k, v in NAND.items() if k != "latency_us"}, "latency_us"),
        ({**NAND, "latencyus": 3}, "no field is called 'latencyus'; did you mean 'latency_us'"),
        ({**NAND, "latency_us": 3}, "not a tier"),
        ({**NAND, "latency_us": {"value": 0, "source": "x"}}, "latency_us: 0 is not possible"),
        ({**NAND, "latency_us": {"value": -1, "source": "x"}}, "latency_us: -1 is not possible"),
        ({**NAND, "idle_watts": {"value": -1, "source": "x"}}, "idle_watts: -1 is not possible"),
        ({**NAND, "iops": {"value": 1e300, "source": "x"}}, "iops: 1e\\+300 is not possible"),
        ({**NAND, "iops": {"value": 5, "source": " "}}, "iops: its source is missing"),
        ({**NAND, "queueing": "disk"}, "not a tier"),
        (json.dumps(NAND).replace("77.9", "NaN"), "not a tier"),
    ],
)
def test_what_is_no_tier_is_refused_with_its_place(tmp_path: Path, content: Any, says: str) -> None:
    with pytest.raises(IrgraphError, match=says) as raised:
        load_tier(written(tmp_path, content))
    assert "my.json" in str(raised.value)
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"devices": 0}, "at least one computes"),
        ({"slow": [{"tier": "nand", "count": 0}]}, "positive numbers"),
        ({"slow": [{"tier": "nand", "capacity_gb": -1}]}, "positive numbers"),
        ({"slow": [{"tier": "nnand"}]}, "no tier is called 'nnand'; did you mean 'nand'"),
        ({"base_wats": 3}, "did you mean 'base_watts'"),
    ],
)
def test_what_is_no_platform_is_refused(tmp_path: Path, change: Any, says: str) -> None:
    with pytest.raises(IrgraphError, match=says):
        load_platform(written(tmp_path, {**HOST, **change}))


def test_unknown_names_and_missing_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match="no tier is called 'optan'; did you mean 'optane'"):
        load_tier("optan")
    with pytest.raises(IrgraphError, match="no platform is called"):
        load_platform("dgx")
    with pytest.raises(IrgraphError):
        load_tier(str(tmp_path / "nowhere.json"))
