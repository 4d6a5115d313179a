"""Write the TextMate grammars: the rules of the Pygments lexers, whose words are the grammars'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pygments.token import Comment, Keyword, Name, Number, Operator, String, _TokenType

from irgraph.text.lexers import MODEL_RULES, SCRIPT_RULES, Rule

FOLDER = Path(__file__).parent
SCOPES = {
    Comment.Single: "comment.line.number-sign",
    Keyword: "keyword.control",
    Keyword.Constant: "constant.language",
    Keyword.Declaration: "keyword.declaration",
    Keyword.Pseudo: "keyword.other.hole",
    Keyword.Reserved: "keyword.other",
    Keyword.Type: "storage.type",
    Name.Attribute: "variable.parameter",
    Name.Builtin: "variable.language.op",
    Name.Constant: "constant.other.device",
    Name.Function: "entity.name.function",
    Name.Label: "entity.name.label.buffer",
    Name.Variable: "variable.other.tensor",
    Number: "constant.numeric",
    Number.Float: "constant.numeric",
    Operator: "keyword.operator",
    String.Double: "string.quoted.double",
}


def named(kind: _TokenType) -> dict[str, str]:
    """Return the scope of a kind of token, if editors should show it."""
    return {"name": SCOPES[kind]} if kind in SCOPES else {}


def pattern(rule: Rule) -> dict[str, Any]:
    """Return a lexer's rule as TextMate writes it."""
    regex, kinds = rule
    if len(kinds) == 1:
        return {"match": regex, **named(kinds[0])}
    captures = {str(i): named(kind) for i, kind in enumerate(kinds, 1) if kind in SCOPES}
    return {"match": regex, "captures": captures}


def grammar(name: str, suffix: str, rules: list[Rule]) -> str:
    """Return a TextMate grammar as JSON."""
    patterns = [pattern(rule) for rule in rules]
    described = {"name": name, "scopeName": f"source.{suffix}", "fileTypes": [suffix]}
    return json.dumps({**described, "patterns": patterns}, indent=2) + "\n"


GRAMMARS = {
    "ir.tmLanguage.json": grammar("irgraph model", "ir", MODEL_RULES),
    "irg.tmLanguage.json": grammar("irgraph script", "irg", SCRIPT_RULES),
}


def main() -> None:
    """Write both grammars."""
    for name, text in GRAMMARS.items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
