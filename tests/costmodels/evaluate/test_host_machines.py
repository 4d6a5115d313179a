"""Host tables on machines that did not make them: the spreads in intervals are those measured."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from costmodels.evaluate.hosts.evaluation import MachineErrors, MachineSpread, evaluate_hosts
from irgraph.overheads.default_host import MACHINE_STD
from irgraph.overheads.table import LAUNCH_EXPONENTS, LAUNCH_STD


@pytest.mark.data
@pytest.mark.slow
def test_spreads_are_those_of_the_machines(data_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRGRAPH_DATA", str(data_dir))
    figures = evaluate_hosts().as_json()
    assert figures["machine_std"]["as_is"] == pytest.approx(MACHINE_STD, abs=0.01)
    assert figures["machine_std"]["scaled"] == pytest.approx(LAUNCH_STD, abs=0.01)
    assert figures["inside"] == {"as_is": 9, "scaled": 9}
    assert len(figures["machines"]) == 10
    assert figures["exponents"] == pytest.approx(LAUNCH_EXPONENTS, abs=0.005)
    scaled = sorted(abs(math.log(row["scaled"])) for row in figures["machines"])
    assert (scaled[4] + scaled[5]) / 2 < math.log(1.2)
    assert scaled[8] < math.log(1.5)
    assert figures["replays"]["inside"] >= 0.85 * figures["replays"]["steps"] > 0


def test_a_machine_is_judged_by_the_others() -> None:
    """One machine is three times as fast as its table, nine are as fast: only it is outside."""
    rows = [MachineErrors(str(n), "v100", 5.0, 1.3, 1.3) for n in range(9)]
    spread = MachineSpread([*rows, MachineErrors("far", "v100", 5.0, 3.0, 1.3)])
    assert spread.inside("as_is") == [True] * 9 + [False]
    assert spread.inside("scaled") == [True] * 10
