"""The error class for users of irgraph, and the source position that it shows."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from irgraph.diagnostics.escaping import visible_text


@dataclass(frozen=True, slots=True)
class SourceSpan:
    """A segment of a text.

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
    """One message about one position in a file; ``str`` shows its line.

    Attributes:
        message: the problem.
        place: its position, if known.
        notes: messages about other positions.
        hint: a remedy.
        severity: ``error``, ``warning`` or ``note``.
    """

    message: str
    place: SourceSpan | None = None
    notes: tuple[Diagnostic, ...] = ()
    hint: str = ""
    severity: str = "error"

    def __str__(self) -> str:
        """Return the message with its source line and carets, then notes and hint."""
        location = f"{self.place}: " if self.place else ""
        lines = [f"{location}{self.severity}: {self.message}"]
        lines.extend(_excerpt(self.place))
        lines.extend(str(note) for note in self.notes)
        if self.hint:
            lines.append(f"hint: {self.hint}")
        return visible_text("\n".join(lines))


MAX_LINE_CHARACTERS = 160
"""Maximum number of characters of a source line; a longer line is cut around the marked ones."""

CHARACTERS_BEFORE_MARK = 40
"""Number of characters of a cut line that are shown before the marked ones."""


def _excerpt(place: SourceSpan | None) -> list[str]:
    if place is None or not place.line or not place.text:
        return []
    rows = place.text.splitlines()
    if place.line > len(rows):
        return []
    row = rows[place.line - 1]
    start = place.column - 1
    length = max(1, min(place.length, len(row) - start))
    if len(row) > MAX_LINE_CHARACTERS:
        first = max(0, min(start - CHARACTERS_BEFORE_MARK, len(row) - MAX_LINE_CHARACTERS))
        row = (
            ("…" if first else "")
            + row[first : first + MAX_LINE_CHARACTERS]
            + "…" * (first + MAX_LINE_CHARACTERS < len(row))
        )
        start += bool(first) - first
        length = max(1, min(length, len(row) - start))
    margin = f"{place.line:>4} | "
    return [margin + row, " " * (len(margin) - 2) + "| " + " " * start + "^" * length]


@dataclass(eq=False)
class IrgraphError(Exception):
    """Raised if a request of the user cannot be fulfilled; ``str`` is the whole message.

    Attributes:
        diagnostics: the reasons, each with its position.
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
    """Return ``; did you mean 'x'?`` for the closest known word, ``""`` if none is similar.

    Dotted names are compared by their last part if all others are equal.
    """
    candidates = list(words)
    library, dot, base = word.rpartition(".")
    prefix = library + dot
    tails = [other.removeprefix(prefix) for other in candidates if dot and other.startswith(prefix)]
    if tails:
        word, candidates = base, tails
    matches = difflib.get_close_matches(word, candidates, n=1, cutoff=0.6)
    return f"; did you mean {(prefix if tails else '') + matches[0]!r}?" if matches else ""


def place_at(text: str, source: str, offset: int, length: int = 1) -> SourceSpan:
    """Return the span at a character offset; line and column are computed only now."""
    line = text.count("\n", 0, offset) + 1
    column = offset - (text.rfind("\n", 0, offset) + 1) + 1
    return SourceSpan(source, text, line, column, length)
