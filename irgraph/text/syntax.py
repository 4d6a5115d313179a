"""Errors for texts that a grammar rejects, with a position, expected terminals and a near word."""

from __future__ import annotations

import re
from collections.abc import Sequence

from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan, fail, suggestion

NAMES = {
    "VALUE": "a value such as %x", "OPNAME": "an op such as aten.relu", "STRING": "a string",
    "SIZE": "a number or size", "NUMBER": "a number", "KEY": "a name and '='", "LPAR": "'('",
    "RPAR": "')'", "LSQB": "'['", "RSQB": "']'", "LBRACE": "'{'", "RBRACE": "'}'",
    "COMMA": "','", "COLON": "':'", "EQUAL": "'='", "DEVICE": "a device such as @gpu0",
    "BUFFER": "a buffer such as $b1", "DTYPE": "an element type such as f32",
    "$END": "the end", "NAME": "a name", "PASSNAME": "a pass's name", "OPGLOB": "an op",
    "QUANTITY": "a quantity such as 20us", "BLANK": "'_'",
    "FLOAT": "a number", "BOOL": "true, false or none", "NOTES": "'['", "BANG": "'!'",
    "SEMICOLON": "';'", "PLUS": "'+'", "SLASH": "'/'", "DOT": "'.'", "MINUS": "'-'",
    "SPLAT": "'*'", "REST": "'...'", "COMPARE": "a comparison", "SIGN": "'+' or '-'",
    "TIMES": "'*' or '/'", "PHASE": "a phase", "NTH": "first or last",
    "EXTREME": "earliest or latest",
}  # fmt: skip
"""Names of the grammars' terminals in messages; keywords appear verbatim."""

MAX_EXPECTED = 6
"""Maximum number of expected terminals in a message."""
_WORD_END = re.compile(r"[A-Za-z_]+$")


def is_truncated(error: UnexpectedInput) -> bool:
    """Return whether a text ends before its grammar is complete."""
    return isinstance(error, UnexpectedToken) and error.token.type == "$END"


def syntax_error(
    error: UnexpectedInput,
    text: str,
    source: str,
    hint: str = "",
    notes: Sequence[Diagnostic] = (),
) -> IrgraphError:
    """Return the error of a text that does not fit its grammar (exit code 4).

    A hint replaces the list of expected terminals.
    """
    if is_truncated(error):
        rows = text.split("\n")
        last = max((i for i, row in enumerate(rows) if row.strip()), default=0)
        place = SourceSpan(source, text, last + 1, len(rows[last]) + 1)
        expected = "" if hint else f"; expected {_expected(error)}"
        return fail(f"the text ends too early{expected}", place, hint=hint, notes=notes)
    word = _word(error, text)
    column = error.column
    row = text.split("\n")[error.line - 1] if error.line > 0 else ""
    prefix = _WORD_END.search(row[: column - 1])
    if prefix and word[:1].isalpha():  # a keyword followed by letters is one word
        word, column = prefix[0] + word, column - len(prefix[0])
    place = SourceSpan(source, text, error.line, column, len(word))
    expected = "" if hint else f"; expected {_expected(error)}{_nearest_keyword(error, word)}"
    return fail(f"unexpected {word!r}{expected}", place, hint=hint, notes=notes)


def _word(error: UnexpectedInput, text: str) -> str:
    if isinstance(error, UnexpectedToken):
        return str(error.token)
    start = error.pos_in_stream or 0
    end = start
    while end < len(text) and (text[end].isalnum() or text[end] in "_-.%$@"):
        end += 1
    return text[start : max(end, start + 1)]


def _terminals(error: UnexpectedInput) -> list[str]:
    if isinstance(error, UnexpectedToken):
        return sorted(error.expected)
    if isinstance(error, UnexpectedCharacters):
        return sorted(error.allowed or ())
    return []


def _expected(error: UnexpectedInput) -> str:
    names = list(dict.fromkeys(NAMES.get(t, t.lower().strip("_")) for t in _terminals(error)))
    shown_names = names[:MAX_EXPECTED]
    more = ", …" if len(names) > MAX_EXPECTED else ""
    if not shown_names:
        return "something else"
    if len(shown_names) == 1:
        return shown_names[0]
    return f"{', '.join(shown_names[:-1])} or {shown_names[-1]}{more}"


def _nearest_keyword(error: UnexpectedInput, word: str) -> str:
    keywords = [t.lower() for t in _terminals(error) if t.isalpha() and t not in NAMES]
    return suggestion(word, keywords)
