"""The words and literals of a grammar, for syntax highlighting."""

from __future__ import annotations

import re

from lark.grammar import Terminal

import grammars

WORD = re.compile(r"(?:\(\?:)?([a-z|]+)\)?(?:\\b)?")
"""Pattern of a terminal that is a word, or one of several words."""


class Vocabulary:
    """Words and literals of ``model`` or ``transform``."""

    def __init__(self, name: str) -> None:
        lark = grammars.load(name)
        self.rules = lark.rules
        self.terminals = {t.name: str(t.pattern.value) for t in lark.terminals}

    def words(self, *terminals: str) -> set[str]:
        """Return the words among the given terminals, or among all."""
        matches = (WORD.fullmatch(self.terminals[name]) for name in terminals or self.terminals)
        return {word for match in matches if match for word in match[1].split("|")}

    def first_words(self, *rules: str) -> set[str]:
        """Return the words with which the given rules begin."""
        first = [rule.expansion[0] for rule in self.rules if rule.origin.name in rules]
        words = [symbol.name for symbol in first if isinstance(symbol, Terminal)]
        inner = {symbol.name for symbol in first if not isinstance(symbol, Terminal)}
        first_words = self.words(*words) if words else set()
        return first_words | self.first_words(*inner) if inner else first_words
