"""Checks patterns against the schemas of the ops that they name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from irgraph.diagnostics import Diagnostic, SourceSpan, suggestion
from irgraph.ir.schema import Schema, known_ops
from irgraph.language.expressions.nodes import Splat
from irgraph.language.expressions.values import format_count
from irgraph.language.patterns.nodes import (
    Bound,
    Hole,
    HoleList,
    NamedHole,
    OpPattern,
    Rest,
    Series,
    is_glob,
    op_patterns,
)
from irgraph.language.templates.fill import schemas_for

RESERVED = ("op", "count")
"""Names that are predefined in conditions."""

MAX_STARS = 3
"""Maximum number of stars in one name; more are too slow to match."""


def check_pattern(series: Series, schemas: Sequence[str], problems: list[Diagnostic]) -> None:
    """Note the problems of a pattern; ``schemas`` are the schemas that the model declares."""
    check = _PatternCheck(problems, schemas)
    check.check_many(series.ops)
    labels: set[str] = set()
    for pattern in (inner for op in series.ops for inner in op_patterns(op)):
        if pattern.label in labels:
            check.note(f"two ops have the label {pattern.label!r}", pattern.place)
        if pattern.label:
            labels.add(pattern.label)
        if pattern.label in RESERVED:
            message = f"{pattern.label!r} is reserved in conditions"
            check.note(message, pattern.place)
        check.check_op(pattern)


@dataclass
class _PatternCheck:
    problems: list[Diagnostic]
    schemas: Sequence[str]

    def note(self, message: str, place: SourceSpan, hint: str = "") -> None:
        self.problems.append(Diagnostic(message, place, hint=hint))

    def check_many(self, ops: Sequence[OpPattern]) -> None:
        """Check that ``many`` is between two members and uses only lists named by others."""
        list_names = {
            h.name for op in ops if not op.many for h in op.walk() if isinstance(h, Bound)
        }
        for index, op in enumerate(ops):
            if not op.many:
                continue
            if all(other.many for other in ops[:index]) or all(o.many for o in ops[index:]):
                self.note("'many' must be between two members of a series", op.place)
            for hole in (node for node in op.walk() if node is not op):
                if isinstance(hole, (HoleList, Splat, OpPattern)):
                    self.note("an op after 'many' takes only names, '_' and literals", op.place)
                elif isinstance(hole, Bound) and hole.name not in list_names:
                    message = f"%{hole.name} must be a list that another member of the series names"
                    self.note(message, hole.place)

    def check_op(self, pattern: OpPattern) -> None:
        schemas = self._known_schemas(pattern.op, pattern.place)
        if pattern.holes is not None:
            self._check_order(pattern.holes, pattern.place)
            for schema in schemas[:1] if len(schemas) == 1 else ():
                self._check_schema(pattern, schema)
            if len(schemas) > 1:
                self._check_arguments(pattern, schemas)
        if pattern.results is not None:
            self._check_order(pattern.results, pattern.place)

    def _known_schemas(self, name: str, place: SourceSpan) -> list[Schema]:
        """Return an op's schemas, and note an unknown name in a known library."""
        if is_glob(name):
            if name.count("*") > MAX_STARS:
                self.note(f"an op name can contain at most {MAX_STARS} '*'", place)
            return []
        schemas = schemas_for(name, self.schemas)
        if not schemas:
            library = name.partition(".")[0]
            library_ops = [op_name for op_name in known_ops() if op_name.startswith(f"{library}.")]
            if library_ops:
                similar = suggestion(name, library_ops)
                hint = (
                    "" if similar else f'declare it in the model: schema "{library}::op(Tensor x)"'
                )
                self.note(f"{library} has no op {name}{similar}", place, hint)
        return schemas

    def _check_order(self, holes: Sequence[Hole], place: SourceSpan) -> None:
        """Check the order of arguments: positional, then ``...``, then named; each name once."""
        rest_positions = [i for i, hole in enumerate(holes) if isinstance(hole, Rest)]
        if len(rest_positions) > 1:
            self.note("'...' can be used only once in a list", holes[rest_positions[1]].place)
        names: set[str] = set()
        for i, hole in enumerate(holes):
            if isinstance(hole, NamedHole):
                if hole.name in names:
                    self.note(f"{hole.name!r} is given twice", hole.place)
                names.add(hole.name)
            elif not isinstance(hole, Rest) and (
                names or (rest_positions and i > rest_positions[0])
            ):
                message = "arguments after '...' or a named one must be named, as in mode = %m"
                self.note(message, hole.place)
            elif isinstance(hole, HoleList) and _splats(hole.items) > 1:
                self.note("a list can contain only one '*'", hole.place)

    def _check_arguments(self, pattern: OpPattern, schemas: Sequence[Schema]) -> None:
        names = {argument.name for schema in schemas for argument in schema.arguments}
        max_count = max(len(schema.arguments) for schema in schemas)
        positional = pattern.positional_holes
        if len(positional) > max_count:
            message = f"{pattern.op} takes {format_count(max_count, 'argument')} at most"
            widest = max(schemas, key=lambda schema: len(schema.arguments))
            self.note(message, positional[max_count].place, schema_hint([widest]))
        for hole in pattern.holes or ():
            if isinstance(hole, NamedHole) and hole.name not in names:
                message = (
                    f"{pattern.op} has no argument {hole.name!r}{suggestion(hole.name, names)}"
                )
                self.note(message, hole.place, schema_hint(schemas))

    def _check_schema(self, pattern: OpPattern, schema: Schema) -> None:
        self._check_arguments(pattern, [schema])
        positional = pattern.positional_holes
        for hole, argument in zip(positional, schema.arguments, strict=False):
            if isinstance(hole, Bound) and hole.written and not argument.written:
                message = f"{pattern.op} never writes {argument.name!r} in place: drop the '!'"
                self.note(message, hole.place)


def schema_hint(schemas: Sequence[Schema]) -> str:
    """Return the arguments of the first of some schemas, as a hint."""
    arguments = [f"{a.name} = {a.default}" if a.default else a.name for a in schemas[0].arguments]
    return f"its arguments: {', '.join(arguments) or 'none'}"


def _splats(items: Iterable[Hole]) -> int:
    return sum(isinstance(item, (Splat, Rest)) for item in items)
