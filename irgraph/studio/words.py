"""Syntax colouring and completion of the script language for the editor.

Both come from the grammar: the rules of the lexers, whose words are the grammar's, and the symbols
that the parser would accept at the cursor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache

import grammars
import irgraph
from grammars.vocabulary import WORD
from irgraph import Graph

PARTIAL_WORD = re.compile(r'(?:"[^"\n]*|[%@]?[\w.*-]*)\Z')
"""Unfinished word at the end of a text."""

MEMBER = re.compile(r"(op|%\w+)\.(\w*)\Z")
DECLARED_NAME = re.compile(r"\b(?:find|as|let)\s+([A-Za-z_]\w*)")
HOLES = re.compile(r"%\w+")
MAX_WORDS = 80
"""Maximum number of words that are offered."""

Word = tuple[str, str]
"""A word and its kind."""


@cache
def rules() -> list[tuple[str, list[str]]]:
    """Return the regular expressions of the script's lexer, each with the classes of its groups.

    The first one that matches at a position applies. They are written for JavaScript, where ``]``
    at the start of a class needs a backslash.
    """
    from irgraph.text.lexers import SCRIPT_RULES

    return [
        (
            regex.replace("[][", r"[\]\["),
            [str(kind)[6:].replace(".", "-").lower() for kind in kinds],
        )
        for regex, kinds in SCRIPT_RULES
    ]


def completions(text: str, graph: Graph, passes: Iterable[irgraph.Pass]) -> tuple[str, list[Word]]:
    """Return the end of a text that a word would replace, and the possible words.

    Args:
        text: the text before the cursor.
        graph: the model, for the names of its ops, modules, dimensions and devices.
        passes: the passes that can be applied.
    """
    member = MEMBER.search(text)
    if member:
        candidates: Iterable[Word] = ((name, "property") for name in _properties(member[1]))
        part = member[2]
    else:
        match = PARTIAL_WORD.search(text)
        part = match[0] if match else ""
        candidates = _next_words(text[: len(text) - len(part)], text, graph, passes)
    prefix = part.lower()
    unique = {
        word: kind for word, kind in candidates if word.lower().startswith(prefix) and word != part
    }
    return part, list(unique.items())[:MAX_WORDS]


def _next_words(
    earlier_text: str, text: str, graph: Graph, passes: Iterable[irgraph.Pass]
) -> Iterator[Word]:
    """Yield the words that may follow in the text."""
    names = {terminal.name: terminal for terminal in grammars.load("transform").terminals}
    symbols = _next_symbols(earlier_text)
    words_by_symbol = _words_by_symbol(earlier_text, text, graph, passes)
    for name in sorted(symbols, key=lambda name: (name not in words_by_symbol, name)):
        if name in words_by_symbol:
            yield from words_by_symbol[name]
        elif name in names:
            yield from ((word, "keyword") for word in _words(str(names[name].pattern.value)))


def _next_symbols(earlier_text: str) -> set[str]:
    """Return the symbols that the grammar accepts after a text, none if the text is invalid."""
    from lark.exceptions import LarkError

    try:
        parser = grammars.load("transform").parse_interactive(earlier_text)
        parser.exhaust_lexer()
        symbols: set[str] = parser.accepts()  # type: ignore[no-untyped-call]
        return symbols
    except LarkError:
        return set()


def _words(pattern: str) -> list[str]:
    """Return the words of a terminal, none if it does not consist of words."""
    single_word = WORD.fullmatch(pattern)
    alternatives = re.fullmatch(r"\(\?:([a-z0-9|]+)\)\\b", pattern)
    match = single_word or alternatives
    return match[1].split("|") if match else []


def _words_by_symbol(
    earlier_text: str, text: str, graph: Graph, passes: Iterable[irgraph.Pass]
) -> Mapping[str, list[Word]]:
    """Return the words of the model and the script for symbols that are names."""
    ops = sorted({op.name for op in graph.walk() if not op.is_annotation})
    dotted_ops = [(name, "op") for name in ops if "." in name]
    script_names = [(name, "name") for name in dict.fromkeys(DECLARED_NAME.findall(text))]
    dims = [(name, "dimension") for name in graph.dims]
    modules = sorted({op.module for op in graph.walk() if op.module})
    holes = [(hole, "tensor") for hole in dict.fromkeys(HOLES.findall(earlier_text))]
    return {
        "PASSNAME": [(call(script_pass), "pass") for script_pass in passes],
        "NAME": [*script_names, *(dims if earlier_text.rstrip().endswith("resize") else [])],
        "OPGLOB": dotted_ops,
        "OPNAME": dotted_ops,
        "VALUE": holes,
        "STRING": [(json.dumps(name, ensure_ascii=False), "module") for name in modules],
        "DEVICE": [(f"@{device.name}", "device") for device in graph.devices],
    }


def call(script_pass: irgraph.Pass) -> str:
    """Return the call of a pass with its parameters: defaults, or ``?`` if required."""
    arguments = [
        f"{parameter.name} = {parameter.default if parameter.default is not None else '?'}"
        for parameter in script_pass.parameters
    ]
    return f"{script_pass.name}({', '.join(arguments)})" if arguments else script_pass.name


def _properties(subject: str) -> list[str]:
    from irgraph.language.expressions.attributes import OP_ATTRIBUTES, TENSOR_ATTRIBUTES

    if subject.startswith("%"):
        return sorted(TENSOR_ATTRIBUTES)
    return sorted({*OP_ATTRIBUTES, "time", "idle", "unread", "dead", "scope"})
