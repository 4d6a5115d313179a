"""Passes by name: those of a script, then those of the folders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import passes as shipped
from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan, fail, suggestion
from irgraph.language.parse import parse_script
from irgraph.language.script import Pass, Script
from irgraph.language.statement import walk
from irgraph.language.statements.apply import Apply


def load_pass(name: str, paths: Sequence[str | Path] = (), place: SourceSpan | None = None) -> Pass:
    """Return a pass of the library; raise ``IrgraphError`` where there is none or it is unsound.

    ``place`` is where it was asked for.
    """
    try:
        file = shipped.find(name, paths)
    except (OSError, UnicodeDecodeError) as error:
        raise fail(f"the pass {name!r} cannot be read: {error}", place) from None
    if file is None:
        alike = suggestion(name, shipped.names(paths))
        raise fail(f"unknown pass {name!r}{alike}", place, hint="irgraph passes lists them")
    script = _parsed(file.text, file.source)
    if len(script.passes) != 1 or script.body or script.passes[0].name != name:
        message = (
            f"a library file must hold exactly one pass, of the file's name; expected {name!r}"
        )
        raise fail(message, SourceSpan(file.source))
    return script.passes[0]


@lru_cache(maxsize=256)
def _parsed(text: str, source: str) -> Script:
    """Return the script of a file; the same text is read once."""
    return parse_script(text, source)


def gather(
    script: Script, paths: Sequence[str | Path], problems: list[Diagnostic]
) -> dict[str, Pass]:
    """Return every pass that a script holds or applies, by name.

    What is wrong is added to ``problems``.
    """
    found: dict[str, Pass] = {}
    for declared in script.passes:
        if declared.name in found:
            first = Diagnostic("first here", found[declared.name].place, severity="note")
            message = f"the pass {declared.name!r} is defined twice"
            problems.append(Diagnostic(message, declared.place, (first,)))
        found[declared.name] = declared
    waiting = [script.body, *(declared.body for declared in script.passes)]
    missing: set[str] = set()
    while waiting:
        for statement in walk(waiting.pop()):
            if not isinstance(statement, Apply) or statement.call.name in {*found, *missing}:
                continue
            name = statement.call.name
            try:
                found[name] = load_pass(name, paths, statement.call.place)
                waiting.append(found[name].body)
            except IrgraphError as error:
                missing.add(name)
                problems.extend(_with_known(error, name, found))
    return found


def _with_known(error: IrgraphError, name: str, found: dict[str, Pass]) -> list[Diagnostic]:
    """Add the closest name among the script's own passes."""
    hint = suggestion(name, found)
    first, *others = error.diagnostics
    if hint and "did you mean" not in first.message and first.message.startswith("unknown pass"):
        first = Diagnostic(first.message + hint, first.place, first.notes, first.hint)
    return [first, *others]
