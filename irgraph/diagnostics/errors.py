"""The one kind of error that a user meets, and the place that it shows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from irgraph.diagnostics.visible import visible


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A stretch of a text.

    Attributes:
        source: the file's name as the user gave it, or a word such as ``-e`` for inline text.
        text: the whole text, for the line that is shown; may be empty.
        line, column: of the first character, counted from 1; line 0 means no line is known.
        length: characters to mark.
    """

    source: str
    text: str = ""
    line: int = 0
    column: int = 1
    length: int = 1

    def __str__(self) -> str:
        """Return ``file:line:column``, as far as known."""
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message about one place; ``str`` shows the place's line.

    Attributes:
        message: what is wrong.
        place: where, if that is known.
        notes: about other places.
        hint: what to do.
        severity: ``error``, ``warning`` or ``note``.
    """

    message: str
    place: SourceSpan | None = None
    notes: tuple[Diagnostic, ...] = ()
    hint: str = ""
    severity: str = "error"

    def __str__(self) -> str:
        """Return the message with its source line and carets, then notes and hint."""
        where = f"{self.place}: " if self.place else ""
        lines = [f"{where}{self.severity}: {self.message}"]
        lines.extend(_excerpt(self.place))
        lines.extend(str(note) for note in self.notes)
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return visible("\n".join(lines))


WIDTH = 160
"""Characters of a source line that are shown; a longer one is cut around what is meant."""

BEFORE = 40
"""Characters of a cut line that are shown before what is meant."""


def _excerpt(place: SourceSpan | None) -> list[str]:
    if place is None or not place.line or not place.text:
        return []
    rows = place.text.splitlines()
    if place.line > len(rows):
        return []
    row = rows[place.line - 1]
    start = place.column - 1
    length = max(1, min(place.length, len(row) - start))
    if len(row) > WIDTH:
        first = max(0, min(start - BEFORE, len(row) - WIDTH))
        row = ("…" if first else "") + row[first : first + WIDTH] + "…" * (first + WIDTH < len(row))
        start += bool(first) - first
        length = max(1, min(length, len(row) - start))
    margin = f"{place.line:>4} | "
    return [margin + row, " " * (len(margin) - 2) + "| " + " " * start + "^" * length]


@dataclass(eq=False)
class IrgraphError(Exception):
    """What a user did cannot be done; ``str`` is the whole message.

    Attributes:
        diagnostics: why, each with its place.
        exit_code: of a command: 1 the answer is no; 2 wrong usage; 4 unusable input.
    """

    diagnostics: Sequence[Diagnostic] = field(default_factory=tuple)
    exit_code: int = 4

    def __str__(self) -> str:
        """Return all diagnostics, one below the other."""
        return "\n".join(map(str, self.diagnostics))


def fail(
    message: str,
    place: SourceSpan | None = None,
    *,
    hint: str = "",
    notes: Iterable[Diagnostic] = (),
    exit_code: int = 4,
) -> IrgraphError:
    """Return an error with a single diagnostic, ready to raise."""
    return IrgraphError((Diagnostic(message, place, tuple(notes), hint),), exit_code)


def suggestion(word: str, words: Iterable[str]) -> str:
    """Return ``; did you mean 'x'?`` for the closest known word, or nothing.

    Of dotted names the last parts are compared, where the others are the same.
    """
    known = list(words)
    library, dot, base = word.rpartition(".")
    prefix = library + dot
    tails = [other.removeprefix(prefix) for other in known if dot and other.startswith(prefix)]
    if tails:
        word, known = base, tails
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.6)
    return f"; did you mean {(prefix if tails else '') + found[0]!r}?" if found else ""


def place_at(text: str, source: str, offset: int, length: int = 1) -> SourceSpan:
    """Return the place of a character offset: line and column are computed only now."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return SourceSpan(source, text, line, column, length)
