"""``place`` moves embedding tables to another tier of memory, behind a cache of rows."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from irgraph.diagnostics import IrgraphError, fail, suggestion
from irgraph.ir.tensor import MAX_TENSOR_BYTES, Tensor
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import clause, join_words
from irgraph.language.expressions.nodes import Expression
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, illegal, refusal
from irgraph.language.statement import Statement
from irgraph.tiers.bags import read_lists
from irgraph.tiers.hits import POLICIES
from irgraph.tiers.library import load_tier
from irgraph.tiers.tier import Tier
from irgraph.verbs.place import place
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.tiered_lookups import TablePlacement, bag_sizes, placeable_lookups

UNITS = ("blocks", "rows")
"""Units in which lookups read from a tier."""

_PIECES = re.compile(r"(\d{1,4})\s*x\s+(.+)")


@dataclass(frozen=True)
class Place(Statement):
    """``place "t*" on "nand" cache 20% by "lru" reading "rows" loaded 30% pooled 1GiB lists …``."""

    tables: Expression
    tier: Expression
    cache: Expression | None = None
    policy: Expression | None = None
    reading: Expression | None = None
    load: Expression | None = None
    pooled: Expression | None = None
    lists: Expression | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        return join_words(
            clause("place", self.tables),
            clause("on", self.tier),
            clause("cache", self.cache),
            clause("by", self.policy),
            clause("reading", self.reading),
            clause("loaded", self.load),
            clause("pooled", self.pooled),
            clause("lists", self.lists),
        )

    def check(self, check: Checker) -> None:
        """Check that tables, tier, policy, unit and lists are texts."""
        texts = (
            (self.tables, "tables"),
            (self.tier, "a tier"),
            (self.policy, "a policy"),
            (self.reading, "blocks or rows"),
            (self.lists, "a number and a law"),
        )
        for expression, noun in texts:
            if expression is not None:
                check.kinds.require("text", expression, noun)

    def run(self, frame: Frame) -> Entry:
        """Place the tables on the tier."""
        graph = frame.state.graph
        names = self._names(frame)
        placement = self._placement(frame, names)
        try:
            done = place(graph, names, placement)
        except RefusedError as error:
            text = "the tables are not placed"
            raise illegal(refusal(error, text, self.place, graph)) from None
        frame.state.graph = done.graph
        cached_rows = sum(placement.cached.values())
        cache = f", {cached_rows:,} rows cached ({placement.policy})" if cached_rows else ""
        bags = sum(placement.pooled.values())
        cache += f", {bags:,} bags pooled" if bags else ""
        text = f"{format_count(len(names), 'table')} on {placement.tier}{cache}"
        new_op_count = len(done.ops)
        return replace(frame.entry(self), done=text, made=new_op_count, legal=(done.legal,))

    def _names(self, frame: Frame) -> list[str]:
        """Return the names of the tables, at least one, that match the glob."""
        glob, tables = self._text(frame, self.tables), _tables(frame)
        names = [name for name in tables if fnmatchcase(name, glob)]
        if not names:
            message = f"no table that bags are looked up in is called {glob!r}"
            hint = f"tables: {', '.join(list(tables)[:8]) or 'none'}; * stands for anything"
            raise fail(f"{message}{suggestion(glob, tables)}", self.tables.place, hint=hint)
        return names

    def _placement(self, frame: Frame, names: list[str]) -> TablePlacement:
        text = self._text(frame, self.tier)
        split = _PIECES.fullmatch(text)
        pieces, name = (int(split[1]), split[2]) if split else (1, text)
        try:
            tier = load_tier(name)
        except IrgraphError as error:
            first = error.diagnostics[0]
            raise fail(first.message, self.tier.place, hint=first.hint) from None
        if tier.kind == "device":
            message = f"{tier.name} is device memory, where tables already are"
            raise fail(message, self.tier.place)
        if pieces < 1:
            raise fail("no piece of a tier holds nothing", self.tier.place)
        self._check_room(frame, names, tier, pieces)
        tier_name = tier.name if not name.endswith(".json") else name
        policy = self._choice(frame, self.policy, POLICIES, "lru")
        rows = self._choice(frame, self.reading, UNITS, "blocks") == "rows"
        return TablePlacement(
            tier_name,
            pieces,
            self._cached_rows(frame, names),
            policy,
            rows,
            self._load(frame),
            self._pooled_bags(frame, names),
            self._lists(frame),
        )

    def _check_room(self, frame: Frame, names: list[str], tier: Tier, pieces: int) -> None:
        """Refuse tables that exceed the capacity of the tier, if it is known."""
        if tier.capacity_gb is None:
            return
        needed_gb = sum(w.nbytes for name, w in _tables(frame).items() if name in names) / 1e9
        capacity_gb = pieces * tier.capacity_gb.value
        if needed_gb > capacity_gb:
            capacity = f"{pieces} x {tier.name} holds {capacity_gb:,g}"
            message = f"the tables take {needed_gb:,.4g} GB, and {capacity}"
            needed_pieces = -int(-needed_gb // tier.capacity_gb.value)
            hint = f'several pieces hold more, as in "{needed_pieces} x …"'
            raise fail(message, self.tier.place, hint=hint)

    def _cached_rows(self, frame: Frame, names: list[str]) -> dict[str, int]:
        """Return the number of cached rows of each table: an equal fraction of every table."""
        if self.cache is None:
            return {}
        size = self._number(frame, self.cache, "a share such as 20% or a size such as 1GiB")
        sizes = {
            name: (int(w.shape[0]), int(w.shape[1]) * w.itemsize)
            for name, w in _tables(frame).items()
            if name in names
        }
        fraction = size if size <= 1 else min(size / sum(n * row for n, row in sizes.values()), 1.0)
        if fraction <= 0:
            message = "a cache holds a share such as 20%, or a size such as 1GiB, above zero"
            raise fail(message, self.cache.place)
        min_bytes = sum(row for _, row in sizes.values())
        if 1 < size < min_bytes:
            message = (
                f"a cache of {size:.4g} bytes holds no row of each table ({min_bytes:,} bytes)"
            )
            hint = "a share, which is at most 100%, or a size such as 1GiB"
            raise fail(message, self.cache.place, hint=hint)
        return {name: max(int(fraction * rows), 1) for name, (rows, _) in sizes.items()}

    def _pooled_bags(self, frame: Frame, names: list[str]) -> dict[str, int]:
        """Return the number of pooled bags of each table that are cached, equal for all tables."""
        if self.pooled is None:
            return {}
        size = self._number(frame, self.pooled, "a size such as 64MiB")
        bag_bytes = sum(
            entry for name, entry in bag_sizes(frame.state.graph).items() if name in names
        )
        count = int(min(size, MAX_TENSOR_BYTES) // bag_bytes)
        if count < 1:
            message = (
                f"one bag of each table takes {bag_bytes:,} bytes, and the cache has {size:,.0f}"
            )
            raise fail(message, self.pooled.place, hint="a size such as 64MiB")
        return dict.fromkeys(names, count)

    def _lists(self, frame: Frame) -> str:
        """Return the number of different bags and the law of their frequencies, as a text."""
        if self.lists is None:
            return ""
        text = self._text(frame, self.lists)
        if self.pooled is None or read_lists(text) is None:
            message = "lists are of a cache of pooled bags: a number and a law"
            hint = (
                'as in: pooled 64MiB lists "100000 zipf:0.9"; laws are uniform, zipf:S and zipf:S,Q'
            )
            raise fail(f"{message}, not {spell(text)}", self.lists.place, hint=hint)
        return text

    def _load(self, frame: Frame) -> float:
        if self.load is None:
            return 0.0
        load = self._number(frame, self.load, "a share such as 30%")
        if not 0 <= load < 1:
            message = f"a load is a share of the tier's reads below 100%, not {load:.0%}"
            raise fail(message, self.load.place)
        return load

    def _choice(
        self, frame: Frame, expression: Expression | None, choices: tuple[str, ...], default: str
    ) -> str:
        if expression is None:
            return default
        value = self._text(frame, expression)
        if value not in choices:
            message = (
                f"expected one of {', '.join(choices)}, not {value!r}{suggestion(value, choices)}"
            )
            raise fail(message, expression.place)
        return value

    def _text(self, frame: Frame, expression: Expression) -> str:
        value = frame.value(expression)
        if not isinstance(value, str):
            raise fail(f"expected a text, not {spell(value)}", expression.place)
        return value

    def _number(self, frame: Frame, expression: Expression, expected: str) -> float:
        value = frame.value(expression)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise fail(f"expected {expected}, not {spell(value)}", expression.place)
        return float(value)


def _tables(frame: Frame) -> dict[str, Tensor]:
    """Return the rows of every table that bags are looked up in, by name."""
    return {name: weight for name, weight, _ in placeable_lookups(frame.state.graph)}
