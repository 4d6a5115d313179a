"""Which rows a model's embedding tables are asked for: what is known of it, and who said so."""

from __future__ import annotations

import fnmatch
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct, field

from costmodels.lookups.popularity import (
    UNIFORM,
    Distribution,
    Histogram,
    Uniform,
    Zipf,
    histogram,
    rows_of,
)
from irgraph.diagnostics import IrgraphError, Place, fail, near
from irgraph.ir.cost import Popularity
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.ops import LOOKUPS as NARROW
from irgraph.ir.narrow.ops import ROWS_LOOKUP
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor

ASSUMED = "assumed"
"""Who says ``uniform`` of tables of which nobody said anything."""

KNOWN = "known: uniform, zipf:EXPONENT, zipf:EXPONENT,SHIFT, or a .json file of tables"

LOOKUPS = (
    "aten.embedding", "aten.embedding_bag", "aten._embedding_bag",
    "aten._embedding_bag_forward_only", "irgraph.batched_embedding", "irgraph.tier_read",
    ROWS_LOOKUP, *NARROW.values(),
)  # fmt: skip
"""Ops that show which index tensor belongs to which table."""


class Rule(Struct, frozen=True):
    """Which tables, by name or with ``*``, are looked up how, and who says so."""

    tables: str
    distribution: Distribution
    source: str


class Table(Struct, frozen=True):
    """A table of a model: its name, what is said of its lookups, and who says so."""

    name: str
    distribution: Distribution
    source: str = ASSUMED


class Indices(Struct, frozen=True):
    """A model's tables, and the distribution of each index tensor that looks them up.

    Attributes:
        tables: in the order of their first lookup.
        by_buffer: by the buffer of an index tensor, pairs of a table's rows and its distribution;
            left out where that is the default.
        default: of index tensors that no lookup shows to belong to a table.
    """

    tables: tuple[Table, ...] = ()
    by_buffer: Mapping[str, tuple[tuple[int, Distribution], ...]] = field(default_factory=dict)
    default: Distribution = UNIFORM

    def of(self, indices: Tensor, rows: int) -> Distribution:
        """Return how an index tensor looks up a table of so many rows."""
        return dict(self.by_buffer.get(indices.buffer, ())).get(rows, self.default)

    def summary(self) -> tuple[str, ...]:
        """Return one line for each way in which tables are looked up: how, which, who says so."""
        found: dict[tuple[str, str], list[str]] = {}
        for table in self.tables:
            found.setdefault((str(table.distribution), table.source), []).append(table.name)
        return tuple(f"{law} ({who}): {_some(names, 4)}" for (law, who), names in found.items())

    def key(self, op: Op) -> object:
        """Return what an op's time depends on beside its shapes."""
        return tuple(self.by_buffer[t.buffer] for t in op.inputs if t.buffer in self.by_buffer)


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
            message = f"no embedding table is called {rule.tables!r}{near(rule.tables, names)}"
            raise fail(message, hint=f"tables: {_some(names) or 'none'}", exit_code=2)
    by_name = {name: _decide(name, rules) for name in names}
    by_buffer: dict[str, dict[int, Distribution]] = {}
    for buffer, rows, name in found:
        by_buffer.setdefault(buffer, {}).setdefault(rows, by_name[name].distribution)
    default = next((r.distribution for r in reversed(rules) if r.tables == "*"), UNIFORM)
    kept = {b: tuple(d.items()) for b, d in by_buffer.items() if set(d.values()) != {default}}
    return Indices(tuple(by_name.values()), kept, default)


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
    for rule in reversed(rules):
        if fnmatch.fnmatchcase(name, rule.tables):
            return Table(name, rule.distribution, rule.source)
    return Table(name, UNIFORM)


def _settings(graph: Graph) -> list[Rule]:
    said = graph.settings.get("indices")
    if said is None:
        return []
    return _rules(str(said), "the model", Place(graph.source or graph.name))


def read_rules(text: str) -> list[Rule]:
    """Return the rules of ``[TABLES=]DISTRIBUTION; …``, or of a ``.json`` file.

    The file holds an object from tables' names, in which ``*`` stands for anything, to a
    distribution: a text as on the command line, a list of pairs ``[rows, lookups]``, or a list
    with the lookups of each row.
    """
    if text.endswith(".json"):
        return _from_file(Path(text))
    return _rules(text, "--indices", None)


def _rules(text: str, source: str, place: Place | None) -> list[Rule]:
    parts = [part.strip().rpartition("=") for part in text.split(";")]
    return [
        Rule(tables if sign else "*", parse_distribution(law, place), source)
        for tables, sign, law in parts
    ]


def _from_file(path: Path) -> list[Rule]:
    place = Place(str(path))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise fail(f"cannot read how tables are looked up: {error}", place, exit_code=2) from None
    if not isinstance(content, dict):
        raise fail("not an object from tables' names to distributions", place, exit_code=2)
    return [Rule(name, _law(name, law, place), str(path)) for name, law in content.items()]


def _law(name: str, law: object, place: Place) -> Distribution:
    if isinstance(law, str):
        return parse_distribution(law, place)
    if isinstance(law, list) and law:
        pairs = [tuple(p) for p in law if isinstance(p, list) and len(p) == 2]
        numbers = [n for p in pairs for n in p] if pairs else law
        if len(pairs) in (0, len(law)) and _counts(numbers):
            found = Histogram(*zip(*pairs, strict=True)) if pairs else histogram(law)
            if all(rows > 0 for rows in found.rows) and sum(found.lookups) > 0:
                return found
    hint = "[[rows, lookups], …] with rows above zero, or the lookups of each row"
    raise fail(f"table {name!r}: not a distribution", place, hint=hint, exit_code=2)


def _counts(numbers: Iterable[object]) -> bool:
    kinds = (int, float)
    return all(isinstance(n, kinds) and math.isfinite(n) and n >= 0 for n in numbers)


def parse_distribution(text: str, place: Place | None = None) -> Distribution:
    """Return the distribution of a text such as ``zipf:1.05``. Raises ``IrgraphError``."""
    name, _, rest = text.strip().partition(":")
    if name == "uniform" and not rest:
        return Uniform()
    if name != "zipf":
        guess = near(name, ("uniform", "zipf"))
        raise fail(f"no distribution of indices is called {text!r}{guess}", place, hint=KNOWN,
                   exit_code=2)  # fmt: skip
    try:
        exponent, shift = (*map(float, rest.split(",")), 0.0)[:2]
    except ValueError:
        raise _no_zipf(text, place) from None
    if not (0 <= exponent < 100 and 0 <= shift < math.inf) or rest.count(",") > 1:
        raise _no_zipf(text, place)
    return Zipf(exponent, shift)


def _no_zipf(text: str, place: Place | None) -> IrgraphError:
    message = (
        f"{text!r}: an exponent from 0 and perhaps a shift from 0 must follow, as in zipf:1.05"
    )
    return fail(message, place, exit_code=2)


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
