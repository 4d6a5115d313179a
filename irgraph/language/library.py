"""Passes by name: first those of a script, then those of the library's folders."""

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
    """Return a pass of the library; raise ``IrgraphError`` if there is none or it is malformed.

    ``place`` is the position of its call.
    """
    try:
        file = shipped.find(name, paths)
    except (OSError, UnicodeDecodeError) as error:
        raise fail(f"the pass {name!r} cannot be read: {error}", place) from None
    if file is None:
        similar = suggestion(name, shipped.names(paths))
        raise fail(f"unknown pass {name!r}{similar}", place, hint="irgraph passes lists them")
    script = _parse_cached(file.text, file.source)
    if len(script.passes) != 1 or script.body or script.passes[0].name != name:
        message = (
            f"a library file must hold exactly one pass, of the file's name; expected {name!r}"
        )
        raise fail(message, SourceSpan(file.source))
    return script.passes[0]


@lru_cache(maxsize=256)
def _parse_cached(text: str, source: str) -> Script:
    """Return the script of a file; the same text is parsed once."""
    return parse_script(text, source)


def reachable_passes(
    script: Script, paths: Sequence[str | Path], problems: list[Diagnostic]
) -> dict[str, Pass]:
    """Return every pass that a script declares or applies, by name.

    Errors are appended to ``problems``.
    """
    by_name: dict[str, Pass] = {}
    for declared in script.passes:
        if declared.name in by_name:
            first = Diagnostic("first here", by_name[declared.name].place, severity="note")
            message = f"the pass {declared.name!r} is defined twice"
            problems.append(Diagnostic(message, declared.place, (first,)))
        by_name[declared.name] = declared
    pending = [script.body, *(declared.body for declared in script.passes)]
    missing: set[str] = set()
    while pending:
        for statement in walk(pending.pop()):
            if not isinstance(statement, Apply) or statement.call.name in {*by_name, *missing}:
                continue
            name = statement.call.name
            try:
                by_name[name] = load_pass(name, paths, statement.call.place)
                pending.append(by_name[name].body)
            except IrgraphError as error:
                missing.add(name)
                problems.extend(_add_suggestion(error, name, by_name))
    return by_name


def _add_suggestion(error: IrgraphError, name: str, by_name: dict[str, Pass]) -> list[Diagnostic]:
    """Return an error's diagnostics with the closest name among the known passes added."""
    hint = suggestion(name, by_name)
    first, *remaining = error.diagnostics
    if hint and "did you mean" not in first.message and first.message.startswith("unknown pass"):
        first = Diagnostic(first.message + hint, first.place, first.notes, first.hint)
    return [first, *remaining]
