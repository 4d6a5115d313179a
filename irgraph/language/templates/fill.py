"""Builds the op of a template from the matches that it replaces."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

from irgraph.ir.op import Op, Result, Value, tensors_in
from irgraph.ir.schema import Argument, Schema, parse_schema, resolve, schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.language.expressions.evaluate import EvaluationError, Scope, evaluate
from irgraph.language.expressions.nodes import Expression, ListOf, Literal, Splat, Variable
from irgraph.language.expressions.units import base_value
from irgraph.language.expressions.values import equal_bindings, spell
from irgraph.language.patterns.arguments import PassedArgument, is_default
from irgraph.language.patterns.nodes import (
    Bound,
    ListTemplate,
    NamedArgument,
    NewOp,
    Part,
    Rest,
    flatten_lists,
)


class BuildError(ValueError):
    """A template cannot be filled from these matches; the message says why."""


@dataclass(frozen=True)
class Filler:
    """The values to fill a template: a scope for each match, and their unnamed arguments."""

    scopes: Sequence[Scope]
    rest: Sequence[Sequence[PassedArgument]] = ()

    def make(self, new: NewOp, schemas: Sequence[str]) -> Op:
        """Return the op of a template; ``schemas`` are those that the model declares."""
        positional = [v for part in new.parts for v in self._positional_values(part)]
        named_values = {
            part.name: self.value(part.value)
            for part in new.parts
            if isinstance(part, NamedArgument)
        }
        if any(isinstance(part, Rest) for part in new.parts):
            named_values = {**self._rest_arguments(), **named_values}
        results = cast(
            tuple[Result, ...],
            tuple(v for part in new.results for v in self._positional_values(part)),
        )
        written_names = {t.name for t in self._written_tensors(new)}
        reasons = []
        for schema in schemas_for(new.op, schemas):
            op = _build_op(schema, positional, named_values, results, written_names)
            if isinstance(op, Op) and resolve(op, schemas) is not None:
                return op
            reasons.append(op if isinstance(op, str) else "its operands do not fit its schema")
        raise BuildError(f"{new.op}: {reasons[0] if reasons else 'it has no schema'}")

    def results(self, new: NewOp) -> list[Tensor]:
        """Return the result tensors of a template."""
        return list(tensors_in(v for part in new.results for v in self._positional_values(part)))

    def _positional_values(self, part: Part) -> Iterator[Value]:
        if isinstance(part, ListTemplate):
            yield tuple(v for item in part.items for v in self._positional_values(item))
        elif isinstance(part, Splat):
            yield from (scope.values[part.name] for scope in self.scopes)
        elif isinstance(part, Literal):
            yield base_value(part.value)
        elif isinstance(part, Bound):
            yield self._common_value(Variable(part.name))

    def value(self, expression: Expression) -> Value:
        """Return the value of a named argument; a splat in a list collects every match's value."""
        if isinstance(expression, ListOf) and any(isinstance(i, Splat) for i in expression.items):
            return tuple(v for item in expression.items for v in self._item_values(item))
        return self._common_value(expression)

    def _item_values(self, item: Expression | Splat) -> Iterator[Value]:
        if isinstance(item, Splat):
            yield from (scope.values[item.name] for scope in self.scopes)
        else:
            yield self._common_value(item)

    def _common_value(self, expression: Expression) -> Value:
        """Return an expression's value, which must be equal in all matches."""
        try:
            values = [evaluate(expression, scope) for scope in self.scopes]
        except EvaluationError as error:
            raise BuildError(str(error)) from None
        for value in values[1:]:
            if not equal_bindings(values[0], value):
                differ = f"{spell(values[0])} and {spell(value)}"
                message = f"the matches differ in {expression} ({differ}): group by it"
                raise BuildError(message)
        return values[0]

    def _rest_arguments(self) -> dict[str, Value]:
        """Return the arguments that ``...`` replaces, which must be equal in all matches."""
        first, *remaining = [
            {p.name: p.value for p in rest if p.is_explicit} for rest in self.rest
        ] or [{}]
        for other in remaining:
            if other.keys() != first.keys() or not all(
                equal_bindings(first[k], other[k]) for k in other
            ):
                names = ", ".join(sorted(first.keys() | other.keys()))
                message = f"the matches differ in what '...' stands for ({names})"
                raise BuildError(f"{message}: name it, as in {names} = %a, and group by it")
        return first

    def _written_tensors(self, new: NewOp) -> Iterator[Tensor]:
        for part in flatten_lists(new.parts):
            if isinstance(part, (Bound, Splat)) and part.written:
                yield from tensors_in(self._positional_values(part))


def schemas_for(name: str, declared: Sequence[str]) -> list[Schema]:
    """Return the schemas of an op's name, those declared by the model first."""
    declared_schemas = [schema for schema in map(parse_schema, declared) if schema.name == name]
    return [*declared_schemas, *schemas_of(name)]


def _build_op(
    schema: Schema,
    positional: Sequence[Value],
    named_values: dict[str, Value],
    results: tuple[Result, ...],
    written: set[str],
) -> Op | str:
    """Return an op in canonical form, or the reason why the arguments do not fit this schema."""
    if len(positional) > len(schema.arguments):
        return f"it takes {len(schema.arguments)} arguments, not {len(positional)}"
    pairs = list(zip(schema.arguments, positional, strict=False))
    argument_by_name = {argument.name: argument for argument in schema.arguments}
    for name, value in named_values.items():
        if name not in argument_by_name:
            return f"it has no argument {name!r}"
        pairs.append((argument_by_name[name], value))
    operands: list[Value] = []
    attributes: dict[str, Value] = {}
    for argument, value in pairs:
        if _is_operand(argument, value, schema, len(operands)):
            operands.append(value)
        elif not is_default(argument, value):
            attributes[argument.name] = value
    return Op(schema.name, tuple(operands), results, attributes, frozenset(written))


def _is_operand(argument: Argument, value: Value, schema: Schema, count: int) -> bool:
    """Return whether a value is an operand: a tensor with only tensors before it."""
    tensors = tuple(tensors_in((value,)))
    is_tensors = bool(tensors) or (value == () and argument.is_tensor)
    return is_tensors and not argument.keyword and schema.arguments[count] is argument
