"""A rank loads its samples alone."""

from __future__ import annotations

import pytest

from irgraph.ir.loading import Loading, batch_loads, loading_time, with_loading
from irgraph.plans.plan import Mesh, Plan
from irgraph.verbs.sharding.shard import shard
from tests.execute.test_parallel_layers import PAIRS, language

TIME = 800.0
"""Microseconds in which a loader makes the batch of the whole step."""


@pytest.mark.parametrize(
    ("plan", "share"),
    [
        (Plan(4, {}), 4),
        (Plan(4, {}, layers=PAIRS), 1),
        (Plan(4, {}, layers=PAIRS, mesh=Mesh(data=2, tensor=2)), 2),
    ],
    ids=["samples", "layers", "mesh"],
)
def test_a_rank_loads_its_samples_alone(plan: Plan, share: int) -> None:
    step = with_loading(language(), Loading(TIME))
    (load,) = batch_loads(shard(step, plan, 1).graph)
    assert loading_time(load) == pytest.approx(TIME / share, rel=1e-3)
