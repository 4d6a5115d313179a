"""Terms of a sum over ranks pass through linear ops only, proven by running all ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.execute import compare_ranks
from irgraph.ir.graph import Graph
from irgraph.ir.ranks import is_collective
from irgraph.plans.plan import Plan
from irgraph.text import parse
from irgraph.verbs.sharding.shard import shard

CASES = Path(__file__).with_name("cases")
LAYERS = {"a": "column-parallel", "b": "row-parallel"}


def models(name: str, plan: Plan) -> tuple[Graph, list[Graph]]:
    whole = parse((CASES / f"{name}.ir").read_text(encoding="utf-8"))
    return whole, [shard(whole, plan, rank).graph for rank in range(plan.ranks)]


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["plus", "mask", "div"])
def test_the_output_of_a_row_parallel_layer_is_summed_before_other_ops(
    name: str, ranks: int
) -> None:
    """A number would be added on every rank; a tensor of equal shape is no parameter."""
    whole, of_ranks = models(name, Plan(ranks, layers=LAYERS))
    assert compare_ranks(whole, of_ranks).same
    assert sum(map(is_collective, of_ranks[0].leaves())) == 1


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", ["b1", "b3"])
def test_a_sum_over_samples_is_complete_before_a_number_is_added(name: str, ranks: int) -> None:
    whole, of_ranks = models(name, Plan(ranks))
    assert compare_ranks(whole, of_ranks).same
    assert sum(map(is_collective, of_ranks[0].leaves())) == 1
