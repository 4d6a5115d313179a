"""Checks templates against the schemas of their ops."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from irgraph.diagnostics import SourceSpan, suggestion
from irgraph.ir.schema import Argument, Schema, op_suggestion
from irgraph.language.checking.checker import Checker
from irgraph.language.checking.patterns import schema_hint
from irgraph.language.clauses import Swap
from irgraph.language.expressions.kinds import Kinds, unbound_name_problem
from irgraph.language.expressions.nodes import Expression, ListOf, Splat, Variable
from irgraph.language.expressions.values import format_count
from irgraph.language.patterns.nodes import (
    Bound,
    ListTemplate,
    NamedArgument,
    NewOp,
    Part,
    Rest,
    Selection,
    Template,
    flatten_lists,
)
from irgraph.language.templates.fill import schemas_for


def check_op(
    check: Checker,
    new: NewOp,
    kinds: Kinds,
    operand_names: Collection[str],
    result_names: Collection[str],
    *,
    lists_by_name: bool = False,
) -> None:
    """Check a new op: its schema, and that the pattern binds the names that it uses.

    ``operand_names`` are the names allowed in its operands, ``result_names`` in its results.
    With ``lists_by_name``, a name may be a list of results.
    """
    for parts, names in ((new.parts, operand_names), (new.results, result_names)):
        for part in flatten_lists(parts):
            if isinstance(part, (Bound, Splat)) and part.name not in names:
                check.note(*unbound_name_problem(part.name, result_names, part.place))
    _check_schema(check, new, lists_by_name)
    for part in flatten_lists(new.parts):
        if not isinstance(part, NamedArgument):
            continue
        items = part.value.items if isinstance(part.value, ListOf) else (part.value,)
        for item in items:
            kinds.infer(Variable(item.name, place=item.place) if isinstance(item, Splat) else item)


def check_sequence(check: Checker, template: Template, kinds: Kinds) -> set[str]:
    """Check the ops of a template, which may use results of earlier ones; return all names."""
    names = set(kinds.variables)
    for new in template.ops:
        for part in (p for p in flatten_lists(new.parts) if isinstance(p, Splat)):
            message = "'*' collects all matches of a group: only 'fuse' forms groups"
            check.note(message, part.place)
        results = {p.name for p in flatten_lists(new.results) if isinstance(p, Bound)}
        inner_kinds = replace(kinds, variables=dict.fromkeys(names, 1))
        check_op(check, new, inner_kinds, names, names | results, lists_by_name=True)
        names |= results
    return names


def check_used(
    check: Checker,
    selection: Selection,
    template: Template,
    bound: Mapping[str, int],
    expressions: Sequence[Expression | None] = (),
    swaps: Sequence[Swap] = (),
) -> None:
    """Note names that a pattern binds and nothing uses: a typo, or a silently lost value."""
    used = {name for name, times in bound.items() if times > 1}
    used.update(name for swap in swaps for name in (swap.new, swap.old))
    for node in (selection.condition, *expressions, template):
        nodes = node.walk() if node is not None else ()
        used.update(n.name for n in nodes if isinstance(n, (Variable, Splat, Bound)))
    for name in bound:
        if name not in used:
            message = f"%{name} is bound but never used; write _ if its value does not matter"
            check.note(message, selection.place)


def _check_schema(check: Checker, new: NewOp, lists_by_name: bool) -> None:
    schemas = schemas_for(new.op, check.schemas)
    if not schemas:
        similar = op_suggestion(new.op)
        hint = "" if similar else 'declare it in the model: schema "my::op(Tensor x) -> Tensor"'
        check.note(f"unknown op {new.op}{similar}", new.place, hint)
        return
    problems = [
        _schema_mismatch(new, schema) or _result_mismatch(new, schema, lists_by_name)
        for schema in schemas
    ]
    if all(problems):
        message, place = problems[0] or ("", new.place)
        check.note(f"{new.op}: {message}", place, schema_hint(schemas))


Mismatch = tuple[str, SourceSpan] | None


def _schema_mismatch(new: NewOp, schema: Schema) -> Mismatch:
    """Return the reason and the place of a mismatch of arguments; ``None`` if there is none."""
    positional = [part for part in new.parts if not isinstance(part, (NamedArgument, Rest))]
    named_parts = {part.name: part for part in new.parts if isinstance(part, NamedArgument)}
    count = len(schema.arguments)
    if len(positional) > count:
        message = f"it takes {format_count(count, 'argument')}, not {len(positional)}"
        return message, positional[count].place
    for part, argument in zip(positional, schema.arguments, strict=False):
        reason = _part_mismatch(part, argument)
        if reason:
            return reason, part.place
    arguments = [argument.name for argument in schema.arguments]
    for name, named_part in named_parts.items():
        if name not in arguments:
            return f"it has no argument {name!r}{suggestion(name, arguments)}", named_part.place
        if arguments.index(name) < len(positional):
            return f"{name!r} is given twice", named_part.place
    if not any(isinstance(part, Rest) for part in new.parts):
        for argument in schema.arguments[len(positional) :]:
            if argument.default is None and argument.name not in named_parts:
                return f"it needs an argument {argument.name!r}", new.place
    return None


def _part_mismatch(part: Part, argument: Argument) -> str:
    is_list = isinstance(part, ListTemplate)
    if argument.is_tensor and argument.is_list and isinstance(part, Splat):
        return f"{argument.name!r} is a list: write [{part}]"
    if isinstance(part, Splat) or (is_list and argument.is_tensor and not argument.is_list):
        return f"{argument.name!r} is a single tensor, not a list"
    items = part.items if isinstance(part, ListTemplate) else (part,)
    written = any(getattr(item, "written", False) for item in items)
    if written and not argument.written:
        return f"it does not write {argument.name!r} in place: drop the '!'"
    if argument.written and not written and items:
        return f"it writes {argument.name!r} in place: mark it with '!', as in {items[0]}!"
    return ""


def _result_mismatch(new: NewOp, schema: Schema, lists_by_name: bool) -> Mismatch:
    returns = schema.fresh_returns
    if any(isinstance(part, Rest) for part in new.results):
        return "'...' is not allowed among the results of a new op", new.place
    if len(new.results) > len(returns):
        place = new.results[len(returns)].place
        return f"it has {format_count(len(returns), 'result')}, not {len(new.results)}", place
    for part, declared in zip(new.results, returns, strict=False):
        is_name = lists_by_name and isinstance(part, Bound)
        if declared.is_list and not (is_name or isinstance(part, ListTemplate)):
            return f"its result is a list: write [{part}]", part.place
        if not declared.is_list and not isinstance(part, Bound):
            return "its result is a single tensor, not a list", part.place
    return None
