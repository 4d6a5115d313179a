"""The rows of a sweep: what each combination of values gave, as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from irgraph.ir.graph import Graph
from irgraph.ir.op import Value
from irgraph.language.evaluate import NoValueError, evaluate
from irgraph.language.expressions import Expression
from irgraph.language.state import Frame, State
from irgraph.language.tree import Sweep
from irgraph.language.values import counted, spell
from irgraph.text.diagnostics import IrgraphError, fail

MOST_RUNS = 10_000
LARGE = 1000


@dataclass(frozen=True)
class Row:
    """One combination: its values, the graph, and the figures; or why there are none."""

    values: tuple[Value, ...]
    graph: Graph
    figures: tuple[Value, ...] = ()
    rank: float = 0.0
    failed: str = ""
    doubts: tuple[str, ...] = ()


def combinations(statement: Sweep, state: State, frame: Frame) -> Iterator[dict[str, Value]]:
    """Yield the values of the axes, the last axis fastest."""
    lists = []
    for name, expression in statement.axes:
        values = state.value(expression, frame)
        if not isinstance(values, tuple) or not values:
            message = f"{name!r} needs a list of values, not {spell(values)}"
            raise fail(message, expression.place)
        lists.append(values)
    total = 1
    for values in lists:
        total *= len(values)
    state.spent.runs += total
    if state.spent.runs > MOST_RUNS:
        message = f"sweeps take {MOST_RUNS} runs at most, not {state.spent.runs}"
        raise fail(message, statement.place, hint="give their lists fewer values")
    for chosen in product(*lists):
        yield dict(zip((name for name, _ in statement.axes), chosen, strict=True))


def row(statement: Sweep, names: dict[str, Value], done: State, frame: Frame) -> Row:
    """Measure what one combination gave."""
    pricer = done.pricer
    if pricer is None or not (hasattr(pricer, "measure") and hasattr(pricer, "doubts")):
        hint = 'name one in the sweep, as in target "v100"'
        raise fail("a sweep reports what a device would take", statement.place, hint=hint)
    known = dict(pricer.measure(done.graph))
    scope = replace(done.scope(replace(frame, names={**frame.names, **names})), known=known)

    def value(expression: Expression) -> Value:
        try:
            return evaluate(expression, scope)
        except NoValueError as error:
            raise fail(str(error), expression.place) from None

    figures = tuple(map(value, statement.report))
    rank = 0.0 if statement.best is None else value(statement.best)
    if isinstance(rank, bool) or not isinstance(rank, (int, float)):
        place = statement.place if statement.best is None else statement.best.place
        raise fail(f"'best by' needs a number, not {spell(rank)}", place)
    doubts = tuple(pricer.doubts(done.graph))
    return Row(tuple(names.values()), done.graph, figures, rank, doubts=doubts)


def failed(names: dict[str, Value], graph: Graph, error: IrgraphError) -> Row:
    """Return the row of a combination that may not be."""
    return Row(tuple(names.values()), graph, failed=error.diagnostics[0].message)


def best_of(statement: Sweep, rows: Sequence[Row]) -> Row | None:
    """Return the row whose ``best by`` is lowest, if that is asked for and any run succeeded."""
    sound = [found for found in rows if not found.failed]
    return min(sound, key=lambda found: found.rank) if statement.best and sound else None


def table(statement: Sweep, rows: Sequence[Row], best: Row | None) -> str:
    """Return the rows as aligned text, the best one marked; times in microseconds."""
    head = [*(name for name, _ in statement.axes), *map(str, statement.report), ""]
    lines = [head]
    for found in rows:
        figures = [found.failed] if found.failed else list(map(_spell, found.figures))
        figures += [""] * (len(statement.report) - len(figures))
        lines.append([*map(_spell, found.values), *figures, "best" if found is best else ""])
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    texts = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    doubts = dict.fromkeys(f"WARNING: {text}" for found in rows for text in found.doubts)
    return "\n  ".join([counted(len(rows), "run"), *texts, *doubts])


def _spell(value: Value) -> str:
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= LARGE else f"{value:.4g}"
    return spell(value)
