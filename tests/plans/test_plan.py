"""Plans: their text, TorchRec's form of them, and what each rank holds."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.plans.plan import (
    Part,
    Placed,
    Plan,
    check_plan,
    named_as,
    read_plan,
    to_torchrec,
    uniform,
)

SIZES = {"ebc.embedding_bags.users.weight": (10, 8), "items.weight": (7, 12), "tags": (64, 4)}
USERS, ITEMS, TAGS = SIZES
PLAN = Plan(4, {
    USERS: Placed("table-wise", (3,)),
    ITEMS: Placed("column-wise", (2, 0, 1)),
    TAGS: Placed("row-wise"),
})  # fmt: skip


def test_a_plan_reads_as_it_prints() -> None:
    assert read_plan(str(PLAN)) == PLAN
    shared = replace(PLAN, optimizer="split")
    assert read_plan(str(shared)) == shared != PLAN
    check_plan(PLAN, SIZES)


def test_torchrecs_form_names_modules_shards_and_ranks() -> None:
    found = json.loads(to_torchrec(PLAN, SIZES))
    assert set(found) == {"ebc", "items", ""} or set(found) == {"ebc", ""}
    users = found["ebc"]["users"]
    assert (users["sharding_type"], users["compute_kernel"], users["ranks"]) == (
        "table_wise", "fused", [3],
    )  # fmt: skip
    assert users["sharding_spec"]["shards"] == [
        {"shard_offsets": [0, 0], "shard_sizes": [10, 8], "placement": "rank:3/cuda:3"}
    ]
    items = found[""]["items"]["sharding_spec"]["shards"]
    assert [(s["shard_offsets"], s["shard_sizes"], s["placement"]) for s in items] == [
        ([0, 0], [7, 4], "rank:2/cuda:2"),
        ([0, 4], [7, 4], "rank:0/cuda:0"),
        ([0, 8], [7, 4], "rank:1/cuda:1"),
    ]


def test_torchrecs_form_comes_back_under_the_models_names() -> None:
    back = named_as(read_plan(to_torchrec(PLAN, SIZES)), SIZES)
    check_plan(back, SIZES)
    assert {name: (p.scheme, back.over(name)) for name, p in back.tables.items()} == {
        name: (p.scheme, PLAN.over(name)) for name, p in PLAN.tables.items()
    }


@pytest.mark.parametrize("scheme", ["table-wise", "row-wise", "data-parallel", "table-row-wise"])
def test_parts_cover_each_table_once(scheme: str) -> None:
    plan = uniform(scheme, 4, SIZES)
    for name, (rows, columns) in SIZES.items():
        parts = plan.parts(name, rows, columns)
        held = sum((p.rows[1] - p.rows[0]) * (p.columns[1] - p.columns[0]) for p in parts)
        assert held == rows * columns * (4 if scheme == "data-parallel" else 1)


def test_blocks_of_rows_are_equal_but_the_last() -> None:
    parts = uniform("row-wise", 4, ["t"]).parts("t", 10, 8)
    assert parts[0] == Part(0, (0, 3), (0, 8))
    assert [part.rows for part in parts] == [(0, 3), (3, 6), (6, 9), (9, 10)]


@pytest.mark.parametrize(
    ("placed", "said"),
    [
        (Placed("row-wise", (0, 1)), "row-wise takes all ranks"),
        (Placed("column-wise"), "column-wise names the ranks"),
        (Placed("column-wise", (1, 1)), "a rank is named twice"),
        (Placed("table-row-wise", (0, 1, 2)), "4 rows leave nothing for some of 3 ranks"),
    ],
)
def test_what_does_not_fit_a_table_is_refused(placed: Placed, said: str) -> None:
    with pytest.raises(IrgraphError, match=said):
        check_plan(Plan(4, {"t": placed}), {"t": (4, 8)})


@pytest.mark.parametrize("ranks", [-5, 0, 100_001, 10**9, 10**18, 2**63])
@pytest.mark.parametrize("scheme", ["row-wise", "data-parallel"])
def test_a_number_of_ranks_that_no_machine_has_is_refused(ranks: int, scheme: str) -> None:
    plan = f'{{"format": 1, "ranks": {ranks}, "tables": {{"tags": {{"scheme": "{scheme}"}}}}}}'
    with pytest.raises(IrgraphError, match=r"runs on 1 to 100,000 ranks|not a plan"):
        check_plan(read_plan(plan), {"tags": (64, 4)})
    with pytest.raises(IrgraphError, match="runs on 1 to 100,000 ranks"):
        uniform("table-wise", ranks, SIZES)


@pytest.mark.parametrize(
    "given",
    [
        "[]", "null", "1", '"x"', "{}", '{"": []}', '{"": {"t": null}}', "[" * 100_000,
        '{"": {"t": {"sharding_type": ["a"]}}}', '{"": {"t": {"sharding_type": {"a": 1}}}}',
        '{"": {"t": {"sharding_type": "table_wise", "ranks": "ab"}}}',
        '{"": {"t": {"sharding_type": "table_wise", "ranks": [1e30]}}}',
        '{"format": 1, "ranks": 2.5, "tables": {}}', '{"format": 9, "ranks": 2, "tables": {}}',
        '{"format": 1, "ranks": 2, "tables": []}', '{"format": 1, "ranks": 2, "tables": {"t": 1}}',
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused(given: str) -> None:
    with pytest.raises(IrgraphError, match="not a plan"):
        read_plan(given, "p.json")
