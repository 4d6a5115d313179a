"""Checks a whole script before anything runs; reports all errors at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from irgraph.diagnostics import Diagnostic, IrgraphError, suggestion
from irgraph.facts import FactTable
from irgraph.ir.graph import Graph
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import Parameter
from irgraph.language.expressions.kinds import ANY, PARAMETER_TYPES
from irgraph.language.expressions.nodes import Name, Node
from irgraph.language.library import reachable_passes
from irgraph.language.patterns.nodes import Module
from irgraph.language.script import Pass, Script
from irgraph.language.statement import Statement, check_block, walk
from irgraph.language.statements.apply import Apply


def check_script(
    script: Script, graph: Graph | None = None, paths: Sequence[str | Path] = ()
) -> dict[str, Pass]:
    """Return all passes that a script can reach; raise ``IrgraphError`` with all errors."""
    problems: list[Diagnostic] = []
    passes = reachable_passes(script, paths, problems)
    check = Checker({name: declared.parameters for name, declared in passes.items()})
    if graph is not None:
        check = replace(check, dims=tuple(graph.dims), schemas=graph.schemas)
    for declared in passes.values():
        key = (id(declared), *map(id, passes.values()), check.dims, check.schemas)
        if key not in _CHECKED_PASSES:
            _check_pass(declared, check.inner())
            if not check.problems:
                _CHECKED_PASSES[key] = tuple(passes.values())
    _check_cycles(passes, check)
    check_block(script.body, check)
    problems += check.problems
    if problems:
        unique = {(str(p.place), p.message): p for p in problems}
        raise IrgraphError(tuple(unique.values()))
    return passes


MAX_CHECKED_PASSES = 256
_CHECKED_PASSES = FactTable[object, tuple[Pass, ...]](MAX_CHECKED_PASSES)
"""Checked passes by their ids and context; the passes are stored, so that the ids stay valid."""


def _check_pass(declared: Pass, check: Checker) -> None:
    for parameter in declared.parameters:
        if parameter.type not in PARAMETER_TYPES:
            hint = suggestion(parameter.type, PARAMETER_TYPES)
            type_list = "" if hint else f"; known types: {', '.join(PARAMETER_TYPES)}"
            message = f"unknown parameter type {parameter.type!r}{hint}{type_list}"
            check.note(message, parameter.place)
        if parameter.default is not None:
            replace(check, names={}).argument(parameter, parameter.default)
        kind = PARAMETER_TYPES.get(parameter.type, ANY)
        check.define(parameter.name, kind, parameter.place)
    check_block(declared.body, check)


def _check_cycles(passes: Mapping[str, Pass], check: Checker) -> None:
    """Note passes that apply themselves, directly or through others."""
    visited: set[str] = set()

    def visit(name: str, chain: list[str]) -> None:
        if name in chain:
            cycle = " -> ".join([*chain[chain.index(name) :], name])
            hint = "use 'repeat at most N { ... }' to repeat statements"
            message = f"passes apply each other recursively: {cycle}"
            check.note(message, passes[name].place, hint)
            visited.update(chain)
        if name in visited or name not in passes:
            return
        for statement in walk(passes[name].body):
            if isinstance(statement, Apply):
                visit(statement.call.name, [*chain, name])
        visited.add(name)

    for name in passes:
        visit(name, [])


def unused_name_warnings(script: Script) -> list[Diagnostic]:
    """Return a warning for each name that a script defines and never uses.

    An empty script also has a warning.
    """
    if not script.body and not script.passes:
        hint = "write a statement, as in remove many aten.t(...), or apply a pass"
        return [Diagnostic("the script is empty", script.place, hint=hint, severity="warning")]
    blocks: list[tuple[Sequence[Parameter], Sequence[Statement]]] = [((), script.body)]
    blocks += [(declared.parameters, declared.body) for declared in script.passes]
    return [
        Diagnostic(f"{name!r} is never used", node.place, severity="warning")
        for parameters, body in blocks
        for used_names in [set(_used_names(body))]
        for name, node in _definitions(parameters, body)
        if name not in used_names
    ]


def _definitions(
    parameters: Sequence[Parameter], body: Sequence[Statement]
) -> Iterator[tuple[str, Node]]:
    yield from ((parameter.name, parameter) for parameter in parameters)
    yield from ((name, statement) for statement in walk(body) for name in statement.names())


def _used_names(body: Sequence[Statement]) -> Iterator[str]:
    for node in (inner for statement in body for inner in statement.walk()):
        if isinstance(node, Name):
            yield node.name
        elif isinstance(node, Module) and node.is_name:
            yield node.path
