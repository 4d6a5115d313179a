"""What is measured."""

from __future__ import annotations

import pytest

from costmodels.measure.ops import OPS
from costmodels.measure.sweep import DISTRIBUTIONS, SWEEPS, plan


@pytest.mark.parametrize("family", SWEEPS)
def test_cases_are_distinct_and_inside_their_ranges(family: str) -> None:
    sweep, cases = SWEEPS[family], plan(family, 60)
    assert len({case.key for case in cases}) == len(cases) == 60
    for case in cases:
        for name, (least, most) in sweep.ranges.items():
            assert least <= case.sizes[name] <= most


def test_equal_seeds_give_equal_cases() -> None:
    assert plan("linear", 30, seed=1) == plan("linear", 30, seed=1)
    assert plan("linear", 30, seed=1) != plan("linear", 30, seed=2)


def test_what_real_models_need_comes_first() -> None:
    linear = {tuple(case.sizes.values()) for case in plan("linear", 20)}
    assert {(1, 2048, 1, 1024), (1, 2048, 512, 13)} <= linear
    assert any(case.sizes["n"] == 27 == case.sizes["m"] for case in plan("bmm", 20))
    embedding = plan("embedding", 40)
    assert {case.indices for case in embedding} == set(DISTRIBUTIONS)
    assert min(case.sizes["rows"] for case in embedding) == 3


def test_every_op_can_be_made() -> None:
    assert {op for sweep in SWEEPS.values() for op in sweep.ops} == set(OPS)
