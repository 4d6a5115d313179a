"""Plans in TorchRec's form: ``ShardingPlan`` as JSON, of modules, their tables and shards.

TorchRec's form has only tables, in equal blocks and in their device's memory, and no number of
ranks. Properties that the other form cannot express are refused by name, so that none is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from irgraph.diagnostics import fail
from irgraph.plans.plan import DATA, Plan, Sizes, TableShard, TableSharding, check_plan, join_names

TYPES = "table_wise", "column_wise", "row_wise", "table_row_wise", "data_parallel"
"""irgraph's schemes as spelled by TorchRec's ``ShardingType``."""

KERNELS = "fused", "dense"
"""Values of ``EmbeddingComputeKernel`` for an unconverted table in its device's memory."""

FIELDS = "sharding_type", "compute_kernel", "ranks", "sharding_spec"
"""Fields of a ``ParameterSharding`` that are read."""

SUFFIX, MODULE = ".weight", "embedding_bags"


def to_torchrec(plan: Plan, sizes: Sizes) -> str:
    """Return a plan as TorchRec's ``ShardingPlan`` in JSON: modules, their tables, their shards.

    It has the fields of ``ParameterSharding`` and ``ShardMetadata``. A table's module and its name
    in the module come from its label, ``MODULE.embedding_bags.NAME.weight`` as in TorchRec or
    ``MODULE.NAME.weight``.

    Raises:
        IrgraphError: the plan does not fit tables of these ``sizes`` (rows, columns), or TorchRec's
            form cannot express it: linear layers, a split optimizer, an empty last rank, two tables
            of one name (exit code 2).
    """
    check_plan(plan, sizes)
    _check_expressible(plan)
    modules: dict[str, dict[str, object]] = {}
    for name, sharding in plan.tables.items():
        module, table = torchrec_name(name)
        shards = plan.shards(name, *sizes[name])
        kernel = "dense" if sharding.scheme == DATA else "fused"
        modules.setdefault(module, {})[table] = {
            "sharding_type": sharding.scheme.replace("-", "_"),
            "compute_kernel": kernel,
            "ranks": list(plan.ranks_of(name)),
            "sharding_spec": None
            if sharding.scheme == DATA
            else {"shards": list(map(_shard, shards))},
        }
    return msgspec.json.format(msgspec.json.encode(modules), indent=1).decode() + "\n"


def _check_expressible(plan: Plan) -> None:
    """Raise ``IrgraphError`` for a plan that TorchRec's form cannot express."""
    if plan.pins:
        raise _inexpressible(f"where activations are pinned ({join_names(plan.pins)})")
    if plan.layers:
        raise _inexpressible(f"how linear layers are split ({join_names(plan.layers)})")
    if plan.optimizer:
        raise _inexpressible(f"that the optimizer is {plan.optimizer}")
    if plan.parameters:
        raise _inexpressible(f"that parameters are {plan.parameters}")
    used_ranks = {rank for name in plan.tables for rank in plan.ranks_of(name)}
    if plan.ranks - 1 not in used_ranks:
        raise _inexpressible(
            f"how many ranks there are, and the last of {plan.ranks} holds no table"
        )
    names: dict[tuple[str, str], str] = {}
    for name in plan.tables:
        other = names.setdefault(torchrec_name(name), name)
        if other != name:
            raise _inexpressible(f"tables {other!r} and {name!r} apart")


def _inexpressible(clause: str) -> Exception:
    return fail(f"plan: TorchRec's format cannot express {clause}", exit_code=2)


def _shard(part: TableShard) -> dict[str, object]:
    offsets = [part.rows[0], part.columns[0]]
    sizes = [part.rows[1] - part.rows[0], part.columns[1] - part.columns[0]]
    return {
        "shard_offsets": offsets,
        "shard_sizes": sizes,
        "placement": f"rank:{part.rank}/cuda:{part.rank}",
    }


def torchrec_name(label: str) -> tuple[str, str]:
    """Return the names of a label's module and table in TorchRec's plans."""
    path = label.removesuffix(SUFFIX).split(".")
    module = path[:-1]
    if module[-1:] == [MODULE]:
        module.pop()
    return ".".join(module), path[-1]


