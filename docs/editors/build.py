"""Write the TextMate grammars, with the words that the Pygments lexers know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from irgraph.text.lexers import CLAUSES, DECLARATIONS, DTYPES, STATEMENTS

FOLDER = Path(__file__).parent


def rule(match: str, name: str) -> dict[str, str]:
    """Return a pattern with its scope."""
    return {"match": match, "name": name}


def one_of(words: tuple[str, ...], before: str = r"\b", after: str = r"\b") -> str:
    """Return a pattern for whole words."""
    return f"{before}(?:{'|'.join(sorted(words, key=len, reverse=True))}){after}"


UNITS = "ns|us|ms|s|B|KiB|MiB|GiB|TiB|%"
COMMON = [
    rule(r"#.*$", "comment.line.number-sign"),
    {
        "begin": '"',
        "end": '"|$',
        "name": "string.quoted.double",
        "patterns": [rule(r"\\.", "constant.character.escape")],
    },
    rule(r"%\w+!?", "variable.other.tensor"),
    rule(r"\$\w+", "entity.name.label.buffer"),
    rule(r"@\w+", "constant.other.device"),
    rule(one_of(("true", "false", "none")), "constant.language"),
    rule(one_of(("forward", "backward", "optimizer")), "constant.language.phase"),
    rule(one_of(DTYPES), "storage.type"),
    rule(rf"-?\b\d[\d_]*(?:\.\d*)?(?:[eE][-+]?\d+)?(?:{UNITS})?(?!\w)", "constant.numeric"),
    rule(r"-?\b(?:inf|nan)\b", "constant.numeric"),
    rule(r"\.\.\.|\b_\b", "keyword.other.hole"),
]
MODEL = [
    rule(one_of(DECLARATIONS, "^"), "keyword.declaration"),
    *COMMON,
    rule(r"\b[A-Za-z_]\w*(?:\.\w+)+(?=\()", "entity.name.function"),
    rule(one_of(("in", "module", "on", "phase", "from")), "keyword.other"),
    rule(r"\b[A-Za-z_]\w*(?=\s*=)", "variable.parameter"),
]
SCRIPT = [
    {
        "match": r"\b(pass|apply)\s+([a-z][a-z0-9-]*)",
        "captures": {"1": {"name": "keyword.control"}, "2": {"name": "entity.name.function"}},
    },
    *COMMON,
    rule(r"\bop\.[a-z]\w*", "variable.language.op"),
    rule(r"\b[A-Za-z_]\w*(?:\.(?:[\w*]|\{[\w*,]+\})+)+(?=\s*[\s({]|$)", "entity.name.function"),
    rule(one_of(STATEMENTS, after=r"\b(?!\s*=)"), "keyword.control"),
    rule(one_of(CLAUSES, after=r"\b(?!\s*=[^=])"), "keyword.other"),
    rule(r"==|!=|<=|>=|[-+*/<>=~]", "keyword.operator"),
]


def grammar(name: str, suffix: str, patterns: list[dict[str, Any]]) -> str:
    """Return a TextMate grammar as JSON."""
    described = {
        "name": name,
        "scopeName": f"source.{suffix}",
        "fileTypes": [suffix],
        "patterns": patterns,
    }
    return json.dumps(described, indent=2) + "\n"


GRAMMARS = {
    "ir.tmLanguage.json": grammar("irgraph model", "ir", MODEL),
    "irg.tmLanguage.json": grammar("irgraph script", "irg", SCRIPT),
}


def main() -> None:
    """Write both grammars."""
    for name, text in GRAMMARS.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
