"""Missing words of statements, from the state in which the parser refuses a text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

from lark import Token
from lark.exceptions import UnexpectedInput, UnexpectedToken
from lark.grammar import Terminal

import grammars
from irgraph.language.statements import statement_names


def completion_hint(error: UnexpectedInput) -> str:
    """Return the missing words of the statement at a syntax error; ``""`` if none fits there.

    The parser's stack has the statement's verb and the words read since; the grammar has the
    words of every form of it.
    """
    if not isinstance(error, UnexpectedToken) or error.interactive_parser is None:
        return ""
    verbs = {name.upper() for name in statement_names("start")}
    stack = error.interactive_parser.parser_state.value_stack
    starts = [i for i, part in enumerate(stack) if isinstance(part, Token) and part.type in verbs]
    if not starts:
        return ""
    verb, *parts = stack[starts[-1] :]
    seen = {part.type for part in parts if isinstance(part, Token)}
    missing = [word for word in required_words(verb.lower()) if word not in seen]
    accepted: set[str] = error.interactive_parser.accepts()  # type: ignore[no-untyped-call]
    if not missing or missing[0] not in accepted:
        return ""
    words = " and ".join(f"'{word.lower()}'" for word in missing)
    return f"{str(verb)!r} in line {verb.line} needs {words} here"


@cache
def required_words(verb: str) -> Sequence[str]:
    """Return the keywords that every form of a statement has after its verb, in order."""
    lark = grammars.load("transform")
    words = {t.name for t in lark.terminals if t.pattern.value == t.name.lower()}
    forms = [
        [part.name for part in rule.expansion[1:] if isinstance(part, Terminal)]
        for rule in lark.rules
        if rule.origin.name == verb
    ]
    shared = words.intersection(*forms)
    return [word for word in forms[0] if word in shared] if forms else []
