"""NCCL's own model of its collectives, and links that a file describes."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from costmodels.collectives.load import fabric_of, find_curve, platforms
from costmodels.collectives.nccl import COLLECTIVES, LAUNCH, Fabric, Ring, nccl_time
from costmodels.collectives.peers import peers_of
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import with_ranks

HOPPER = Fabric("mine", "hopper", 370.0, switch=True, nic_gbs=50.0)
PLAIN = Fabric("plain", "ampere", 240.0)


def test_latencies_are_those_of_nccl() -> None:
    """A ring of LL: 6.6 us and 0.6 a step, of which an all-reduce has twice n - 1."""
    eight = Ring(8, 8, PLAIN)
    assert nccl_time("all_reduce", eight, 8, 0.0) == pytest.approx(6.6 + 14 * 0.6, rel=1e-3)
    assert nccl_time("all_gather_base", eight, 8, 0.0) == pytest.approx(6.6 + 7 * 0.6, rel=1e-3)
    two = Ring(16, 8, Fabric("net", "ampere", 240.0, nic_gbs=25.0))
    tree = 6.8 + 2 * (7 * 0.6 + 5.0)
    assert nccl_time("all_reduce", two, 8, 0.0) == pytest.approx(tree, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "links", "each", "network"),
    [
        ("v100", 6, 20.0, 4 * 100 / 8),
        ("a100", 12, 20.0, 200),
        ("h100", 18, 20.6, 400),
        ("h200", 18, 20.6, 400),
        ("b200", 18, 40.1, 400),
        ("b300", 18, 40.1, 800),
    ],
)
def test_links_are_those_that_makers_state(
    name: str, links: int, each: float, network: float
) -> None:
    """GB/s of an NVLink by NCCL's topo.h, Gb/s of a card's network by the data sheet of its DGX."""
    fabric = fabric_of(name)
    assert fabric.link_gbs == pytest.approx(links * each)
    assert fabric.nic_gbs == pytest.approx(network / 8)
    assert "Not fitted" in fabric.source or fabric.source == "as h100"


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_links_bound_large_messages(collective: str) -> None:
    """No bus carries more than its links: bus factor times bytes over time."""
    ring, size = Ring(8, 8, PLAIN), 2.0**34
    factor = {"all_reduce": 2 * 7 / 8, "broadcast": 1.0, "reduce": 1.0}.get(collective, 7 / 8)
    reached = factor * size / nccl_time(collective, ring, size) / 1e3
    assert 0.85 * 240 < reached <= 240


def test_switches_reduce_beyond_the_links_and_networks_hold_back() -> None:
    size, eight, sixteen = 2.0**32, Ring(8, 8, HOPPER), Ring(16, 8, HOPPER)
    reached = 2 * 7 / 8 * size / nccl_time("all_reduce", eight, size) / 1e3
    assert reached > 370
    assert nccl_time("all_gather", sixteen, size) > nccl_time("all_gather", eight, size)
    slow = Ring(16, 8, msgspec.structs.replace(HOPPER, nic_gbs=5.0))
    for collective in COLLECTIVES:
        assert nccl_time(collective, slow, size) > 2 * nccl_time(collective, sixteen, size)


@pytest.mark.parametrize("collective", COLLECTIVES)
@pytest.mark.parametrize("fabric", [HOPPER, PLAIN, Fabric("p", "ampere", 24.0, nvlink=False)])
def test_more_bytes_take_longer(collective: str, fabric: Fabric) -> None:
    for ranks in (2, 3, 8):
        times = [nccl_time(collective, Ring(ranks, ranks, fabric), 2.0**n) for n in range(24, 34)]
        assert times == sorted(times) and times[0] > LAUNCH


def described(path: Path, **changes: object) -> str:
    given = {"name": "lab", "architecture": "ampere", "link_gbs": 24, "nvlink": False, **changes}
    file = path / "links.json"
    file.write_bytes(msgspec.json.encode(given))
    return str(file)


def test_a_file_describes_links_that_nobody_measured(tmp_path: Path) -> None:
    curve = find_curve("all_reduce", 4, described(tmp_path))
    assert not curve.measured and "nobody measured it" in curve.source and curve.error == 0.3
    with pytest.raises(IrgraphError, match="nobody says how fast the network"):
        find_curve("all_reduce", 4, described(tmp_path), local=2)


def test_a_file_may_lean_on_what_was_measured_within_a_machine(tmp_path: Path) -> None:
    file = described(tmp_path, link_gbs=370.8, architecture="hopper", nic_gbs=12.5, like="h100")
    mine, h100 = (find_curve("all_reduce", 8, name) for name in (file, "h100"))
    assert mine == h100
    slow, usual = (find_curve("all_reduce", 16, name, 8) for name in (file, "h100"))
    assert slow.time(2**30) > 2 * usual.time(2**30) and not slow.measured


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"link_gbs": 0}, "link_gbs is 0 GB/s, between 1 and 2,000 GB/s is possible"),
        ({"link_gbs": 0.6}, "link_gbs .* if it is in TB/s, write 600"),
        ({"nic_gbs": 50_000}, "nic_gbs .* if it is in MB/s, write 50"),
        ({"architecture": "turing"}, "Invalid enum value 'turing'"),
        ({"speed": 1}, "unknown field `speed`"),
        ({"like": "h10"}, "no platform is called 'h10'"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(IrgraphError, match=message) as caught:
        find_curve("all_reduce", 4, described(tmp_path, **changes))
    assert caught.value.exit_code == 2


def test_a_file_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(IrgraphError, match=r"fabric: cannot read no\.json") as caught:
        peers_of(with_ranks(Graph("g"), 4, "no.json"), "L4")
    assert caught.value.exit_code == 2


def test_every_platform_that_ships_has_links() -> None:
    for name in platforms():
        assert find_curve("all_reduce", 6, name).time(2**20) > 0


@pytest.mark.parametrize(
    "given",
    [
        "[" * 100_000,
        "\ud800",
        "[]",
        "null",
        '{"name": 1}',
        '{"name": "x", "architecture": "ampere", "link_gbs": 1e308}',
        '{"name": "x", "architecture": "ampere", "link_gbs": 0}',
        '{"name": "x", "architecture": "ampere", "link_gbs": 1, "nic_gbs": -1}',
    ],
)
def test_a_file_of_impossible_links_is_refused(tmp_path: Path, given: str) -> None:
    path = tmp_path / "links.json"
    path.write_bytes(given.encode("utf-8", "surrogatepass"))
    with pytest.raises(IrgraphError, match=r"fabric .*links.json"):
        fabric_of(str(path))


def test_a_field_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    file = Path(described(tmp_path))
    file.write_text(file.read_text().rstrip()[:-1] + ', "link_gbs": 100}')
    with pytest.raises(IrgraphError, match="an object has the key 'link_gbs' twice"):
        find_curve("all_reduce", 4, str(file))
