"""Plans in TorchRec's form: ``ShardingPlan`` as JSON, of modules, their tables and shards.

That form knows tables alone, in equal blocks and in their device's memory, and not how many ranks
there are. What either form cannot say is refused by name, so that nothing of a plan gets lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from irgraph.diagnostics import fail
from irgraph.plans.plan import DATA, Plan, Sizes, TableShard, TableSharding, check_plan, listed

TYPES = "table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel"
"""Our schemes as TorchRec's ``ShardingType`` spells them."""

KERNELS = "fused", "dense"
"""Values of ``EmbeddingComputeKernel`` that keep a table in its device's memory, as it is."""

FIELDS = "sharding_type", "compute_kernel", "ranks", "sharding_spec"
"""What is read of a ``ParameterSharding``."""

SUFFIX, MODULE = ".weight", "embedding_bags"


def to_torchrec(plan: Plan, sizes: Sizes) -> str:
    """Return a plan as TorchRec's ``ShardingPlan`` in JSON: modules, their tables, their shards.

    The fields are those of ``ParameterSharding`` and ``ShardMetadata``; a table's module and its
    name in it come from its label, ``MODULE.embedding_bags.NAME.weight`` as TorchRec's own are or
    ``MODULE.NAME.weight``.

    Raises:
        IrgraphError: the plan does not fit tables of these ``sizes`` (rows, columns), or says what
            TorchRec's form cannot: linear layers, a split optimizer, a last rank that holds
            nothing, two tables of one name (exit code 2).
    """
    check_plan(plan, sizes)
    _check_said(plan)
    found: dict[str, dict[str, object]] = {}
    for name, placed in plan.tables.items():
        module, table = torchrec_name(name)
        spread = plan.parts(name, *sizes[name])
        kernel = "dense" if placed.scheme == DATA else "fused"
        found.setdefault(module, {})[table] = {
            "sharding_type": placed.scheme.replace("-", "_"),
            "compute_kernel": kernel,
            "ranks": list(plan.over(name)),
            "sharding_spec": None
            if placed.scheme == DATA
            else {"shards": list(map(_shard, spread))},
        }
    return msgspec.json.format(msgspec.json.encode(found), indent=1).decode() + "\n"


def _check_said(plan: Plan) -> None:
    """Refuse a plan that says more than TorchRec's form can."""
    if plan.layers:
        raise _unsaid(f"how linear layers are split ({listed(plan.layers)})")
    if plan.optimizer:
        raise _unsaid(f"that the optimizer is {plan.optimizer}")
    held = {rank for name in plan.tables for rank in plan.over(name)}
    if plan.ranks - 1 not in held:
        raise _unsaid(f"how many ranks there are, and the last of {plan.ranks} holds no table")
    names: dict[tuple[str, str], str] = {}
    for name in plan.tables:
        other = names.setdefault(torchrec_name(name), name)
        if other != name:
            raise _unsaid(f"tables {other!r} and {name!r} apart")


def _unsaid(what: str) -> Exception:
    return fail(f"plan: TorchRec's format cannot express {what}", exit_code=2)


def _shard(part: TableShard) -> dict[str, object]:
    offsets = [part.rows[0], part.columns[0]]
    sizes = [part.rows[1] - part.rows[0], part.columns[1] - part.columns[0]]
    return {
        "shard_offsets": offsets,
        "shard_sizes": sizes,
        "placement": f"rank:{part.rank}/cuda:{part.rank}",
    }


def torchrec_name(label: str) -> tuple[str, str]:
    """Return the module and the table of a label, as TorchRec's plans name them."""
    path = label.removesuffix(SUFFIX).split(".")
    module = path[:-1]
    if module[-1:] == [MODULE]:
        module.pop()
    return ".".join(module), path[-1]


def from_torchrec(raw: object) -> Plan:
    """Return the plan of a ``ShardingPlan`` in decoded JSON; tables are called ``MODULE.TABLE``.

    The ranks are all up to the last that is named.

    Raises:
        ValueError: it is none, or says what our plans cannot: kernels that keep rows elsewhere or
            in another type, shards that are not equal blocks, tables without ranks, other fields.
    """
    tables: dict[str, TableSharding] = {}
    specs: dict[str, object] = {}
    for module, held in _items(raw):
        for table, given in _items(held):
            name = ".".join(filter(None, (module, table)))
            if name in tables:
                raise ValueError(f"it names table {name!r} twice")
            tables[name], specs[name] = _placed(name, dict(_items(given)))
    if not tables:
        raise ValueError("it says nothing of any table")
    plan = Plan(max(rank for placed in tables.values() for rank in placed.ranks) + 1, tables)
    for name, spec in specs.items():
        _check_shards(plan, name, spec)
    return plan


def _placed(name: str, given: Mapping[str, object]) -> tuple[TableSharding, object]:
    """Return how a table is spread, and the specification of its shards."""
    spelled, kernel = given.get("sharding_type"), given.get("compute_kernel")
    if spelled not in TYPES:
        raise ValueError(f"no sharding type is called {spelled!r}")
    if kernel not in (None, *KERNELS):
        raise ValueError(f"table {name!r}: plans cannot express that its kernel is {kernel!r}")
    more = [field for field, value in given.items() if field not in FIELDS and value is not None]
    if more:
        raise ValueError(f"table {name!r}: plans cannot express its {listed(more)}")
    ranks = msgspec.convert(given.get("ranks") or [], tuple[int, ...])
    if not ranks:
        raise ValueError(f"table {name!r}: it names no ranks")
    scheme: Any = str(spelled).replace("_", "-")
    return TableSharding(scheme, ranks), given.get("sharding_spec")


def _check_shards(plan: Plan, name: str, spec: object) -> None:
    """Refuse shards that are not the equal blocks of our plans, in the order of the ranks."""
    if spec is None or plan.tables[name].scheme == DATA:
        return
    said = sorted(_parts(dict(_items(spec)).get("shards")), key=lambda p: (p.rows, p.columns))
    rows, columns = (max((getattr(p, way)[1] for p in said), default=0) for way in WAYS)
    meant = plan.parts(name, rows, columns)
    if tuple(said) != tuple(sorted(meant, key=lambda p: (p.rows, p.columns))):
        message = f"table {name!r}: plans cannot express its shards, which are not equal blocks"
        raise ValueError(f"{message} of {rows} rows and {columns} columns on the ranks named")


WAYS = "rows", "columns"


def _parts(shards: object) -> Iterator[TableShard]:
    """Yield the shards that hold anything."""
    given = msgspec.convert(shards, list[dict[str, Any]])
    for shard in given:
        offsets = msgspec.convert(shard.get("shard_offsets"), tuple[int, int])
        sizes = msgspec.convert(shard.get("shard_sizes"), tuple[int, int])
        rows, columns = ((at, at + size) for at, size in zip(offsets, sizes, strict=True))
        where = str(shard.get("placement")).partition("/")[0].removeprefix("rank:")
        if not where.isascii() or not where.isdigit():
            raise ValueError(f"no rank in the placement {shard.get('placement')!r}")
        if min(sizes) > 0:
            yield TableShard(int(where[:9]), rows, columns)


def _items(raw: object) -> Sequence[tuple[str, object]]:
    if not isinstance(raw, dict):
        raise ValueError("expected an object")
    return list(raw.items())


def named_as(plan: Plan, names: Collection[str]) -> Plan:
    """Return a plan of TorchRec's whose tables bear a model's own names, where one fits."""
    known = {".".join(filter(None, torchrec_name(name))): name for name in names}
    tables = {known.get(name, name): placed for name, placed in plan.tables.items()}
    return replace(plan, tables=tables)
