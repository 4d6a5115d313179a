"""Hosts for a load: arithmetic by hand, and three case studies, reconstructed."""

from __future__ import annotations

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.serving.fleet import Host, fleet

# Reconstructed: the abstract of arXiv:2110.11489 has 5 % and 29 % and nothing else. The hosts'
# figures are relative, and were put together so that the arithmetic ends there (and at 20 %).
CASES = [
    pytest.param(
        288_000, Host(240, 1.0), 1.0, Host(120, 0.4), 1.0, (1200, 2400), 0.20,
        id="two sockets with DRAM, one socket with NAND at half the queries",
    ),
    pytest.param(
        675_000, Host(450, 1.0, helpers=0.2, helper_watts=0.25), 1.0, Host(450, 1.0), 1.0,
        (1500, 1500), 0.05,
        id="accelerators with helpers that hold tables, or with 3DXP at the same queries",
    ),
    pytest.param(
        63_000, Host(100, 1.0), 0.63, Host(100, 1.01), 0.90, (1000, 700), 0.29,
        id="hosts used better by several models where memory no longer bounds them",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("qps", "before", "used", "after", "then", "hosts", "saving"), CASES)
def test_reconstructed_case_studies_end_at_the_published_savings(
    qps: float,
    before: Host,
    used: float,
    after: Host,
    then: float,
    hosts: tuple[int, int],
    saving: float,
) -> None:
    old, new = fleet(before, qps, used), fleet(after, qps, then)
    assert (old.hosts, new.hosts) == hosts
    assert new.saving(old) == pytest.approx(saving, abs=0.005)


def test_hosts_come_in_whole_groups() -> None:
    assert fleet(Host(100, 10, 7, group=4), 450).hosts == 8
    assert fleet(Host(100, 10, 7.0), 450) == fleet(Host(100, 10, 7.0), 401)
    assert fleet(Host(100, 10, 7.0), 450).usd == 35
    assert fleet(Host(100, 10), 450).usd is None


@pytest.mark.parametrize(
    ("host", "qps", "used"),
    [
        (Host(0, 1), 5, 1),
        (Host(1, 1), 0, 1),
        (Host(1, 1), 5, 0),
        (Host(1, 1), 5, 1.5),
        (Host(1, 1), float("inf"), 1),
        (Host(1, 1), float("nan"), 1),
    ],
)
def test_what_serves_nothing_is_refused(host: Host, qps: float, used: float) -> None:
    with pytest.raises(IrgraphError, match="nothing is served"):
        fleet(host, qps, used)
