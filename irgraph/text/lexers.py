"""Pygments lexers for ``model.ir`` and for scripts, named ``irgraph-model`` and ``irgraph``."""

from __future__ import annotations

from typing import ClassVar

from pygments.lexer import RegexLexer, bygroups, include, words
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

STATEMENTS = (
    "apply", "cast", "expect", "find", "fuse", "insert", "let", "parallelize", "pass", "place",
    "remove", "reorder", "repeat", "replace", "report", "resize", "shard", "sweep", "target",
)  # fmt: skip
"""Words that begin a statement."""

CLAUSES = (
    "after", "and", "as", "assuming", "at", "balanced", "before", "best", "by", "caching",
    "earliest", "first", "for", "from", "group", "having", "in", "into", "joined", "last", "latest",
    "many", "module", "most", "no", "not", "of", "on", "or", "over", "per", "scaled", "stream",
    "streams", "to", "using", "where", "with", "within",
)  # fmt: skip
"""Words within a statement."""

DECLARATIONS = ("device", "input", "model", "param", "schema", "state", "stream")
PLACES = ("from", "in", "module", "on", "phase")
DTYPES = (
    "f64", "f32", "tf32", "f16", "bf16", "f8e4m3", "f8e5m2", "i64", "i32", "i16", "i8", "u8",
    "bool", "c64", "c128",
)  # fmt: skip

COMMON: list[object] = [
    (r"\s+", Whitespace),
    (r"#[^\n]*", Comment.Single),
    (r'"(?:\\.|[^"\\\n])*"', String.Double),
    (r"(%\w+)(!)", bygroups(Name.Variable, Operator)),
    (r"%\w+", Name.Variable),
    (r"\$\w+", Name.Label),
    (r"@\w+", Name.Constant),
    (words(("true", "false", "none"), prefix=r"\b", suffix=r"\b"), Keyword.Constant),
    (words(("forward", "backward", "optimizer"), prefix=r"\b", suffix=r"\b"), Keyword.Constant),
    (words(DTYPES, prefix=r"\b", suffix=r"\b"), Keyword.Type),
    (r"\d[\d_]*(?:\.\d+)?(?:[eE][-+]?\d+)?(?:ns|us|ms|s|B|KiB|MiB|GiB|TiB|%)(?!\w)", Number),
    (r"-?\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?(?!\w)", Number),
    (r"-?(?:inf|nan)\b", Number.Float),
    (r"\.\.\.", Keyword.Pseudo),
]
"""What both languages are made of."""

TAIL: list[object] = [
    (r"[A-Za-z_]\w*(?=\s*=(?!=))", Name.Attribute),
    (r"[A-Za-z_]\w*", Name),
    (r"==|!=|<=|>=|\+-|[-+*/<>=~!]", Operator),
    (r"[][{}(),:;.|]", Punctuation),
    (r".", Text),
]


class ModelLexer(RegexLexer):  # type: ignore[misc]
    """Highlights ``model.ir``."""

    name = "irgraph model"
    url = ""
    aliases: ClassVar[list[str]] = ["irgraph-model"]
    filenames: ClassVar[list[str]] = ["*.ir"]
    mimetypes: ClassVar[list[str]] = []

    tokens: ClassVar[dict[str, list[object]]] = {
        "common": COMMON,
        "root": [
            (words(DECLARATIONS, prefix=r"^", suffix=r"\b"), Keyword.Declaration),
            (r"(in|on|phase|from)(?=[ \t])", Keyword),
            (r"module(?=[ \t]+\")", Keyword),
            include("common"),
            (r"[A-Za-z_]\w*(?:\.\w+)+(?=\()", Name.Function),
            (r"_(?!\w)", Keyword.Pseudo),
            *TAIL,
        ],
    }


class ScriptLexer(RegexLexer):  # type: ignore[misc]
    """Highlights scripts and passes."""

    name = "irgraph script"
    url = ""
    aliases: ClassVar[list[str]] = ["irgraph"]
    filenames: ClassVar[list[str]] = ["*.irg"]
    mimetypes: ClassVar[list[str]] = []

    tokens: ClassVar[dict[str, list[object]]] = {
        "common": COMMON,
        "root": [
            (
                r"(pass|apply)(\s+)([a-z][a-z0-9-]*)",
                bygroups(Keyword.Declaration, Whitespace, Name.Function),
            ),
            include("common"),
            (r"(op)(\.[a-z]\w*)", bygroups(Name.Builtin, Name.Attribute)),
            (r"[A-Za-z_]\w*(?:\.(?:[\w*]|\{[\w*,]+\})+)+(?=\s*[\s({])", Name.Function),
            (r"\.[a-z]\w*", Name.Attribute),
            (words(STATEMENTS, prefix=r"\b", suffix=r"\b(?!\s*=)"), Keyword),
            (words(CLAUSES, prefix=r"\b", suffix=r"\b(?!\s*=[^=])"), Keyword.Reserved),
            (r"_(?!\w)", Keyword.Pseudo),
            *TAIL,
        ],
    }


__all__ = ["ModelLexer", "ScriptLexer"]
