"""Texts that the grammar allows: every choice of clauses of a rule."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from lark.grammar import Symbol, Terminal

from grammars.vocabulary import Vocabulary

SAMPLES = {
    "VALUE": "%x", "NAME": "n", "OPNAME": "aten.relu", "OPGLOB": "aten.{mm,bmm}", "BLANK": "_",
    "PASSNAME": "a-pass", "NUMBER": "2", "QUANTITY": "20us", "STRING": '"text"', "DTYPE": "bf16",
    "DEVICE": "@gpu0", "COMPARE": "<=", "SIGN": "+", "TIMES": "*", "COMMENT": "# why\n", "WS": " ",
}  # fmt: skip
"""Terminals that are no words."""

DEEPEST = 6
"""Below so many rules, the shortest form is taken."""


class Sentences:
    """Writes texts of a grammar; what a rule allows it takes in turn."""

    def __init__(self, name: str) -> None:
        self.vocabulary = Vocabulary(name)
        self.forms: dict[str, list[Sequence[Symbol]]] = defaultdict(list)
        for rule in self.vocabulary.rules:
            self.forms[rule.origin.name].append(rule.expansion)
        self.turns: Counter[str] = Counter()
        self.heights: dict[str, int] = {}
        self._measure()

    def _measure(self) -> None:
        """Find how many rules the shortest text of each needs."""
        while len(self.heights) < len(self.forms):
            for name, forms in self.forms.items():
                found = [height for form in forms if (height := self._height(form)) is not None]
                if name not in self.heights and found:
                    self.heights[name] = 1 + min(found)

    def _height(self, form: Sequence[Symbol]) -> int | None:
        inner = [symbol.name for symbol in form if not isinstance(symbol, Terminal)]
        known = [self.heights[name] for name in inner if name in self.heights]
        return max(known, default=0) if len(known) == len(inner) else None

    def of(self, rule: str, rounds: int = 3) -> Iterator[str]:
        """Yield texts of a rule, each of its forms a few times."""
        for form in self.forms[rule] * rounds:
            yield " ".join(self._text(symbol, 0) for symbol in form)

    def _text(self, symbol: Symbol, depth: int) -> str:
        if isinstance(symbol, Terminal):
            return SAMPLES.get(symbol.name) or self._word(symbol.name)
        forms = self.forms[symbol.name]
        if depth > DEEPEST:
            form = min(forms, key=lambda form: self._height(form) or 0)
        else:
            form = forms[self.turns[symbol.name] % len(forms)]
            self.turns[symbol.name] += 1
        return " ".join(self._text(inner, depth + 1) for inner in form)

    def _word(self, terminal: str) -> str:
        return min(self.vocabulary.words(terminal), default=self.vocabulary.terminals[terminal])
