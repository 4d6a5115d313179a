"""User-specified lookups of tables: ``[TABLES=]DISTRIBUTION[ bags LENGTHS]``, and files."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct

from costmodels.lookups.pooling import EQUAL, Lengths, LogNormal, Normal, Poisson, Pooling
from costmodels.lookups.popularity import (
    Distribution,
    HeavyHitters,
    Histogram,
    Uniform,
    Zipf,
    histogram,
)
from irgraph.diagnostics import IrgraphError, SourceSpan, fail, suggestion
from irgraph.diagnostics.json_keys import unique_keys
from irgraph.files import read_input

DISTRIBUTION_HINT = "known: uniform, zipf:EXPONENT, zipf:EXPONENT,SHIFT, or a .json file of tables"
LENGTHS_HINT = "known: equal, poisson, normal:MEAN,DEVIATION, lognormal:DEVIATION, or a .json file"

BAGS, ROWS = "bags", "rows"


class Rule(Struct, frozen=True):
    """Lookups of ``tables`` (a name, or a pattern with ``*``), and the source of the rule.

    The distribution of the rows or of the bags is ``None`` if the rule does not specify it.
    """

    tables: str
    distribution: Distribution | None
    source: str
    pooling: Pooling | None = None


def read_rules(text: str) -> list[Rule]:
    """Return the rules of ``[TABLES=]DISTRIBUTION[ bags LENGTHS]; …``, or of a ``.json`` file.

    The file is an object that maps tables' names, in which ``*`` matches any text, to a
    distribution: a text as on the command line, a list of pairs ``[rows, lookups]``, or a list
    with the lookups of each row. A name may also map to an object with such a distribution as
    ``rows``, and with a text or a list of pairs ``[length, bags]`` as ``bags``. Raises
    ``IrgraphError`` (exit code 2).
    """
    if text.endswith(".json"):
        return _from_file(Path(text))
    return rules_of(text, "--indices", None)


def rules_of(text: str, source: str, span: SourceSpan | None) -> list[Rule]:
    """Return the rules of a text; ``source`` is their author, such as ``--indices``."""
    parts = [part.strip().rpartition("=") for part in text.split(";")]
    return [_rule(tables if sign else "*", law, source, span) for tables, sign, law in parts]


def _rule(tables: str, text: str, source: str, span: SourceSpan | None) -> Rule:
    words = text.split()
    if BAGS not in words:
        return Rule(tables, parse_distribution(text, span), source)
    position = words.index(BAGS)
    law = parse_distribution(" ".join(words[:position]), span) if position else None
    return Rule(tables, law, source, parse_pooling(" ".join(words[position + 1 :]), span))


def _from_file(path: Path) -> list[Rule]:
    span = SourceSpan(str(path))
    try:
        content = json.loads(read_input(path), object_pairs_hook=unique_keys)
    except (OSError, ValueError, RecursionError) as error:
        raise fail(f"cannot read how tables are looked up: {error}", span, exit_code=2) from None
    if not isinstance(content, dict):
        raise fail("not an object from tables' names to distributions", span, exit_code=2)
    return [_table_rule(name, law, span) for name, law in content.items()]


def _table_rule(name: str, content: object, span: SourceSpan) -> Rule:
    source = span.source
    if isinstance(content, str):
        return _rule(name, content, source, span)
    if not isinstance(content, dict):
        return Rule(name, _law(name, content, span), source)
    if not content or set(content) - {ROWS, BAGS}:
        message = f"table {name!r}: not a distribution of {ROWS!r}, of {BAGS!r}, or both"
        raise fail(message, span, exit_code=2)
    law = _law(name, content[ROWS], span) if ROWS in content else None
    return Rule(name, law, source, _pooling(name, content[BAGS], span) if BAGS in content else None)


def _law(name: str, law: object, span: SourceSpan) -> Distribution:
    if isinstance(law, str):
        return parse_distribution(law, span)
    if isinstance(law, list) and law:
        pairs = _pairs(law)
        numbers = [n for p in pairs for n in p] if pairs else law
        if len(pairs) in (0, len(law)) and _counts(numbers):
            distribution = Histogram(*zip(*pairs, strict=True)) if pairs else histogram(law)
            if all(rows > 0 for rows in distribution.rows) and sum(distribution.lookups) > 0:
                return distribution
    hint = "[[rows, lookups], …] with rows above zero, or the lookups of each row"
    raise fail(f"table {name!r}: not a distribution", span, hint=hint, exit_code=2)


def _pooling(name: str, content: object, span: SourceSpan) -> Pooling:
    if isinstance(content, str):
        return parse_pooling(content, span)
    pairs = _pairs(content) if isinstance(content, list) else []
    if pairs and len(pairs) == len(content) and _counts(n for p in pairs for n in p):  # type: ignore[arg-type]
        lengths = Lengths(*zip(*sorted(pairs), strict=True))
        if math.fsum(length * bags for length, bags in pairs) > 0:
            return lengths
    hint = "[[length, bags], …], not all of them empty"
    raise fail(f"table {name!r}: no distribution of bags", span, hint=hint, exit_code=2)


def _pairs(items: Sequence[object]) -> list[tuple[float, ...]]:
    return [tuple(p) for p in items if isinstance(p, list) and len(p) == 2]


MAX_COUNT = 1e18
"""Largest number of rows or lookups in a file."""


def _counts(numbers: Iterable[object]) -> bool:
    kinds = (int, float)
    return all(isinstance(n, kinds) and 0 <= n <= MAX_COUNT for n in numbers)


def parse_distribution(text: str, span: SourceSpan | None = None) -> Distribution:
    """Return the distribution of a text such as ``zipf:1.05``. Raises ``IrgraphError``.

    ``zipf:0.89,2.75+0.01+0.004`` specifies the chances of the two most popular rows separately.
    """
    name, _, rest = text.strip().partition(":")
    if name == "uniform" and not rest:
        return Uniform()
    if name != "zipf":
        guess = suggestion(name, ("uniform", "zipf"))
        raise fail(
            f"no distribution of indices is called {text!r}{guess}",
            span,
            hint=DISTRIBUTION_HINT,
            exit_code=2,
        )
    law, *hitters = rest.split("+")
    try:
        exponent, shift = (*map(float, law.split(",")), 0.0)[:2]
        chances = tuple(map(float, hitters))
    except ValueError:
        raise _no_zipf(text, span) from None
    if not (0 <= exponent < 100 and 0 <= shift < math.inf) or law.count(",") > 1:
        raise _no_zipf(text, span)
    if not chances:
        return Zipf(exponent, shift)
    if not all(chance > 0 for chance in chances) or not math.fsum(chances) < 1:
        message = f"{text!r}: chances of single rows are above 0, and below 1 together"
        raise fail(message, span, exit_code=2)
    return HeavyHitters(chances, Zipf(exponent, shift))


def _no_zipf(text: str, span: SourceSpan | None) -> IrgraphError:
    message = (
        f"{text!r}: an exponent from 0 and perhaps a shift from 0 must follow, as in zipf:1.05"
    )
    return fail(message, span, exit_code=2)


def parse_pooling(text: str, span: SourceSpan | None = None) -> Pooling:
    """Return the lengths of bags of a text such as ``normal:21,35``. Raises ``IrgraphError``."""
    name, _, rest = text.strip().partition(":")
    plain: dict[str, Pooling] = {"equal": EQUAL, "poisson": Poisson()}
    if name in plain and not rest:
        return plain[name]
    if name not in ("normal", "lognormal"):
        guess = suggestion(name, (*plain, "normal", "lognormal"))
        message = f"no lengths of bags are called {text!r}{guess}"
        raise fail(message, span, hint=LENGTHS_HINT, exit_code=2)
    try:
        numbers = [float(number) for number in rest.split(",")]
    except ValueError:
        numbers = []
    fits = len(numbers) == (2 if name == "normal" else 1)
    if not fits or not all(1e-6 <= number <= 1e6 for number in numbers):
        message = f"{text!r}: expected {LENGTHS_HINT.removeprefix('known: ')}; numbers above 0"
        raise fail(message, span, exit_code=2)
    return Normal(*numbers) if name == "normal" else LogNormal(*numbers)
