"""What users say of the lookups of tables: ``[TABLES=]DISTRIBUTION[ bags LENGTHS]``, and files."""

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

KNOWN = "known: uniform, zipf:EXPONENT, zipf:EXPONENT,SHIFT, or a .json file of tables"
LENGTHS = "known: equal, poisson, normal:MEAN,DEVIATION, lognormal:DEVIATION, or a .json file"

BAGS, ROWS = "bags", "rows"


class Rule(Struct, frozen=True):
    """Which tables, by name or with ``*``, are looked up how, and who says so.

    ``None`` where a rule says nothing of the rows, or of the bags.
    """

    tables: str
    distribution: Distribution | None
    source: str
    pooling: Pooling | None = None


def read_rules(text: str) -> list[Rule]:
    """Return the rules of ``[TABLES=]DISTRIBUTION[ bags LENGTHS]; …``, or of a ``.json`` file.

    The file holds an object from tables' names, in which ``*`` stands for anything, to a
    distribution: a text as on the command line, a list of pairs ``[rows, lookups]``, or a list
    with the lookups of each row; or to an object with that as ``rows``, and as ``bags`` a text or
    a list of pairs ``[length, bags]``. Raises ``IrgraphError`` (exit code 2).
    """
    if text.endswith(".json"):
        return _from_file(Path(text))
    return rules_of(text, "--indices", None)


def rules_of(text: str, source: str, place: SourceSpan | None) -> list[Rule]:
    """Return the rules of a text; ``source`` says who says so."""
    parts = [part.strip().rpartition("=") for part in text.split(";")]
    return [_rule(tables if sign else "*", law, source, place) for tables, sign, law in parts]


def _rule(tables: str, text: str, source: str, place: SourceSpan | None) -> Rule:
    words = text.split()
    if BAGS not in words:
        return Rule(tables, parse_distribution(text, place), source)
    at = words.index(BAGS)
    law = parse_distribution(" ".join(words[:at]), place) if at else None
    return Rule(tables, law, source, parse_pooling(" ".join(words[at + 1 :]), place))


def _from_file(path: Path) -> list[Rule]:
    place = SourceSpan(str(path))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise fail(f"cannot read how tables are looked up: {error}", place, exit_code=2) from None
    if not isinstance(content, dict):
        raise fail("not an object from tables' names to distributions", place, exit_code=2)
    return [_of_table(name, law, place) for name, law in content.items()]


def _of_table(name: str, given: object, place: SourceSpan) -> Rule:
    source = place.source
    if isinstance(given, str):
        return _rule(name, given, source, place)
    if not isinstance(given, dict):
        return Rule(name, _law(name, given, place), source)
    if not given or set(given) - {ROWS, BAGS}:
        message = f"table {name!r}: not a distribution of {ROWS!r}, of {BAGS!r}, or both"
        raise fail(message, place, exit_code=2)
    law = _law(name, given[ROWS], place) if ROWS in given else None
    return Rule(name, law, source, _pooling(name, given[BAGS], place) if BAGS in given else None)


def _law(name: str, law: object, place: SourceSpan) -> Distribution:
    if isinstance(law, str):
        return parse_distribution(law, place)
    if isinstance(law, list) and law:
        pairs = _pairs(law)
        numbers = [n for p in pairs for n in p] if pairs else law
        if len(pairs) in (0, len(law)) and _counts(numbers):
            found = Histogram(*zip(*pairs, strict=True)) if pairs else histogram(law)
            if all(rows > 0 for rows in found.rows) and sum(found.lookups) > 0:
                return found
    hint = "[[rows, lookups], …] with rows above zero, or the lookups of each row"
    raise fail(f"table {name!r}: not a distribution", place, hint=hint, exit_code=2)


def _pooling(name: str, given: object, place: SourceSpan) -> Pooling:
    if isinstance(given, str):
        return parse_pooling(given, place)
    pairs = _pairs(given) if isinstance(given, list) else []
    if pairs and len(pairs) == len(given) and _counts(n for p in pairs for n in p):  # type: ignore[arg-type]
        found = Lengths(*zip(*sorted(pairs), strict=True))
        if math.fsum(length * bags for length, bags in pairs) > 0:
            return found
    hint = "[[length, bags], …], not all of them empty"
    raise fail(f"table {name!r}: no distribution of bags", place, hint=hint, exit_code=2)


def _pairs(given: Sequence[object]) -> list[tuple[float, ...]]:
    return [tuple(p) for p in given if isinstance(p, list) and len(p) == 2]


def _counts(numbers: Iterable[object]) -> bool:
    kinds = (int, float)
    return all(isinstance(n, kinds) and math.isfinite(n) and n >= 0 for n in numbers)


def parse_distribution(text: str, place: SourceSpan | None = None) -> Distribution:
    """Return the distribution of a text such as ``zipf:1.05``. Raises ``IrgraphError``.

    ``zipf:0.89,2.75+0.01+0.004`` gives the two most popular rows chances of their own.
    """
    name, _, rest = text.strip().partition(":")
    if name == "uniform" and not rest:
        return Uniform()
    if name != "zipf":
        guess = suggestion(name, ("uniform", "zipf"))
        raise fail(
            f"no distribution of indices is called {text!r}{guess}", place, hint=KNOWN, exit_code=2
        )
    law, *hitters = rest.split("+")
    try:
        exponent, shift = (*map(float, law.split(",")), 0.0)[:2]
        chances = tuple(map(float, hitters))
    except ValueError:
        raise _no_zipf(text, place) from None
    if not (0 <= exponent < 100 and 0 <= shift < math.inf) or law.count(",") > 1:
        raise _no_zipf(text, place)
    if not chances:
        return Zipf(exponent, shift)
    if not all(chance > 0 for chance in chances) or not math.fsum(chances) < 1:
        message = f"{text!r}: chances of single rows are above 0, and below 1 together"
        raise fail(message, place, exit_code=2)
    return HeavyHitters(chances, Zipf(exponent, shift))


def _no_zipf(text: str, place: SourceSpan | None) -> IrgraphError:
    message = (
        f"{text!r}: an exponent from 0 and perhaps a shift from 0 must follow, as in zipf:1.05"
    )
    return fail(message, place, exit_code=2)


def parse_pooling(text: str, place: SourceSpan | None = None) -> Pooling:
    """Return the lengths of bags of a text such as ``normal:21,35``. Raises ``IrgraphError``."""
    name, _, rest = text.strip().partition(":")
    plain: dict[str, Pooling] = {"equal": EQUAL, "poisson": Poisson()}
    if name in plain and not rest:
        return plain[name]
    if name not in ("normal", "lognormal"):
        guess = suggestion(name, (*plain, "normal", "lognormal"))
        message = f"no lengths of bags are called {text!r}{guess}"
        raise fail(message, place, hint=LENGTHS, exit_code=2)
    try:
        numbers = [float(number) for number in rest.split(",")]
    except ValueError:
        numbers = []
    fits = len(numbers) == (2 if name == "normal" else 1)
    if not fits or not all(1e-6 <= number <= 1e6 for number in numbers):
        message = f"{text!r}: expected {LENGTHS.removeprefix('known: ')}; numbers above 0"
        raise fail(message, place, exit_code=2)
    return Normal(*numbers) if name == "normal" else LogNormal(*numbers)
