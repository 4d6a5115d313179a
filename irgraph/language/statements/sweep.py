"""``sweep`` runs a block for each combination of values, and reports figures of each result."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod

from irgraph.diagnostics import IrgraphError, fail, suggestion
from irgraph.ir.graph import Graph
from irgraph.ir.op import Value
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import block, clause, join_words
from irgraph.language.expressions.evaluate import EvaluationError, evaluate
from irgraph.language.expressions.kinds import ANY, MEASURES, Kinds
from irgraph.language.expressions.nodes import Attribute, Expression, Name
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.running.report import Entry
from irgraph.language.running.settle import settle
from irgraph.language.running.state import ILLEGAL, Frame, State
from irgraph.language.statement import Statement, check_block

MAX_RUNS = 10_000

DECIMALS_LIMIT = 1000
"""Smallest figure that is shown without decimals."""


@dataclass(frozen=True)
class Sweep(Statement):
    """``sweep name in list, ... { ... } report ... best by ...``."""

    axes: tuple[tuple[str, Expression], ...]
    body: tuple[Statement, ...]
    report: tuple[Expression, ...]
    best: Expression | None = None

    def __str__(self) -> str:
        axes = ", ".join(f"{name} in {values}" for name, values in self.axes)
        tail = join_words(clause("report", self.report), clause("best by", self.best))
        return join_words("sweep", axes, block(self.body), tail)

    def names(self) -> Sequence[str]:
        """Return the names of the axes."""
        return tuple(name for name, _ in self.axes)

    def check(self, check: Checker) -> None:
        """Check the axes, the block, and the figures to report."""
        inner = check.inner()
        for name, values in self.axes:
            inner.define(name, ANY, self.place)
            check.kinds.require("list", values, "a list of values", "as in [512, 1024]")
        check_block(self.body, inner.inner())
        kinds = Kinds(inner.names, {}, check.problems, frozenset(MEASURES))
        for expression in (*self.report, *(() if self.best is None else (self.best,))):
            invalid = next(filter(_is_no_measure, expression.walk()), None)
            if invalid is None:
                kinds.infer(expression)
            else:
                hint = (
                    suggestion(str(invalid), MEASURES) or f"; it can report {', '.join(MEASURES)}"
                )
                check.note(f"a sweep cannot report {invalid}{hint}", invalid.place)

    def run(self, frame: Frame) -> Entry:
        """Run the block for each combination, each time from the same graph."""
        state = frame.state
        rows: list[_Row] = []
        before = state.counts.statements
        for names in self._combinations(frame):
            state.counts.statements = before
            inner = frame.inner(names)
            try:
                rows.append(self._measure(names, settle(self.body, inner), inner))
            except IrgraphError as error:
                if error.exit_code != ILLEGAL:
                    raise
                failed = error.diagnostics[0].message
                rows.append(_Row(tuple(names.values()), state.graph, failed=failed))
        successful = [row for row in rows if not row.failed]
        best = min(successful, key=lambda row: row.rank) if self.best and successful else None
        if best is not None:
            state.graph = best.graph
        return replace(frame.entry(self), done=self._table(rows, best))

    def _combinations(self, frame: Frame) -> Iterator[dict[str, Value]]:
        """Yield the values of the axes, the last axis fastest."""
        lists = []
        for name, expression in self.axes:
            values = frame.value(expression)
            if not isinstance(values, tuple) or not values:
                message = f"{name!r} must be a list of values, not {spell(values)}"
                raise fail(message, expression.place)
            lists.append(values)
        counts = frame.state.counts
        counts.runs += prod(map(len, lists))
        if counts.runs > MAX_RUNS:
            message = f"the sweeps of a script can take at most {MAX_RUNS} runs, not {counts.runs}"
            raise fail(message, self.place, hint="shorten their lists")
        for combination in product(*lists):
            yield dict(zip(self.names(), combination, strict=True))

    def _measure(self, names: dict[str, Value], done: State, frame: Frame) -> _Row:
        """Return the row of one combination: the figures of its graph."""
        pricer = done.pricer
        if pricer is None or not (hasattr(pricer, "measure") and hasattr(pricer, "doubts")):
            hint = 'choose one, as in target "v100"'
            raise fail("a sweep needs a device whose times it reports", self.place, hint=hint)
        figure_by_name = dict(pricer.measure(done.graph))
        scope = replace(frame.scope, values_by_text=figure_by_name, pricer=pricer)

        def value(expression: Expression) -> Value:
            try:
                return evaluate(expression, scope)
            except EvaluationError as error:
                raise fail(str(error), expression.place) from None

        figures = tuple(map(value, self.report))
        rank = 0.0 if self.best is None else value(self.best)
        if isinstance(rank, bool) or not isinstance(rank, (int, float)):
            place = self.place if self.best is None else self.best.place
            raise fail(f"'best by' needs a number, not {spell(rank)}", place)
        doubts = tuple(pricer.doubts(done.graph))
        return _Row(tuple(names.values()), done.graph, figures, rank, doubts=doubts)

    def _table(self, rows: Sequence[_Row], best: _Row | None) -> str:
        """Return the rows as aligned text, the best one marked; times in microseconds."""
        head = [*self.names(), *map(str, self.report), ""]
        lines = [head]
        for row in rows:
            figures = [row.failed] if row.failed else list(map(_spell, row.figures))
            figures += [""] * (len(self.report) - len(figures))
            lines.append([*map(_spell, row.values), *figures, "best" if row is best else ""])
        widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
        texts = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        doubts = dict.fromkeys(f"WARNING: {text}" for row in rows for text in row.doubts)
        return "\n  ".join([format_count(len(rows), "run"), *texts, *doubts])


@dataclass(frozen=True)
class _Row:
    """One combination: its values, the graph, and the figures; or the error in ``failed``."""

    values: tuple[Value, ...]
    graph: Graph
    figures: tuple[Value, ...] = ()
    rank: float = 0.0
    failed: str = ""
    doubts: tuple[str, ...] = ()


def _is_no_measure(part: object) -> bool:
    is_plain = isinstance(part, Attribute) and isinstance(part.base, Name)
    return is_plain and str(part) not in MEASURES


def _spell(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= DECIMALS_LIMIT else f"{value:.4g}"
    return spell(value)
