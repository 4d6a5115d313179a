"""Checks patterns and templates against the schemas of the ops that they name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from irgraph.ir.schema import Argument, Schema, known_ops
from irgraph.language.build import schemas_for
from irgraph.language.expressions import Splat
from irgraph.language.kinds import unbound
from irgraph.language.patterns import (
    Bound,
    Given,
    Hole,
    Listed,
    Named,
    NewOp,
    OpPattern,
    Part,
    Parts,
    Rest,
    Selection,
    Series,
    holes,
    is_glob,
    nested,
    result_parts,
    template_parts,
)
from irgraph.language.values import counted
from irgraph.text.diagnostics import Diagnostic, Place, near

MOST_STARS = 3
"""Stars in one name; more take too long to try."""


@dataclass
class PatternCheck:
    """Collects what is wrong with patterns and templates.

    ``schemas`` are those that the model declares.
    """

    problems: list[Diagnostic]
    schemas: Sequence[str] = ()
    names: dict[str, int] = field(default_factory=dict)

    def note(self, message: str, place: Place, hint: str = "") -> None:
        """Note a problem."""
        self.problems.append(Diagnostic(message, place, hint=hint))

    def selection(self, selection: Selection) -> None:
        """Check the pattern of a selection; count how often it uses each name."""
        self.names = {}
        if not isinstance(selection.pattern, Series):
            return
        labels: set[str] = set()
        self._several(selection.pattern.ops)
        for outer in selection.pattern.ops:
            for pattern in nested(outer):
                if pattern.label in labels and pattern.label:
                    self.note(f"two ops bear the label {pattern.label!r}", pattern.place)
                labels.add(pattern.label)
                if pattern.label in ("op", "count"):
                    message = f"{pattern.label!r} is no free name: conditions use it"
                    self.note(message, pattern.place)
                self._op(pattern)
            for hole in holes(outer):
                if isinstance(hole, (Bound, Splat)):
                    self.names[hole.name] = self.names.get(hole.name, 0) + 1

    def _several(self, ops: Sequence[OpPattern]) -> None:
        """Check that ``many`` stands between two members, for lists that others name."""
        known = {h.name for op in ops if not op.many for h in holes(op) if isinstance(h, Bound)}
        for place, op in enumerate(ops):
            if not op.many:
                continue
            if all(other.many for other in ops[:place]) or all(o.many for o in ops[place:]):
                self.note("'many' stands between two members of a series", op.place)
            for hole in holes(op):
                if isinstance(hole, (Listed, Splat)) or len(list(nested(op))) > 1:
                    self.note("'many' takes names, '_' and literals only", op.place)
                elif isinstance(hole, Bound) and hole.name not in known:
                    message = f"%{hole.name} must be a list that another member of the series names"
                    self.note(message, hole.place)

    def _op(self, pattern: OpPattern) -> None:
        found = self._known(pattern.op, pattern.place)
        if pattern.holes is not None:
            self._shape(pattern.holes, pattern.place)
            for schema in found[:1] if len(found) == 1 else ():
                self._fits(pattern, schema)
            if len(found) > 1:
                self._arguments(pattern, found)
        if pattern.results is not None:
            self._shape(pattern.results, pattern.place)

    def _known(self, name: str, place: Place) -> list[Schema]:
        """Return an op's schemas; an unknown name in a library that we know is a problem."""
        if is_glob(name):
            if name.count("*") > MOST_STARS:
                self.note(f"an op's name can hold {MOST_STARS} '*' at most", place)
            return []
        found = schemas_for(name, self.schemas)
        if not found:
            library = name.partition(".")[0]
            alike = [known for known in known_ops() if known.startswith(f"{library}.")]
            if alike:
                word = near(name, alike)
                hint = "" if word else f'declare it in the model: schema "{library}::op(Tensor x)"'
                self.note(f"{library} has no op {name}{word}", place, hint)
        return found

    def _shape(self, found: Sequence[Hole], place: Place) -> None:
        """Check the order of holes: positions, then ``...``, then names; each name once."""
        open_from = [i for i, hole in enumerate(found) if isinstance(hole, Rest)]
        if len(open_from) > 1:
            self.note("'...' may stand only once in a list", found[open_from[1]].place)
        said: set[str] = set()
        for i, hole in enumerate(found):
            if isinstance(hole, Named):
                if hole.name in said:
                    self.note(f"{hole.name!r} is given twice", hole.place)
                said.add(hole.name)
            elif not isinstance(hole, Rest) and (said or (open_from and i > open_from[0])):
                message = "what stands behind '...' or a name needs a name, as in mode = %m"
                self.note(message, hole.place)
            elif isinstance(hole, Listed) and _splats(hole.items) > 1:
                self.note("a list can hold one '*' only", hole.place)

    def _arguments(self, pattern: OpPattern, found: Sequence[Schema]) -> None:
        known = {argument.name for schema in found for argument in schema.arguments}
        most = max(len(schema.arguments) for schema in found)
        fixed = [hole for hole in pattern.holes or () if not isinstance(hole, (Named, Rest))]
        if len(fixed) > most:
            message = f"{pattern.op} takes {counted(most, 'argument')} at most"
            widest = max(found, key=lambda schema: len(schema.arguments))
            self.note(message, fixed[most].place, _schema_hint([widest]))
        for hole in pattern.holes or ():
            if isinstance(hole, Named) and hole.name not in known:
                message = f"{pattern.op} has no argument {hole.name!r}{near(hole.name, known)}"
                self.note(message, hole.place, _schema_hint(found))

    def _fits(self, pattern: OpPattern, schema: Schema) -> None:
        self._arguments(pattern, [schema])
        fixed = [hole for hole in pattern.holes or () if not isinstance(hole, (Named, Rest))]
        for hole, argument in zip(fixed, schema.arguments, strict=False):
            if isinstance(hole, Bound) and hole.written and not argument.written:
                message = f"{pattern.op} never writes {argument.name!r} in place: drop the '!'"
                self.note(message, hole.place)

    def template(
        self, new: NewOp, bound: Iterable[str], taken: Iterable[str] | None = None
    ) -> None:
        """Check a new op: its schema, and that the pattern binds what it uses.

        ``bound`` are names that its results may bear; ``taken`` those that its operands may, where
        that is not the same.
        """
        known = set(bound)
        before = known if taken is None else set(taken)
        for part, names in [
            *((part, before) for part in template_parts(new)),
            *((part, known) for part in result_parts(new)),
        ]:
            if isinstance(part, (Bound, Splat)) and part.name not in names:
                self.note(*unbound(part.name, known, part.place))
        found = schemas_for(new.op, self.schemas)
        if not found:
            hint = 'declare it in the model: schema "my::op(Tensor x) -> Tensor"'
            message = f"no op is called {new.op}{near(new.op, known_ops())}"
            self.note(message, new.place, hint)
            return
        problems = [_misfit(new, schema) for schema in found]
        if all(problems):
            message, place = problems[0] or ("", new.place)
            self.note(f"{new.op}: {message}", place, _schema_hint(found))


