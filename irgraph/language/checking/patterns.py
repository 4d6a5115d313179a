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

MOST_STARS = 3
"""Most stars in one name; more take too long to match."""


def check_pattern(series: Series, schemas: Sequence[str], problems: list[Diagnostic]) -> None:
    """Note what is wrong with a pattern; ``schemas`` are those that the model declares."""
    check = _Check(problems, schemas)
    check.several(series.ops)
    labels: set[str] = set()
    for pattern in (inner for op in series.ops for inner in op_patterns(op)):
        if pattern.label in labels:
            check.note(f"two ops have the label {pattern.label!r}", pattern.place)
        if pattern.label:
            labels.add(pattern.label)
        if pattern.label in RESERVED:
            message = f"{pattern.label!r} is reserved in conditions"
            check.note(message, pattern.place)
        check.op(pattern)


@dataclass
class _Check:
    problems: list[Diagnostic]
    schemas: Sequence[str]

    def note(self, message: str, place: SourceSpan, hint: str = "") -> None:
        self.problems.append(Diagnostic(message, place, hint=hint))

    def several(self, ops: Sequence[OpPattern]) -> None:
        """Check that ``many`` stands between two members, for lists that others name."""
        known = {h.name for op in ops if not op.many for h in op.walk() if isinstance(h, Bound)}
        for place, op in enumerate(ops):
            if not op.many:
                continue
            if all(other.many for other in ops[:place]) or all(o.many for o in ops[place:]):
                self.note("'many' must be between two members of a series", op.place)
            for hole in (node for node in op.walk() if node is not op):
                if isinstance(hole, (HoleList, Splat, OpPattern)):
                    self.note("an op after 'many' takes only names, '_' and literals", op.place)
                elif isinstance(hole, Bound) and hole.name not in known:
                    message = f"%{hole.name} must be a list that another member of the series names"
                    self.note(message, hole.place)

    def op(self, pattern: OpPattern) -> None:
        found = self._known(pattern.op, pattern.place)
        if pattern.holes is not None:
            self._shape(pattern.holes, pattern.place)
            for schema in found[:1] if len(found) == 1 else ():
                self._fits(pattern, schema)
            if len(found) > 1:
                self._arguments(pattern, found)
        if pattern.results is not None:
            self._shape(pattern.results, pattern.place)

    def _known(self, name: str, place: SourceSpan) -> list[Schema]:
        """Return an op's schemas; an unknown name in a known library is a problem."""
        if is_glob(name):
            if name.count("*") > MOST_STARS:
                self.note(f"an op name can contain at most {MOST_STARS} '*'", place)
            return []
        found = schemas_for(name, self.schemas)
        if not found:
            library = name.partition(".")[0]
            alike = [known for known in known_ops() if known.startswith(f"{library}.")]
            if alike:
                word = suggestion(name, alike)
                hint = "" if word else f'declare it in the model: schema "{library}::op(Tensor x)"'
                self.note(f"{library} has no op {name}{word}", place, hint)
        return found

    def _shape(self, found: Sequence[Hole], place: SourceSpan) -> None:
        """Check the order of arguments: positional, then ``...``, then named; each name once."""
        open_from = [i for i, hole in enumerate(found) if isinstance(hole, Rest)]
        if len(open_from) > 1:
            self.note("'...' can be used only once in a list", found[open_from[1]].place)
        said: set[str] = set()
        for i, hole in enumerate(found):
            if isinstance(hole, NamedHole):
                if hole.name in said:
                    self.note(f"{hole.name!r} is given twice", hole.place)
                said.add(hole.name)
            elif not isinstance(hole, Rest) and (said or (open_from and i > open_from[0])):
                message = "arguments after '...' or a named one must be named, as in mode = %m"
                self.note(message, hole.place)
            elif isinstance(hole, HoleList) and _splats(hole.items) > 1:
                self.note("a list can contain only one '*'", hole.place)

    def _arguments(self, pattern: OpPattern, found: Sequence[Schema]) -> None:
        known = {argument.name for schema in found for argument in schema.arguments}
        most = max(len(schema.arguments) for schema in found)
        fixed = pattern.positional_holes
        if len(fixed) > most:
            message = f"{pattern.op} takes {format_count(most, 'argument')} at most"
            widest = max(found, key=lambda schema: len(schema.arguments))
            self.note(message, fixed[most].place, schema_hint([widest]))
        for hole in pattern.holes or ():
            if isinstance(hole, NamedHole) and hole.name not in known:
                message = (
                    f"{pattern.op} has no argument {hole.name!r}{suggestion(hole.name, known)}"
                )
                self.note(message, hole.place, schema_hint(found))

    def _fits(self, pattern: OpPattern, schema: Schema) -> None:
        self._arguments(pattern, [schema])
        fixed = pattern.positional_holes
        for hole, argument in zip(fixed, schema.arguments, strict=False):
            if isinstance(hole, Bound) and hole.written and not argument.written:
                message = f"{pattern.op} never writes {argument.name!r} in place: drop the '!'"
                self.note(message, hole.place)


def schema_hint(found: Sequence[Schema]) -> str:
    """Return the arguments of the first of some schemas, as a hint."""
    arguments = [f"{a.name} = {a.default}" if a.default else a.name for a in found[0].arguments]
    return f"its arguments: {', '.join(arguments) or 'none'}"


def _splats(items: Iterable[Hole]) -> int:
    return sum(isinstance(item, (Splat, Rest)) for item in items)
