"""Which rows a model's embedding tables are asked for: what is known of it, and who said so."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct, field
from msgspec.structs import replace

from costmodels.lookups.pooling import EQUAL, Pooling
from costmodels.lookups.popularity import UNIFORM, Distribution, rows_of
from costmodels.lookups.rules import Rule, read_rules, rules_of
from irgraph.diagnostics import SourceSpan, fail, suggestion
from irgraph.ir.cost import Popularity
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.ops import LOOKUPS as NARROW
from irgraph.ir.narrow.ops import ROWS_LOOKUP
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

ASSUMED = "assumed"
"""Who says ``uniform`` of tables of which nobody said anything."""

LOOKUPS = (
    "aten.embedding", "aten.embedding_bag", "aten._embedding_bag",
    "aten._embedding_bag_forward_only", "irgraph.batched_embedding", "irgraph.tier_read",
    ROWS_LOOKUP, *NARROW.values(),
)  # fmt: skip
"""Ops that show which index tensor belongs to which table."""


Law = TypeVar("Law")


class Table(Struct, frozen=True):
    """A table of a model: its name, what is said of its lookups and bags, and who says so."""

    name: str
    distribution: Distribution
    source: str = ASSUMED
    pooling: Pooling = EQUAL
    counted: str = ASSUMED


class Indices(Struct, frozen=True):
    """A model's tables, and the distribution of each index tensor that looks them up.

    Attributes:
        tables: in the order of their first lookup.
        by_buffer: by the buffer of an index tensor, pairs of a table's rows and its distribution;
            left out where that is the default.
        default: of index tensors that no lookup shows to belong to a table.
        bags_by_buffer, default_bags: the same of how long the bags are.
    """

    tables: tuple[Table, ...] = ()
    by_buffer: Mapping[str, tuple[tuple[int, Distribution], ...]] = field(default_factory=dict)
    default: Distribution = UNIFORM
    bags_by_buffer: Mapping[str, tuple[tuple[int, Pooling], ...]] = field(default_factory=dict)
    default_bags: Pooling = EQUAL

    def of(self, indices: Tensor, rows: int) -> Distribution:
        """Return how an index tensor looks up a table of so many rows."""
        return dict(self.by_buffer.get(indices.buffer, ())).get(rows, self.default)

    def bags(self, indices: Tensor, rows: int) -> Pooling:
        """Return how long the bags are in which an index tensor looks up a table."""
        return dict(self.bags_by_buffer.get(indices.buffer, ())).get(rows, self.default_bags)

    def summary(self) -> tuple[str, ...]:
        """Return one line for each way in which tables are looked up: how, which, who says so."""
        found: dict[tuple[str, str], list[str]] = {}
        for table in self.tables:
            found.setdefault((str(table.distribution), table.source), []).append(table.name)
            if table.counted != ASSUMED:
                said = f"bags {table.pooling}", table.counted
                found.setdefault(said, []).append(table.name)
        return tuple(f"{law} ({who}): {_some(names, 4)}" for (law, who), names in found.items())

    def key(self, op: Op) -> object:
        """Return what an op's time depends on beside its shapes."""
        said = self.by_buffer, self.bags_by_buffer
        if not any(said):
            return ()
        return tuple(law[t.buffer] for law in said for t in op.inputs if t.buffer in law)


def indices_of(graph: Graph, given: Sequence[str] = ()) -> Indices:
    """Return what is known of the lookups of a graph's tables.

    Args:
        graph: its setting ``indices`` is a text that says what the model knows.
        given: such texts by the user, which go before: ``[TABLES=]DISTRIBUTION``, several parted
            by ``;``, or the path of a ``.json`` file, see ``read_rules``. A later one goes before
            an earlier one.

    Raises:
        IrgraphError: a text cannot be read, or names a table that is not there.
    """
    rules = [*_settings(graph), *(rule for text in given for rule in read_rules(text))]
    found = dict.fromkeys(_lookups(graph))
    names = list(dict.fromkeys(name for _, _, name in found))
    for rule in rules:
        if rule.tables != "*" and not fnmatch.filter(names, rule.tables):
            message = (
                f"no embedding table is called {rule.tables!r}{suggestion(rule.tables, names)}"
            )
            raise fail(message, hint=f"tables: {_some(names) or 'none'}", exit_code=2)
    by_name = {name: _decide(name, rules) for name in names}
    every = _decide("", [rule for rule in rules if rule.tables == "*"])
    laws = [(b, rows, by_name[name].distribution) for b, rows, name in found]
    bags = [(b, rows, by_name[name].pooling) for b, rows, name in found]
    return Indices(
        tuple(by_name.values()),
        _unlike(laws, every.distribution),
        every.distribution,
        _unlike(bags, every.pooling),
        every.pooling,
    )


def _unlike(
    laws: Iterable[tuple[str, int, Law]], default: Law
) -> dict[str, tuple[tuple[int, Law], ...]]:
    """Return laws by buffer and rows, where any is not the default; the first of each counts."""
    by_buffer: dict[str, dict[int, Law]] = {}
    for buffer, rows, law in laws:
        by_buffer.setdefault(buffer, {}).setdefault(rows, law)
    return {b: tuple(d.items()) for b, d in by_buffer.items() if set(d.values()) != {default}}


def popularity_of(graph: Graph, given: Sequence[str] = ()) -> dict[str, Popularity]:
    """Return how often the rows of each table are looked up, by the table's name.

    Arguments and errors are those of ``indices_of``.
    """
    laws = {table.name: table for table in indices_of(graph, given).tables}
    found = {}
    for _, rows, name in _lookups(graph):
        known, table = rows_of(laws[name].distribution, rows), laws[name]
        said = f"{table.distribution} ({table.source})"
        found[name] = Popularity(tuple(known.counts), tuple(known.chances), said)
    return found


def _decide(name: str, rules: Sequence[Rule]) -> Table:
    found = Table(name, UNIFORM)
    for rule in rules:
        if not fnmatch.fnmatchcase(name, rule.tables):
            continue
        if rule.distribution is not None:
            found = replace(found, distribution=rule.distribution, source=rule.source)
        if rule.pooling is not None:
            found = replace(found, pooling=rule.pooling, counted=rule.source)
    return found


def _settings(graph: Graph) -> list[Rule]:
    said = graph.settings.get("indices")
    if said is None:
        return []
    return rules_of(str(said), "the model", SourceSpan(graph.source or graph.name))


def _lookups(graph: Graph) -> Iterable[tuple[str, int, str]]:
    """Yield the buffer of each index tensor, its table's rows and its table's name."""
    labels = {d.tensor.buffer: d.label or d.tensor.name for d in graph.tensors}
    lookups = (op for op in graph.walk() if op.name in LOOKUPS and len(op.operands) >= 2)
    for weight, indices in (pair for op in lookups for pair in _pairs(*op.operands[:2])):
        name = labels.get(weight.buffer, weight.name)
        yield indices.buffer, int(weight.shape[0]), name


def _pairs(weights: object, indices: object) -> list[tuple[Tensor, Tensor]]:
    """Return each table with its indices: one of each, or lists of them."""
    tables, looked = (v if isinstance(v, tuple) else (v,) for v in (weights, indices))
    pairs = zip(tables, looked, strict=False)
    return [(w, i) for w, i in pairs if isinstance(w, Tensor) and isinstance(i, Tensor) and w.rank]


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (", …" if len(names) > most else "")
