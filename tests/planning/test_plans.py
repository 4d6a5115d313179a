"""Plans of a model, from its costs to the simulation of all ranks."""

from __future__ import annotations

import pytest

from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare_ranks
from irgraph.planning.costs import problem_of
from irgraph.planning.plans import SEARCH_PLAN, best_of, plans_of
from irgraph.predict.options import PredictOptions
from tests.execute.test_together import dlrm

A100 = PredictOptions(device="a100-sxm4-40gb")
MIB = 2.0**20


@pytest.mark.long
def test_the_plan_is_the_fastest_and_its_ranks_do_what_the_step_does() -> None:
    tried = plans_of(dlrm(), 2, 64 * MIB, A100, seconds=1)
    names = [name for one in tried for name in one.name.split(", ")]
    assert sorted(names) == sorted(
        [SEARCH_PLAN, "longest first", "dim", "lookups", "size", "size-lookups", "random"]
    )
    best = best_of(tried)
    assert best.step_time == min(one.step_time for one in tried)
    found = next(one for one in tried if SEARCH_PLAN in one.name)
    assert found.cost == min(one.cost for one in tried)
    assert compare_ranks(dlrm(), best.models, draws=1).same


def test_parts_of_tables_take_their_part_of_the_memory() -> None:
    problem = problem_of(dlrm(), 4, 64 * MIB, A100)
    for table in problem.tables:
        by_scheme = {(c.scheme, c.holders): c for c in table.choices}
        whole = by_scheme["table-wise", 1]
        assert whole.memory >= 2 * 4 * table.rows * table.columns  # weights and gradients
        assert by_scheme["row-wise", 4].memory == whole.memory / 4
        some = by_scheme["table-row-wise", 2]
        assert (some.memory, some.sent) == (whole.memory / 2, whole.sent)
        assert by_scheme["data-parallel", 4].memory == whole.memory
        assert by_scheme["column-wise", 2].sent == whole.sent / 2
        assert all(choice.time > 0 for choice in table.choices)


def test_nothing_fits_into_too_little_memory() -> None:
    with pytest.raises(IrgraphError, match=r"no plan fits into 0\.0 GiB on each of 2 ranks"):
        plans_of(dlrm(), 2, 1000.0, A100, seconds=0.1)


def test_links_that_nobody_measured_are_told_before_the_search() -> None:
    with pytest.raises(IrgraphError, match="all_to_all_single has no time on"):
        plans_of(dlrm(), 2, 64 * MIB, PredictOptions(device="t4"), seconds=60)
