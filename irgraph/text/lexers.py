"""Pygments lexers for ``model.ir`` and for scripts, named ``irgraph-model`` and ``irgraph``.

Their words and literals come from the grammars; ``docs/editors/build.py`` writes the same rules for
editors.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pygments.lexer import RegexLexer, bygroups
from pygments.token import (
    Comment,
    Keyword,
    Name,
    Number,
    Operator,
    Punctuation,
    String,
    Text,
    Whitespace,
)

from grammars.vocabulary import Vocabulary

Rule = tuple[str, tuple[Any, ...]]
"""A regular expression, and the token type of its match or of each of its groups."""


def one_of(words: set[str], before: str = r"\b", after: str = r"\b") -> str:
    """Return a pattern for whole words."""
    return f"{before}(?:{'|'.join(sorted(words))}){after}"


SCRIPT, MODEL = Vocabulary("transform"), Vocabulary("model")

STATEMENTS = SCRIPT.first_words("_statement", "pass")
CONSTANTS = SCRIPT.words("BOOL", "PHASE")
CLAUSES = SCRIPT.words() - STATEMENTS - CONSTANTS
DECLARATIONS = MODEL.first_words("header", "declaration", "returned")
LOCATION_WORDS = MODEL.words() - DECLARATIONS - CONSTANTS - {"module"}

COMMON: list[Rule] = [
    (r"\s+", (Whitespace,)),
    (SCRIPT.terminals["COMMENT"], (Comment.Single,)),
    (SCRIPT.terminals["STRING"], (String.Double,)),
    (r"(%\w+)(!)", (Name.Variable, Operator)),
    (r"%\w+", (Name.Variable,)),
    (MODEL.terminals["BUFFER"], (Name.Label,)),
    (MODEL.terminals["DEVICE"], (Name.Constant,)),
    (one_of(CONSTANTS), (Keyword.Constant,)),
    (rf"\b{SCRIPT.terminals['DTYPE']}", (Keyword.Type,)),
    (SCRIPT.terminals["QUANTITY"], (Number,)),
    (r"-?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?(?!\w)", (Number,)),
    (r"-?(?:inf|nan)\b", (Number.Float,)),
    (r"\.\.\.", (Keyword.Pseudo,)),
    (SCRIPT.terminals["BLANK"], (Keyword.Pseudo,)),
]
"""Rules that both languages share."""

TAIL: list[Rule] = [
    (r"[A-Za-z_]\w*(?=\s*=(?!=))", (Name.Attribute,)),
    (r"[A-Za-z_]\w*", (Name,)),
    (r"==|!=|<=|>=|\+-|[-+*/<>=~!]", (Operator,)),
    (r"[][{}(),:;.|]", (Punctuation,)),
    (r".", (Text,)),
]

MODEL_RULES: list[Rule] = [
    (one_of(DECLARATIONS, "^"), (Keyword.Declaration,)),
    (one_of(LOCATION_WORDS, after=r"(?=[ \t])"), (Keyword,)),
    (r"module(?=[ \t]+\")", (Keyword,)),
    *COMMON,
    (r"[A-Za-z_]\w*(?:\.\w+)+(?=\()", (Name.Function,)),
    *TAIL,
]

SCRIPT_RULES: list[Rule] = [
    (r"(pass|apply)(\s+)([a-z][a-z0-9-]*)", (Keyword.Declaration, Whitespace, Name.Function)),
    *COMMON,
    (r"(op)(\.[a-z]\w*)", (Name.Builtin, Name.Attribute)),
    (r"[A-Za-z_]\w*(?:\.(?:[\w*]|\{[\w*,]+\})+)+(?=\s*[\s({]|$)", (Name.Function,)),
    (r"\.[a-z]\w*", (Name.Attribute,)),
    (one_of(STATEMENTS, after=r"\b(?!\s*=)"), (Keyword,)),
    (one_of(CLAUSES, after=r"\b(?!\s*=[^=])"), (Keyword.Reserved,)),
    *TAIL,
]


def _tokens(rules: list[Rule]) -> dict[str, list[object]]:
    return {"root": [(regex, bygroups(*k) if len(k) > 1 else k[0]) for regex, k in rules]}


class ModelLexer(RegexLexer):  # type: ignore[misc]
    """Lexer of ``model.ir``."""

    name = "irgraph model"
    url = ""
    aliases: ClassVar[list[str]] = ["irgraph-model"]
    filenames: ClassVar[list[str]] = ["*.ir"]
    mimetypes: ClassVar[list[str]] = []
    tokens: ClassVar[dict[str, list[object]]] = _tokens(MODEL_RULES)


class ScriptLexer(RegexLexer):  # type: ignore[misc]
    """Lexer of scripts and passes."""

    name = "irgraph script"
    url = ""
    aliases: ClassVar[list[str]] = ["irgraph"]
    filenames: ClassVar[list[str]] = ["*.irg"]
    mimetypes: ClassVar[list[str]] = []
    tokens: ClassVar[dict[str, list[object]]] = _tokens(SCRIPT_RULES)


__all__ = ["ModelLexer", "ScriptLexer"]
