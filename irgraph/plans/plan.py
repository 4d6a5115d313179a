"""Plans: the placement of embedding tables and linear layers on ranks."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from itertools import pairwise
from typing import Final, Literal, TypeAlias, get_args

import msgspec
from msgspec import Struct

from irgraph.diagnostics import fail, suggestion

TABLE: Final = "table-wise"
COLUMN: Final = "column-wise"
ROW: Final = "row-wise"
TABLE_ROW: Final = "table-row-wise"
DATA: Final = "data-parallel"
SPLIT: Final = "split"
LOCAL: Final = "local"
Scheme: TypeAlias = Literal[
    "table-wise", "column-wise", "row-wise", "table-row-wise", "data-parallel"
]

COLUMNS: Final = "column-parallel"
ROWS: Final = "row-parallel"
LayerScheme: TypeAlias = Literal["column-parallel", "row-parallel"]

MAX_RANKS = 100_000
"""Maximum number of ranks of a plan; work and memory grow with the number of ranks."""

Sizes: TypeAlias = Mapping[str, tuple[int, int]]
"""Rows and columns of tables by name."""


class TableSharding(Struct, frozen=True, forbid_unknown_fields=True):
    """Sharding of one table.

    Attributes:
        scheme: ``table-wise`` (whole, on one rank), ``column-wise`` (equal groups of columns),
            ``row-wise`` (equal blocks of rows on all ranks), ``table-row-wise`` (the same on some
            ranks), ``data-parallel`` (a copy on every rank).
        ranks: ranks in the order of the shards; empty for all ranks.
    """

    scheme: Scheme
    ranks: tuple[int, ...] = ()


class TableShard(Struct, frozen=True):
    """Shard of a table on one rank: its first and one past its last row and column."""

    rank: int
    rows: tuple[int, int]
    columns: tuple[int, int]


class Mesh(Struct, frozen=True, forbid_unknown_fields=True):
    """Ranks in three axes: ``replicas``, ``data`` and ``tensor``; neighbours differ in ``tensor``.

    Attributes:
        data: number of ranks that share the samples of a replica, and with ``parameters`` or
            ``optimizer`` each layer's parameters or its optimizer's state.
        tensor: number of ranks that have equal samples and split the linear layers.
        replicas: number of parts of the batch, each of which has all parameters (HSDP).
    """

    data: int
    tensor: int = 1
    replicas: int = 1

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.replicas * self.data * self.tensor

    def __str__(self) -> str:
        """Return the numbers of ranks in words."""
        sizes = (self.replicas, self.data, self.tensor)[self.replicas == 1 :]
        return " times ".join(map(str, sizes))


class Plan(Struct, frozen=True, forbid_unknown_fields=True):
    """Sharding plan of a model: the placement of all tables and linear layers.

    Attributes:
        ranks: number of processes that train the model together.
        tables: shardings by the table's label in the model, or by its tensor's name if it has none.
        format: version of the text form.
        layers: linear layers by the names of their modules, in which ``*`` matches any text;
            ``column-parallel`` layers have their outputs split over all ranks, ``row-parallel``
            layers their inputs, and all ranks have all samples.
        pins: placements of activations, ``split 1`` (along axis 1) or ``same`` (complete on every
            rank), by the names of modules whose results they are, or of tensors (``%x``), in which
            ``*`` matches any text. All ranks have all samples; all other placements follow.
        mesh: groups of ranks that share the batch, parameters, or layers and pinned activations.
        parameters: with ``split`` each rank stores its rows of parameters and of their optimizer's
            state, and gathers a parameter in each phase that uses it (FSDP, ZeRO-3); with
            ``retained`` it gathers one once and stores it until its update.
        optimizer: with ``split`` each rank updates its rows of replicated parameters, and stores
            the optimizer's state of only these (ZeRO-1); else every rank updates all rows.
        gradients: with ``split``, and the optimizer split as well, each gradient is reduced and
            scattered as soon as it exists (ZeRO-2), not before the optimizer's step.
        norms: with ``local`` batch norms use the statistics of each rank's samples alone, so that
            results differ from the whole step's; else of all ranks' samples.
    """

    ranks: int
    tables: Mapping[str, TableSharding] = {}
    format: Literal[1] = 1
    optimizer: Literal["", "split"] = ""
    layers: Mapping[str, LayerScheme] = {}
    pins: Mapping[str, str] = {}
    mesh: Mesh | None = None
    parameters: Literal["", "split", "retained"] = ""
    gradients: Literal["", "split"] = ""
    norms: Literal["", "local"] = ""

    def __str__(self) -> str:
        """Return the text form, JSON with one line per table."""
        lines = ",\n".join(
            f"    {msgspec.json.encode(name).decode()}: {msgspec.json.encode(sharding).decode()}"
            for name, sharding in self.tables.items()
        )
        head = f'{{\n  "format": 1,\n  "ranks": {self.ranks},\n  "tables": {{\n'
        tail = f',\n  "optimizer": "{self.optimizer}"' if self.optimizer else ""
        tail += f',\n  "gradients": "{self.gradients}"' if self.gradients else ""
        tail += f',\n  "norms": "{self.norms}"' if self.norms else ""
        tail += f',\n  "parameters": "{self.parameters}"' if self.parameters else ""
        if self.layers:
            tail += f',\n  "layers": {msgspec.json.encode(self.layers).decode()}'
        if self.pins:
            tail += f',\n  "pins": {msgspec.json.encode(self.pins).decode()}'
        if self.mesh is not None:
            tail += f',\n  "mesh": {msgspec.json.encode(self.mesh).decode()}'
        return f"{head}{lines}\n  }}{tail}\n}}\n"

    def ranks_of(self, name: str) -> tuple[int, ...]:
        """Return the ranks with shards of a table, in the order of the shards."""
        return self.tables[name].ranks or tuple(range(self.ranks))

    def shards(self, name: str, rows: int, columns: int) -> tuple[TableShard, ...]:
        """Return the shards of a table of this size; ranks with an empty shard have none."""
        scheme, ranks = self.tables[name].scheme, self.ranks_of(name)
        full = (0, rows), (0, columns)
        if scheme in (TABLE, DATA):
            return tuple(TableShard(rank, *full) for rank in ranks)
        size = columns if scheme == COLUMN else rows
        edges = _edges(size, len(ranks))
        spans = [span for span in zip(ranks, pairwise(edges), strict=True) if len(set(span[1])) > 1]
        if scheme == COLUMN:
            return tuple(TableShard(rank, full[0], span) for rank, span in spans)
        return tuple(TableShard(rank, span, full[1]) for rank, span in spans)


def _edges(size: int, count: int) -> list[int]:
    """Return the edges of equal blocks: all of one size except the last, as in TorchRec."""
    block = math.ceil(size / count)
    return [min(index * block, size) for index in range(count + 1)]


def uniform(scheme: str, ranks: int, names: Collection[str]) -> Plan:
    """Return a plan with one scheme for all tables; table-wise ones are assigned round-robin.

    Raises ``IrgraphError`` (exit code 2) for an unknown scheme or an invalid number of ranks.
    """
    _check_ranks(ranks)
    if scheme not in get_args(Scheme):
        message = f"plan: no scheme is called {scheme!r}{suggestion(scheme, get_args(Scheme))}"
        raise fail(message, hint=f"schemes: {', '.join(get_args(Scheme))}", exit_code=2)
    checked_scheme = msgspec.convert(scheme, Scheme)
    all_ranks = tuple(range(ranks)) if scheme in (COLUMN, TABLE_ROW) else ()
    return Plan(
        ranks,
        {
            name: TableSharding(checked_scheme, (index % ranks,) if scheme == TABLE else all_ranks)
            for index, name in enumerate(names)
        },
    )


def check_plan(plan: Plan, sizes: Sizes) -> None:
    """Raise ``IrgraphError`` (exit code 2) if a plan does not fit tables of these sizes."""
    _check_ranks(plan.ranks)
    _check_mesh(plan)
    _check_pins(plan)
    for name in plan.tables:
        if name not in sizes:
            message = f"plan: the model has no embedding table {name!r}{suggestion(name, sizes)}"
            raise fail(message, hint=f"tables: {join_names(sizes)}", exit_code=2)
    missing = [name for name in sizes if name not in plan.tables]
    if missing:
        hint = "every table needs a scheme; data-parallel keeps a copy on every rank"
        raise fail(f"plan: it does not mention {join_names(missing)}", hint=hint, exit_code=2)
    for name, sharding in plan.tables.items():
        problem = _problem(plan, sharding, *sizes[name])
        if problem:
            raise fail(f"plan: table {name!r}: {problem}", exit_code=2)


def _check_ranks(ranks: int) -> None:
    if not 1 <= ranks <= MAX_RANKS:
        message = f"plan: a model runs on 1 to {MAX_RANKS:,} ranks, not {ranks}"
        raise fail(message, exit_code=2)


def _check_mesh(plan: Plan) -> None:
    mesh = plan.mesh
    if mesh is None:
        return
    if min(mesh.data, mesh.tensor, mesh.replicas) < 1 or mesh.size != plan.ranks:
        raise fail(f"plan: a mesh of {mesh} ranks does not have {plan.ranks}", exit_code=2)
    if plan.layers or plan.pins:
        return
    if mesh.tensor > 1:
        hint = "without layers all ranks share the batch: leave the mesh out"
        raise fail("plan: a mesh shares linear layers, and none are named", hint=hint, exit_code=2)
    if not plan.parameters and not plan.optimizer:
        message = "plan: without layers, a mesh divides ranks that split parameters or state"
        raise fail(message, hint='add `"parameters": "split"`, or leave the mesh out', exit_code=2)


PIN = re.compile(r"same|split (\d{1,2})", re.ASCII)
"""Text of a pin: complete on every rank, or equal blocks along an axis."""


def _check_pins(plan: Plan) -> None:
    for name, text in plan.pins.items():
        if PIN.fullmatch(text) is None:
            message = f"plan: {name!r} cannot be {text!r}"
            hint = 'as in: "split 1" for blocks along axis 1, or "same"'
            raise fail(message, hint=hint, exit_code=2)


def _problem(plan: Plan, sharding: TableSharding, rows: int, columns: int) -> str:
    """Return the reason why a table cannot be sharded so, ``""`` if it can."""
    ranks, scheme = sharding.ranks, sharding.scheme
    unknown_ranks = [rank for rank in ranks if not 0 <= rank < plan.ranks]
    if unknown_ranks:
        return f"there is no rank {unknown_ranks[0]} among {plan.ranks}"
    if len(set(ranks)) < len(ranks):
        return "a rank is named twice"
    if scheme == TABLE and len(ranks) != 1:
        return f"table-wise names one rank, not {len(ranks)}"
    if scheme in (ROW, DATA) and ranks and sorted(ranks) != list(range(plan.ranks)):
        return f"{scheme} takes all ranks: leave them out" + (
            ", or say table-row-wise" if scheme == ROW else ""
        )
    if scheme in (COLUMN, TABLE_ROW) and not ranks:
        return f"{scheme} names the ranks of its parts"
    count = len(ranks) or plan.ranks
    if scheme == COLUMN and columns % count:
        return f"{columns} columns cannot be split into {count} equal parts"
    if scheme in (ROW, TABLE_ROW) and _edges(rows, count)[-2] >= rows:
        return f"{rows} rows leave nothing for some of {count} ranks"
    return ""


def join_names(names: Collection[str], max_names: int = 8) -> str:
    """Return up to ``max_names`` names, and the number of further ones, as text."""
    text = ", ".join(list(names)[:max_names])
    return (text or "none") + (
        f" and {len(names) - max_names} more" if len(names) > max_names else ""
    )
