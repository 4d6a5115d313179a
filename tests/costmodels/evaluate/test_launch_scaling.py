"""Powers of launch times: the slopes that machines have, in spite of crowded ones."""

from __future__ import annotations

import math
from random import Random

import pytest

from costmodels.evaluate.hosts.scaling import (
    FittedSlope,
    KindTotal,
    MachineTotals,
    launch_exponents,
    leave_one_out,
    pooled_slopes,
    robust_slope,
)

POWERS = {"T1": 0.5, "T2": 0.8, "T3": 1.5, "T5": 0.7, "whole": 1.3}


def machine(ratio: float, noise: float = 0.0, seed: int = 0) -> MachineTotals:
    """Return a machine whose times follow ``POWERS``, but for noise of each type."""
    random = Random(seed)
    totals = {
        kind: KindTotal(100.0, 100.0 * math.pow(ratio, power) * math.exp(random.gauss(0, noise)))
        for kind, power in POWERS.items()
    }
    return MachineTotals(ratio, {"T4": KindTotal(100.0, 100.0 * ratio), **totals})


RATIOS = (0.6, 0.8, 1.3, 1.8, 2.5, 3.2, 4.0)


def test_powers_of_machines_are_recovered() -> None:
    exponents = launch_exponents([machine(ratio) for ratio in RATIOS])
    assert exponents == pytest.approx({"T4": 1.0, **POWERS}, abs=0.01)
    assert leave_one_out([machine(ratio) for ratio in RATIOS]) == pytest.approx([1.0] * 7, abs=0.01)


def test_a_crowded_machine_hardly_moves_a_slope() -> None:
    points = [
        (math.log(ratio), 0.5 * math.log(ratio) + 0.02 * (-1) ** n)
        for n, ratio in enumerate(RATIOS)
    ]
    crowded = robust_slope([*points, (1.2, 2.5)])
    assert crowded.value == pytest.approx(0.5, abs=0.1)


def test_uncertain_slopes_are_drawn_to_the_mean() -> None:
    pooled = pooled_slopes(
        {"T1": FittedSlope(0.4, 1e-4), "T2": FittedSlope(0.8, 1e-4), "T5": FittedSlope(3.0, 100.0)}
    )
    assert (pooled["T1"], pooled["T2"]) == pytest.approx((0.4, 0.8), abs=0.01)
    assert pooled["T5"] == pytest.approx(0.6, abs=0.05)


def test_equal_slopes_are_one() -> None:
    """Slopes that differ by less than their errors say nothing of a difference."""
    pooled = pooled_slopes(
        {"T1": FittedSlope(0.7, 0.1), "T2": FittedSlope(0.8, 0.1), "T3": FittedSlope(0.9, 0.1)}
    )
    assert list(pooled.values()) == pytest.approx([0.8] * 3)


def test_the_judged_machine_is_left_out() -> None:
    """Only the other machines may follow the judged one's deviation."""
    machines = [machine(ratio, 0.2, seed) for seed, ratio in enumerate(RATIOS)]
    errors = leave_one_out(machines)
    others = launch_exponents(machines[1:])
    assert errors[0] == machines[0].error(others) != machines[0].error(launch_exponents(machines))
