"""Names that a script gives and never uses: each is a warning, as it may be a slip."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from irgraph.language.expressions import Name, Node
from irgraph.language.patterns import Module
from irgraph.language.tree import Let, Parameter, Script, Statement, Sweep, walk
from irgraph.text.diagnostics import Diagnostic, Place


def unused(script: Script) -> list[Diagnostic]:
    """Return a warning for each ``let``, parameter and name of a sweep that nothing uses."""
    blocks: list[tuple[Sequence[Parameter], tuple[Statement, ...]]] = [((), script.body)]
    blocks += [(declared.parameters, declared.body) for declared in script.passes]
    return [
        Diagnostic(f"{name!r} is never used", place, severity="warning")
        for parameters, body in blocks
        for used in [set(_used(body))]
        for name, place in _given(parameters, body)
        if name not in used
    ]


def _given(
    parameters: Sequence[Parameter], body: tuple[Statement, ...]
) -> Iterator[tuple[str, Place]]:
    for parameter in parameters:
        yield parameter.name, parameter.place
    for statement in walk(body):
        if isinstance(statement, Let):
            yield statement.name, statement.place
        elif isinstance(statement, Sweep):
            yield from ((name, statement.place) for name, _ in statement.axes)


def _used(node: object) -> Iterator[str]:
    """Yield the names that a node and all below it use."""
    if isinstance(node, Name):
        yield node.name
    elif isinstance(node, Module) and node.named:
        yield node.path
    elif isinstance(node, tuple):
        for item in node:
            yield from _used(item)
    elif isinstance(node, Node):
        for part in fields(node):
            if part.name != "place":
                yield from _used(getattr(node, part.name))
