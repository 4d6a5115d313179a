"""What installed packages add: kernel families, device sheets and host tables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from costmodels.devices.library import list_devices, load_device
from costmodels.families import rules
from costmodels.hosts.writing import encode
from irgraph.cli.main import main
from irgraph.diagnostics import IrgraphError
from irgraph.overheads import list_hosts, load_host
from irgraph.overheads.format import FORMAT, HostFile, Stat
from irgraph.predict.prediction import predict
from irgraph.text import parse
from tests.installed import install, site

__all__ = ["site"]

FAMILY = '''"""A family of one op."""

from costmodels.formulas.machine import work

SOURCE = "one microsecond, by decree"


def price(op, machine):
    return (work("toy", op.name, 1.0, 0.0, SOURCE),)


RULES = {"%s": price}
'''

MODEL = """model "toy" { format = 1 }

device @gpu0 "v100"
schema "toy::step(Tensor x) -> Tensor"
input %x : f32[64, 64] in $b1

%y = toy.step(%x) : f32[64, 64] in $b2
"""


def _family(site: Path, module: str, package: str = "toy-kernels", op: str = "toy.step") -> None:
    points = {"irgraph.families": {"toy": module}}
    install(site, package, points, {f"{module}.py": FAMILY % op})


def _sheet(name: str, *aliases: str) -> str:
    figure = {"datasheet": 1000.0}
    return json.dumps(
        {
            "name": name,
            "aliases": aliases,
            "architecture": "ampere",
            "sms": 10,
            "memory_bytes": 2**30,
            "l2_bytes": 2**20,
            "clock_mhz": figure,
            "fp32_gflops": figure,
            "dram_gbs": figure,
            "pinned_gbs": figure,
        }
    )


def _devices(site: Path, *sheets: str) -> None:
    files = {f"toy_cards/{number}.json": text for number, text in enumerate(sheets)}
    points = {"irgraph.devices": {"toy": "toy_cards"}}
    install(site, "toy-cards", points, {"toy_cards/__init__.py": "", **files})


def _hosts(site: Path, name: str) -> None:
    points = {"irgraph.hosts": {"toy": "toy_hosts"}}
    text = encode(HostFile(FORMAT, name, Stat(7.0), {}, {})).decode()
    files = {"toy_hosts/__init__.py": "", f"toy_hosts/{name}.json": text}
    install(site, "toy-hosts", points, files)


def test_an_op_that_no_family_knows_is_unknown() -> None:
    assert [op.name for op in predict(parse(MODEL), "v100").timeline.unknown] == ["toy.step"]


def test_an_installed_family_prices_its_ops(site: Path) -> None:
    _family(site, "toy_family")
    found = predict(parse(MODEL), "v100")
    assert not found.timeline.unknown
    (kernel,) = found.kernels()
    assert (kernel.family, kernel.time, kernel.by) == ("toy", 1.0, "heuristic")


def test_a_family_must_not_claim_an_op_of_another(site: Path) -> None:
    _family(site, "toy_family", op="aten.mm")
    with pytest.raises(IrgraphError, match=r"plug-in 'toy' of toy-kernels 1.0: .*'aten.mm'"):
        rules()


def test_two_packages_must_not_claim_one_op(site: Path) -> None:
    _family(site, "toy_first")
    _family(site, "toy_second", "other-kernels")
    with pytest.raises(IrgraphError, match=r"of toy-kernels 1.0: .*'toy.step'"):
        rules()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError"),
        ("1 / 0", "ZeroDivisionError"),
        ("raise KeyError", "cannot be imported: KeyError"),
        ("X = 1", "no attribute 'RULES'"),
    ],
)
def test_a_family_that_cannot_be_used_is_named(
    site: Path, text: str, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    points = {"irgraph.families": {"broken": "toy_broken"}}
    install(site, "broken-kernels", points, {"toy_broken.py": text})
    model = site / "m.ir"
    model.write_text(MODEL)
    assert main(["predict", str(model)]) == 2
    error = capsys.readouterr().err
    assert "plug-in 'broken' of broken-kernels 1.0: " in error and reason in error
    assert "group irgraph.families" in error


def test_an_installed_device_is_found_by_name_and_alias(site: Path) -> None:
    _devices(site, _sheet("Toy-1000", "toy"), _sheet("Toy-2000"))
    assert {"Toy-1000", "Toy-2000", "V100-SXM2-16GB"} <= set(list_devices())
    assert load_device("toy") is load_device("toy 1000")
    assert predict(parse(MODEL), "toy").sheet.sms == 10


@pytest.mark.parametrize("sheet", [_sheet("Mine", "v100"), _sheet("A100-SXM4-40GB")])
def test_a_device_must_not_take_a_name_that_ships(site: Path, sheet: str) -> None:
    _devices(site, sheet)
    with pytest.raises(IrgraphError, match=r"plug-in 'toy' of toy-cards 1.0: there is another dev"):
        load_device("v100")


def test_a_sheet_of_a_package_that_is_wrong_is_named(site: Path) -> None:
    _devices(site, _sheet("Mine").replace('"sms": 10', '"sms": "many"'))
    with pytest.raises(IrgraphError) as caught:
        list_devices()
    assert "field 'sms'" in str(caught.value) and "toy_cards/0.json" in str(caught.value)


def test_an_installed_host_is_found_by_name(site: Path) -> None:
    _hosts(site, "toy-host")
    assert {"toy-host", "v100"} <= set(list_hosts())
    assert load_host("toy-host").file.t1.mean == 7.0


def test_a_host_must_not_take_a_name_that_ships(site: Path) -> None:
    _hosts(site, "v100")
    with pytest.raises(IrgraphError, match=r"of toy-hosts 1.0: there is another host table 'v100'"):
        load_host("v100")


def test_packages_without_plugins_are_not_looked_into() -> None:
    """Reading the entry points of every package takes half as long as importing numpy."""
    code = (
        "import sys; from costmodels.families import rules;"
        "from irgraph.overheads import list_hosts;"
        "rules(); list_hosts(); assert 'importlib.metadata' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