def _schema_hint(found: Sequence[Schema]) -> str:
    arguments = [f"{a.name} = {a.default}" if a.default else a.name for a in found[0].arguments]
    return f"its arguments: {', '.join(arguments) or 'none'}"


Misfit = tuple[str, Place] | None


def _misfit(new: NewOp, schema: Schema) -> Misfit:
    """Return why a template does not fit a schema, and where; nothing if it does."""
    fixed = [part for part in new.parts if not isinstance(part, (Given, Rest))]
    named = {part.name: part for part in new.parts if isinstance(part, Given)}
    count = len(schema.arguments)
    if len(fixed) > count:
        return f"it takes {counted(count, 'argument')}, not {len(fixed)}", fixed[count].place
    for part, argument in zip(fixed, schema.arguments, strict=False):
        wrong = _wrong(part, argument)
        if wrong:
            return wrong, part.place
    arguments = [argument.name for argument in schema.arguments]
    for name, given in named.items():
        if name not in arguments:
            return f"it has no argument {name!r}{near(name, arguments)}", given.place
        if arguments.index(name) < len(fixed):
            return f"{name!r} is given twice", given.place
    if not any(isinstance(part, Rest) for part in new.parts):
        for argument in schema.arguments[len(fixed) :]:
            if argument.default is None and argument.name not in named:
                return f"it needs an argument {argument.name!r}", new.place
    return _wrong_results(new, schema)


def _wrong(part: Part, argument: Argument) -> str:
    is_list = isinstance(part, Parts)
    if argument.is_tensor and argument.is_list and isinstance(part, Splat):
        return f"{argument.name!r} is a list: write [{part}]"
    if isinstance(part, Splat) or (is_list and argument.is_tensor and not argument.is_list):
        return f"{argument.name!r} is a single tensor, not a list"
    items = part.items if isinstance(part, Parts) else (part,)
    written = any(getattr(item, "written", False) for item in items)
    if written and not argument.written:
        return f"it does not write {argument.name!r} in place: drop the '!'"
    if argument.written and not written and items:
        return f"it writes {argument.name!r} in place: mark it with '!'"
    return ""


def _wrong_results(new: NewOp, schema: Schema) -> Misfit:
    returns = schema.fresh_returns
    if any(isinstance(part, Rest) for part in new.results):
        return "'...' cannot stand for results of a new op", new.place
    if len(new.results) > len(returns):
        place = new.results[len(returns)].place
        return f"it has {counted(len(returns), 'result')}, not {len(new.results)}", place
    for part, given in zip(new.results, returns, strict=False):
        if given.is_list and not isinstance(part, Parts):
            return f"its result is a list: write [{part}]", part.place
        if not given.is_list and not isinstance(part, Bound):
            return "its result is a single tensor, not a list", part.place
    return None


def _splats(items: Iterable[Hole]) -> int:
    return sum(isinstance(item, (Splat, Rest)) for item in items)
