"""Distributions of the rows that a model's embedding tables look up, and their sources."""

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
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import names_with
from irgraph.ops.operator import Trait

ASSUMED = "assumed"
"""Source of the distribution ``uniform`` of tables without a rule."""

Law = TypeVar("Law")


class Table(Struct, frozen=True):
    """A table of a model: its name, the laws of its lookups and bags, and the sources of both."""

    name: str
    distribution: Distribution
    source: str = ASSUMED
    pooling: Pooling = EQUAL
    pooling_source: str = ASSUMED


class Indices(Struct, frozen=True):
    """A model's tables, and the distribution of each index tensor that looks them up.

    Attributes:
        tables: in the order of their first lookup.
        by_buffer: by the buffer of an index tensor, pairs of a table's rows and its distribution;
            a buffer with only the default distribution is omitted.
        default: distribution of index tensors that no lookup pairs with a table.
        bags_by_buffer, default_bags: the same for the lengths of the bags.
    """

    tables: tuple[Table, ...] = ()
    by_buffer: Mapping[str, tuple[tuple[int, Distribution], ...]] = field(default_factory=dict)
    default: Distribution = UNIFORM
    bags_by_buffer: Mapping[str, tuple[tuple[int, Pooling], ...]] = field(default_factory=dict)
    default_bags: Pooling = EQUAL

    def distribution_of(self, indices: Tensor, rows: int) -> Distribution:
        """Return the distribution by which an index tensor looks up a table of ``rows`` rows."""
        laws = self.by_buffer.get(indices.buffer)
        return dict(laws).get(rows, self.default) if laws else self.default

    def bags(self, indices: Tensor, rows: int) -> Pooling:
        """Return the lengths of the bags in which an index tensor looks up a table."""
        return dict(self.bags_by_buffer.get(indices.buffer, ())).get(rows, self.default_bags)

    def summary(self) -> tuple[str, ...]:
        """Return one line for each law of lookups: the law, its source, and its tables."""
        names_by_law: dict[tuple[str, str], list[str]] = {}
        for table in self.tables:
            names_by_law.setdefault((str(table.distribution), table.source), []).append(table.name)
            if table.pooling_source != ASSUMED:
                bag_law = f"bags {table.pooling}", table.pooling_source
                names_by_law.setdefault(bag_law, []).append(table.name)
        return tuple(
            f"{law} ({who}): {_listing(names, 4)}" for (law, who), names in names_by_law.items()
        )

    def key(self, op: Op) -> object:
        """Return the laws that an op's time depends on in addition to its shapes."""
        laws_by_buffer = self.by_buffer, self.bags_by_buffer
        if not any(laws_by_buffer):
            return ()
        return tuple(law[t.buffer] for law in laws_by_buffer for t in op.inputs if t.buffer in law)


def indices_of(graph: Graph, texts: Sequence[str] = ()) -> Indices:
    """Return the distributions of the lookups of a graph's tables.

    Args:
        graph: its setting ``indices`` is a text with the model's own rules.
        texts: the user's rules, which take precedence: ``[TABLES=]DISTRIBUTION``, separated by
            ``;``, or the path of a ``.json`` file, see ``read_rules``. A later one takes precedence
            over an earlier one.

    Raises:
        IrgraphError: a text cannot be read, or names a table that does not exist.
    """
    rules = [*_model_rules(graph), *(rule for text in texts for rule in read_rules(text))]
    lookups = dict.fromkeys(_lookups(graph))
    names = list(dict.fromkeys(name for _, _, name in lookups))
    for rule in rules:
        if rule.tables != "*" and not fnmatch.filter(names, rule.tables):
            message = (
                f"no embedding table is called {rule.tables!r}{suggestion(rule.tables, names)}"
            )
            raise fail(message, hint=f"tables: {_listing(names) or 'none'}", exit_code=2)
    by_name = {name: _apply_rules(name, rules) for name in names}
    fallback = _apply_rules("", [rule for rule in rules if rule.tables == "*"])
    laws = [(b, rows, by_name[name].distribution) for b, rows, name in lookups]
    bags = [(b, rows, by_name[name].pooling) for b, rows, name in lookups]
    return Indices(
        tuple(by_name.values()),
        _non_default(laws, fallback.distribution),
        fallback.distribution,
        _non_default(bags, fallback.pooling),
        fallback.pooling,
    )


def _non_default(
    laws: Iterable[tuple[str, int, Law]], default: Law
) -> dict[str, tuple[tuple[int, Law], ...]]:
    """Return laws by buffer for buffers with a law other than the default; the first one wins."""
    by_buffer: dict[str, dict[int, Law]] = {}
    for buffer, rows, law in laws:
        by_buffer.setdefault(buffer, {}).setdefault(rows, law)
    return {b: tuple(d.items()) for b, d in by_buffer.items() if set(d.values()) != {default}}


def popularity_of(graph: Graph, texts: Sequence[str] = ()) -> dict[str, Popularity]:
    """Return the popularity of the rows of each table, by the table's name.

    Arguments and errors are those of ``indices_of``.
    """
    table_by_name = {table.name: table for table in indices_of(graph, texts).tables}
    popularity = {}
    for _, rows, name in _lookups(graph):
        groups, table = rows_of(table_by_name[name].distribution, rows), table_by_name[name]
        law_text = f"{table.distribution} ({table.source})"
        popularity[name] = Popularity(tuple(groups.counts), tuple(groups.chances), law_text)
    return popularity


def _apply_rules(name: str, rules: Sequence[Rule]) -> Table:
    table = Table(name, UNIFORM)
    for rule in rules:
        if not fnmatch.fnmatchcase(name, rule.tables):
            continue
        if rule.distribution is not None:
            table = replace(table, distribution=rule.distribution, source=rule.source)
        if rule.pooling is not None:
            table = replace(table, pooling=rule.pooling, pooling_source=rule.source)
    return table


def _model_rules(graph: Graph) -> list[Rule]:
    text = graph.settings.get("indices")
    if text is None:
        return []
    return rules_of(str(text), "the model", SourceSpan(graph.source or graph.name))


def _lookups(graph: Graph) -> Iterable[tuple[str, int, str]]:
    """Yield the buffer of each index tensor, its table's rows and its table's name."""
    labels = {d.tensor.buffer: d.label or d.tensor.name for d in graph.tensors}
    names = {*names_with(Trait.LOOKUP), *NARROW.values()}
    lookups = (op for op in graph.walk() if op.name in names and len(op.operands) >= 2)
    for weight, indices in (pair for op in lookups for pair in _pairs(*op.operands[:2])):
        name = labels.get(weight.buffer, weight.name)
        yield indices.buffer, int(weight.shape[0]), name


def _pairs(weights: object, indices: object) -> list[tuple[Tensor, Tensor]]:
    """Return pairs of a table and its indices, from one tensor or a list for each operand."""
    tables, index_tensors = (v if isinstance(v, tuple) else (v,) for v in (weights, indices))
    pairs = zip(tables, index_tensors, strict=False)
    return [(w, i) for w, i in pairs if isinstance(w, Tensor) and isinstance(i, Tensor) and w.rank]


def _listing(names: Sequence[str], max_names: int = 8) -> str:
    return ", ".join(names[:max_names]) + (", …" if len(names) > max_names else "")