def from_torchrec(raw: object) -> Plan:
    """Return the plan of a ``ShardingPlan`` in decoded JSON; tables are called ``MODULE.TABLE``.

    The plan has all ranks up to the highest that is named.

    Raises:
        ValueError: it is no such plan, or irgraph's plans cannot express it: kernels that store
            rows elsewhere or in another type, shards that are not equal blocks, tables without
            ranks, other fields.
    """
    tables: dict[str, TableSharding] = {}
    specs: dict[str, object] = {}
    for module, shardings in _items(raw):
        for table, fields in _items(shardings):
            name = ".".join(filter(None, (module, table)))
            if name in tables:
                raise ValueError(f"it names table {name!r} twice")
            tables[name], specs[name] = _parse_sharding(name, dict(_items(fields)))
    if not tables:
        raise ValueError("it says nothing of any table")
    plan = Plan(max(rank for sharding in tables.values() for rank in sharding.ranks) + 1, tables)
    for name, spec in specs.items():
        _check_shards(plan, name, spec)
    return plan


def _parse_sharding(name: str, fields: Mapping[str, object]) -> tuple[TableSharding, object]:
    """Return the sharding of a table, and the specification of its shards."""
    sharding_type, kernel = fields.get("sharding_type"), fields.get("compute_kernel")
    if sharding_type not in TYPES:
        raise ValueError(f"no sharding type is called {sharding_type!r}")
    if kernel not in (None, *KERNELS):
        raise ValueError(f"table {name!r}: plans cannot express that its kernel is {kernel!r}")
    unknown_fields = [
        field for field, value in fields.items() if field not in FIELDS and value is not None
    ]
    if unknown_fields:
        raise ValueError(f"table {name!r}: plans cannot express its {join_names(unknown_fields)}")
    ranks = msgspec.convert(fields.get("ranks") or [], tuple[int, ...])
    if not ranks:
        raise ValueError(f"table {name!r}: it names no ranks")
    scheme: Any = str(sharding_type).replace("_", "-")
    return TableSharding(scheme, ranks), fields.get("sharding_spec")


def _check_shards(plan: Plan, name: str, spec: object) -> None:
    """Raise ``ValueError`` for shards other than equal blocks in the order of the ranks."""
    if spec is None or plan.tables[name].scheme == DATA:
        return
    declared = sorted(
        _parse_shards(dict(_items(spec)).get("shards")), key=lambda p: (p.rows, p.columns)
    )
    rows, columns = (max((getattr(p, axis)[1] for p in declared), default=0) for axis in AXES)
    expected = plan.shards(name, rows, columns)
    if tuple(declared) != tuple(sorted(expected, key=lambda p: (p.rows, p.columns))):
        message = f"table {name!r}: plans cannot express its shards, which are not equal blocks"
        raise ValueError(f"{message} of {rows} rows and {columns} columns on the ranks named")


AXES = "rows", "columns"


def _parse_shards(shards: object) -> Iterator[TableShard]:
    """Yield the shards that are not empty."""
    raw_shards = msgspec.convert(shards, list[dict[str, Any]])
    for shard in raw_shards:
        offsets = msgspec.convert(shard.get("shard_offsets"), tuple[int, int])
        sizes = msgspec.convert(shard.get("shard_sizes"), tuple[int, int])
        rows, columns = ((start, start + size) for start, size in zip(offsets, sizes, strict=True))
        rank = str(shard.get("placement")).partition("/")[0].removeprefix("rank:")
        if not rank.isascii() or not rank.isdigit():
            raise ValueError(f"no rank in the placement {shard.get('placement')!r}")
        if min(sizes) > 0:
            yield TableShard(int(rank[:9]), rows, columns)


def _items(raw: object) -> Sequence[tuple[str, object]]:
    if not isinstance(raw, dict):
        raise ValueError("expected an object")
    return list(raw.items())


def with_model_names(plan: Plan, names: Collection[str]) -> Plan:
    """Return a plan with TorchRec's table names replaced by the model's names, if they match."""
    label_by_name = {".".join(filter(None, torchrec_name(name))): name for name in names}
    tables = {label_by_name.get(name, name): sharding for name, sharding in plan.tables.items()}
    return replace(plan, tables=tables)
