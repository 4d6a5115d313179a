"""Plans: their text, TorchRec's form of them, and what each rank holds."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.plans.plan import (
    Plan,
    TableShard,
    TableSharding,
    check_plan,
    uniform,
)
from irgraph.plans.reading import read_plan
from irgraph.plans.torchrec import to_torchrec, with_model_names

SIZES = {"ebc.embedding_bags.users.weight": (10, 8), "items.weight": (7, 12), "tags": (64, 4)}
USERS, ITEMS, TAGS = SIZES
PLAN = Plan(
    4,
    {
        USERS: TableSharding("table-wise", (3,)),
        ITEMS: TableSharding("column-wise", (2, 0, 1)),
        TAGS: TableSharding("row-wise"),
    },
)


def test_a_plan_reads_as_it_prints() -> None:
    assert read_plan(str(PLAN)) == PLAN
    shared = replace(PLAN, optimizer="split")
    assert read_plan(str(shared)) == shared != PLAN
    zero = Plan(4, optimizer="split", gradients="split")
    assert read_plan(str(zero)) == zero
    check_plan(PLAN, SIZES)


def test_torchrecs_form_names_modules_shards_and_ranks() -> None:
    found = json.loads(to_torchrec(PLAN, SIZES))
    assert set(found) == {"ebc", "items", ""} or set(found) == {"ebc", ""}
    users = found["ebc"]["users"]
    assert (users["sharding_type"], users["compute_kernel"], users["ranks"]) == (
        "table_wise",
        "fused",
        [3],
    )
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
    back = with_model_names(read_plan(to_torchrec(PLAN, SIZES)), SIZES)
    check_plan(back, SIZES)
    assert {name: (p.scheme, back.ranks_of(name)) for name, p in back.tables.items()} == {
        name: (p.scheme, PLAN.ranks_of(name)) for name, p in PLAN.tables.items()
    }


UNSAID = [
    (
        Plan(4, {"t": TableSharding("row-wise")}, layers={"*.up": "column-parallel"}),
        r"layers.*\*\.up",
    ),
    (Plan(4, {"t": TableSharding("row-wise")}, optimizer="split"), "the optimizer is split"),
    (Plan(4, parameters="retained"), "parameters are retained"),
    (
        Plan(4, {"t": TableSharding("table-wise", (2,))}),
        "how many ranks there are.* 4 holds no table",
    ),
    (
        Plan(4, {"t": TableSharding("row-wise"), "t.weight": TableSharding("row-wise")}),
        "'t' and 't.weight'",
    ),
]


@pytest.mark.parametrize(("plan", "said"), UNSAID, ids=lambda v: v if isinstance(v, str) else "")
def test_what_torchrecs_form_cannot_say_is_refused_and_named(plan: Plan, said: str) -> None:
    with pytest.raises(IrgraphError, match=f"TorchRec's format cannot express .*{said}"):
        to_torchrec(plan, dict.fromkeys(plan.tables, (64, 8)))


def test_a_plan_of_other_tables_is_not_written_as_torchrecs() -> None:
    with pytest.raises(IrgraphError, match="it does not mention tags"):
        to_torchrec(Plan(1, {"t": TableSharding("row-wise")}), {"t": (64, 8), "tags": (64, 4)})


def _theirs(**changed: object) -> str:
    """Return a table in two groups of columns as TorchRec says it, with some fields changed."""
    plan = Plan(2, {"ebc.t": TableSharding("column-wise", (1, 0))})
    said = json.loads(to_torchrec(plan, {"ebc.t": (10, 8)}))
    said["ebc"]["t"] |= changed
    return json.dumps(said)


def _shards(*given: tuple[int, int, int]) -> dict[str, object]:
    return {
        "shards": [
            {
                "shard_offsets": [0, at],
                "shard_sizes": [10, width],
                "placement": f"rank:{rank}/cuda:0",
            }
            for rank, at, width in given
        ]
    }


def test_torchrecs_fields_that_say_nothing_more_are_read() -> None:
    plan = Plan(2, {"ebc.t": TableSharding("column-wise", (1, 0))})
    for given in ({}, {"cache_params": None}, {"compute_kernel": None}, {"sharding_spec": None}):
        assert read_plan(_theirs(**given)) == plan
    turned = _shards((0, 4, 4), (1, 0, 4))
    assert read_plan(_theirs(sharding_spec=turned)) == plan


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"compute_kernel": "fused_uvm_caching"},
            "'ebc.t': plans cannot express that its kernel is",
        ),
        ({"cache_params": {"load_factor": 0.2}}, "'ebc.t': plans cannot express its cache_params"),
        ({"ranks": None}, "'ebc.t': it names no ranks"),
        ({"sharding_spec": _shards((1, 0, 2), (0, 2, 6))}, "'ebc.t': .* not equal blocks"),
        ({"sharding_spec": _shards((0, 0, 4), (1, 4, 4))}, "not equal blocks .* ranks named"),
        ({"sharding_spec": _shards((1, 0, 4))}, "not equal blocks"),
        ({"sharding_spec": {"shards": [{"shard_offsets": [0, 0]}]}}, "not a plan"),
    ],
    ids=str,
)
def test_what_our_form_cannot_say_is_refused_and_named(
    changed: dict[str, object], said: str
) -> None:
    with pytest.raises(IrgraphError, match=said):
        read_plan(_theirs(**changed))


def test_what_a_text_says_twice_is_refused() -> None:
    one = '"t": {"scheme": "row-wise"}'
    with pytest.raises(IrgraphError, match="an object has the key 't' twice"):
        read_plan(f'{{"ranks": 2, "tables": {{{one}, {one}}}}}')
    users = json.loads(_theirs())["ebc"]
    with pytest.raises(IrgraphError, match=r"it names table 'a\.b\.t' twice"):
        read_plan(json.dumps({"a.b": users, "a": {"b.t": users["t"]}}))


@pytest.mark.parametrize("scheme", ["table-wise", "row-wise", "data-parallel", "table-row-wise"])
def test_parts_cover_each_table_once(scheme: str) -> None:
    plan = uniform(scheme, 4, SIZES)
    for name, (rows, columns) in SIZES.items():
        parts = plan.shards(name, rows, columns)
        held = sum((p.rows[1] - p.rows[0]) * (p.columns[1] - p.columns[0]) for p in parts)
        assert held == rows * columns * (4 if scheme == "data-parallel" else 1)


def test_blocks_of_rows_are_equal_but_the_last() -> None:
    parts = uniform("row-wise", 4, ["t"]).shards("t", 10, 8)
    assert parts[0] == TableShard(0, (0, 3), (0, 8))
    assert [part.rows for part in parts] == [(0, 3), (3, 6), (6, 9), (9, 10)]


@pytest.mark.parametrize(
    ("placed", "said"),
    [
        (TableSharding("row-wise", (0, 1)), "row-wise takes all ranks"),
        (TableSharding("column-wise"), "column-wise names the ranks"),
        (TableSharding("column-wise", (1, 1)), "a rank is named twice"),
        (TableSharding("table-row-wise", (0, 1, 2)), "4 rows leave nothing for some of 3 ranks"),
    ],
)
def test_what_does_not_fit_a_table_is_refused(placed: TableSharding, said: str) -> None:
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
        "[]",
        "null",
        "1",
        '"x"',
        "{}",
        '{"": []}',
        '{"": {"t": null}}',
        "[" * 100_000,
        '{"": {"t": {"sharding_type": ["a"]}}}',
        '{"": {"t": {"sharding_type": {"a": 1}}}}',
        '{"": {"t": {"sharding_type": "table_wise", "ranks": "ab"}}}',
        '{"": {"t": {"sharding_type": "table_wise", "ranks": [1e30]}}}',
        '{"format": 1, "ranks": 2.5, "tables": {}}',
        '{"format": 9, "ranks": 2, "tables": {}}',
        '{"format": 1, "ranks": 2, "tables": []}',
        '{"format": 1, "ranks": 2, "tables": {"t": 1}}',
    ],
)
def test_what_is_no_plan_is_refused(given: str) -> None:
    with pytest.raises(IrgraphError, match="not a plan"):
        read_plan(given, "p.json")
