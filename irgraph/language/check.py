"""Checks a whole script before anything runs; reports all errors at once."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from irgraph.diagnostics import Diagnostic, IrgraphError, suggestion
from irgraph.ir.graph import Graph
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import Parameter
from irgraph.language.expressions.kinds import ANY, PARAMETER_TYPES
from irgraph.language.expressions.nodes import Name, Node
from irgraph.language.library import gather
from irgraph.language.patterns.nodes import Module
from irgraph.language.script import Pass, Script
from irgraph.language.statement import Statement, check_block, walk
from irgraph.language.statements.apply import Apply


def check_script(
    script: Script, graph: Graph | None = None, paths: Sequence[str | Path] = ()
) -> dict[str, Pass]:
    """Return all passes that a script can reach; raise ``IrgraphError`` with all errors."""
    problems: list[Diagnostic] = []
    passes = gather(script, paths, problems)
    check = Checker({name: declared.parameters for name, declared in passes.items()})
    if graph is not None:
        check = replace(check, dims=tuple(graph.dims), schemas=graph.schemas)
    for declared in passes.values():
        key = (id(declared), *map(id, passes.values()), check.dims, check.schemas)
        if key not in _SOUND:
            _check_pass(declared, check.inner())
            if not check.problems:
                _SOUND.put(key, tuple(passes.values()))
    _check_cycles(passes, check)
    check_block(script.body, check)
    problems += check.problems
    if problems:
        unique = {(str(p.place), p.message): p for p in problems}
        raise IrgraphError(tuple(unique.values()))
    return passes


class _CheckedPasses(OrderedDict[object, tuple[Pass, ...]]):
    """Passes that were found sound among others, by their identities; the objects are kept."""

    def put(self, key: object, held: tuple[Pass, ...]) -> None:
        self[key] = held
        if len(self) > MOST_SOUND:
            self.popitem(last=False)


MOST_SOUND = 256
_SOUND = _CheckedPasses()


def _check_pass(declared: Pass, check: Checker) -> None:
    for parameter in declared.parameters:
        if parameter.type not in PARAMETER_TYPES:
            hint = suggestion(parameter.type, PARAMETER_TYPES)
            known = "" if hint else f"; known types: {', '.join(PARAMETER_TYPES)}"
            message = f"unknown parameter type {parameter.type!r}{hint}{known}"
            check.note(message, parameter.place)
        if parameter.default is not None:
            replace(check, names={}).argument(parameter, parameter.default)
        kind = PARAMETER_TYPES.get(parameter.type, ANY)
        check.define(parameter.name, kind, parameter.place)
    check_block(declared.body, check)


def _check_cycles(passes: Mapping[str, Pass], check: Checker) -> None:
    """Refuse passes that apply themselves, directly or through others."""
    done: set[str] = set()

    def follow(name: str, path: list[str]) -> None:
        if name in path:
            cycle = " -> ".join([*path[path.index(name) :], name])
            hint = "use 'repeat at most N { ... }' to repeat statements"
            message = f"passes apply each other recursively: {cycle}"
            check.note(message, passes[name].place, hint)
            done.update(path)
        if name in done or name not in passes:
            return
        for statement in walk(passes[name].body):
            if isinstance(statement, Apply):
                follow(statement.call.name, [*path, name])
        done.add(name)

    for name in passes:
        follow(name, [])


def unused(script: Script) -> list[Diagnostic]:
    """Return a warning for each name that a script defines and never uses.

    A script without anything is one as well.
    """
    if not script.body and not script.passes:
        hint = "write a statement, as in remove many aten.t(...), or apply a pass"
        return [Diagnostic("the script is empty", script.place, hint=hint, severity="warning")]
    blocks: list[tuple[Sequence[Parameter], Sequence[Statement]]] = [((), script.body)]
    blocks += [(declared.parameters, declared.body) for declared in script.passes]
    return [
        Diagnostic(f"{name!r} is never used", node.place, severity="warning")
        for parameters, body in blocks
        for used in [set(_used(body))]
        for name, node in _given(parameters, body)
        if name not in used
    ]


def _given(
    parameters: Sequence[Parameter], body: Sequence[Statement]
) -> Iterator[tuple[str, Node]]:
    yield from ((parameter.name, parameter) for parameter in parameters)
    yield from ((name, statement) for statement in walk(body) for name in statement.names())


def _used(body: Sequence[Statement]) -> Iterator[str]:
    for node in (inner for statement in body for inner in statement.walk()):
        if isinstance(node, Name):
            yield node.name
        elif isinstance(node, Module) and node.named:
            yield node.path
