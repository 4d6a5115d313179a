"""Checks a whole script before anything runs; all that is wrong is said at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from irgraph.language.check_patterns import PatternCheck
from irgraph.language.expressions import (
    Attribute,
    Expression,
    ListOf,
    Literal,
    Name,
    Splat,
    Variable,
    parts,
)
from irgraph.language.fusing import has_splat
from irgraph.language.kinds import (
    ANY,
    CALLED,
    EXAMPLES,
    MEASURES,
    OPEN,
    PARAMETER_TYPES,
    Kinds,
    unbound,
)
from irgraph.language.patterns import (
    Bound,
    Found,
    Given,
    Module,
    NewOp,
    Selection,
    Series,
    Template,
    nested,
    result_parts,
    template_parts,
)
from irgraph.language.tree import (
    Anchor,
    Apply,
    Call,
    Cast,
    Expect,
    Find,
    Fuse,
    Insert,
    Let,
    Parallelize,
    Pass,
    Remove,
    Reorder,
    Repeat,
    Replace,
    Resize,
    Script,
    Statement,
    Swap,
    Sweep,
    Target,
    walk,
)
from irgraph.text.diagnostics import Diagnostic, Place, near

LATER = "is not available yet"
RESERVED = ("op", "count")
MOST_TURNS = 1000


@dataclass
class _Scope:
    """What the statements of one script or pass see: kinds of names, and places of handles."""

    names: dict[str, str] = field(default_factory=dict)
    handles: dict[str, Place] = field(default_factory=dict)


class Check:
    """Collects what is wrong with a script and the passes that it applies."""

    def __init__(
        self,
        passes: Mapping[str, Pass],
        dims: Sequence[str] | None = None,
        schemas: Sequence[str] = (),
    ) -> None:
        self.passes = passes
        self.dims = dims
        self.problems: list[Diagnostic] = []
        self.patterns = PatternCheck(self.problems, schemas)

    def script(self, script: Script) -> None:
        """Check the statements of a script and every pass that it knows."""
        for declared in self.passes.values():
            self._pass(declared)
        self._cycles()
        self._block(script.body, _Scope())

    def note(self, message: str, place: Place, hint: str = "") -> None:
        """Note a problem."""
        self.problems.append(Diagnostic(message, place, hint=hint))

    def _pass(self, declared: Pass) -> None:
        scope = _Scope()
        for parameter in declared.parameters:
            self._free(parameter.name, parameter.place)
            if parameter.name in scope.names:
                self.note(f"two parameters are called {parameter.name!r}", parameter.place)
            if parameter.type not in PARAMETER_TYPES:
                hint = near(parameter.type, PARAMETER_TYPES)
                known = "" if hint else f"; there are {', '.join(PARAMETER_TYPES)}"
                message = f"unknown parameter type {parameter.type!r}{hint}{known}"
                self.note(message, parameter.place)
            if parameter.default is not None:
                self._value(parameter.name, parameter.type, parameter.default, _Scope())
            scope.names[parameter.name] = PARAMETER_TYPES.get(parameter.type, ANY)
        self._block(declared.body, scope)

    def _value(self, name: str, declared: str, value: Expression, scope: _Scope) -> None:
        """Check that a parameter's value is of its type."""
        wanted = PARAMETER_TYPES.get(declared, ANY)
        if isinstance(value, Name) and not scope.names and wanted in EXAMPLES:
            hint = f"{name!r} takes a value of type {declared}, as in {EXAMPLES[wanted]}"
            self.note(f"{value} is not defined", value.place, hint)
            return
        if declared == "int" and isinstance(value, Literal) and isinstance(value.value, float):
            self.note(f"{name!r} takes a whole number, not {value}", value.place)
            return
        kind = self._kinds(scope).of(value)
        fits = kind == wanted or (kind, wanted) == ("number", "fraction")
        if fits or kind in OPEN or wanted == ANY:
            return
        message = f"{name!r} takes a value of type {declared}, not {CALLED[kind]}"
        self.note(message, value.place, f"write one as in {EXAMPLES[wanted]}")

    def _cycles(self) -> None:
        """Refuse passes that apply themselves, however many passes lie between."""
        done: set[str] = set()
        for name in self.passes:
            self._follow(name, [], done)

    def _follow(self, name: str, path: list[str], done: set[str]) -> None:
        if name in path:
            cycle = " -> ".join([*path[path.index(name) :], name])
            hint = "'repeat at most N { ... }' does something again"
            message = f"passes apply each other in a circle: {cycle}"
            self.note(message, self.passes[name].place, hint)
            done.update(path)
        if name in done or name not in self.passes:
            return
        for statement in walk(self.passes[name].body):
            if isinstance(statement, Apply):
                self._follow(statement.call.name, [*path, name], done)
        done.add(name)

    def _block(self, statements: Sequence[Statement], scope: _Scope) -> None:
        for statement in statements:
            self._statement(statement, scope)

    def _statement(self, statement: Statement, scope: _Scope) -> None:
        if isinstance(statement, Let):
            self._let(statement, scope)
        elif isinstance(statement, Apply):
            self._call(statement.call, scope)
        elif isinstance(statement, Repeat):
            self._repeat(statement, scope)
        elif isinstance(statement, (Find, Expect)):
            self._selection(statement.selection, scope)
            if isinstance(statement, Find):
                self._handle(statement.name, statement.place, scope)
        elif isinstance(statement, Fuse):
            self._fuse(statement, scope)
        elif isinstance(statement, Remove):
            self._remove(statement, scope)
        elif isinstance(statement, Replace):
            self._replace(statement, scope)
        elif isinstance(statement, Insert):
            self._insert(statement, scope)
        elif isinstance(statement, Reorder):
            self._reorder(statement, scope)
        elif isinstance(statement, Parallelize):
            self._parallelize(statement, scope)
        elif isinstance(statement, Cast):
            self._cast(statement, scope)
        elif isinstance(statement, Sweep):
            self._sweep(statement, scope)
        elif isinstance(statement, Target):
            self._target(statement, scope)
        elif isinstance(statement, Resize):
            self._resize(statement, scope)
        else:
            verb = str(statement).partition(" ")[0]
            self.note(f"{verb!r} {LATER}", statement.place)

    def _kinds(self, scope: _Scope, selection: Selection | None = None) -> Kinds:
        """Return what finds the kinds of expressions beside a pattern."""
        names = dict(scope.names)
        variables = frozenset(self.patterns.names) if selection is not None else frozenset()
        if selection is not None:
            pattern = selection.pattern
            ops = (
                [p for op in pattern.ops for p in nested(op)] if isinstance(pattern, Series) else []
            )
            names |= {op.label: "op" for op in ops if op.label}
            if not isinstance(pattern, Series) or len(pattern.ops) == 1:
                names["op"] = "op"
        return Kinds(names, variables, self.problems)

    def _selection(self, selection: Selection, scope: _Scope) -> Kinds:
        self.patterns.selection(selection)
        kinds = self._kinds(scope, selection)
        if isinstance(selection.pattern, Found):
            name = selection.pattern.name
            if name not in scope.handles:
                hint = near(name, scope.handles)
                message = f"{name!r} names nothing found or made before{hint}"
                told = "" if hint else f"name ops with find {name} = ...; an op's name has a dot"
                self.note(message, selection.pattern.place, told)
        if isinstance(selection.pattern, Module) and selection.pattern.named:
            self._module(selection.pattern, kinds)
        if selection.where is not None:
            kinds.truth(selection.where)
        return kinds

    def _module(self, module: Module, kinds: Kinds) -> None:
        kind = kinds.of(Name(module.path, place=module.place))
        if kind not in ("text", *OPEN):
            hint = 'write its path as in module "bot_mlp"'
            self.note(f"a module's path is needed here, not {CALLED[kind]}", module.place, hint)

    def _handle(self, name: str, place: Place, scope: _Scope) -> None:
        if name in scope.handles:
            first = Diagnostic("first here", scope.handles[name], severity="note")
            self.problems.append(Diagnostic(f"{name!r} is named twice", place, (first,)))
        scope.handles[name] = place

    def _repeat(self, statement: Repeat, scope: _Scope) -> None:
        if statement.most > MOST_TURNS:
            self.note(f"repeat at most {MOST_TURNS} times", statement.place)
        inner = _Scope(dict(scope.names), dict(scope.handles))
        self._block(statement.body, inner)

    def _free(self, name: str, place: Place) -> None:
        """Refuse names that mean something already."""
        if name in RESERVED:
            self.note(f"{name!r} is no free name: conditions use it", place)

    def _let(self, statement: Let, scope: _Scope) -> None:
        self._free(statement.name, statement.place)
        kind = self._kinds(scope).of(statement.value)
        if statement.name in scope.names:
            self.note(f"{statement.name!r} is defined twice: give it another name", statement.place)
        scope.names[statement.name] = kind

    def _call(self, call: Call, scope: _Scope) -> None:
        called = self.passes.get(call.name)
        if called is None:
            return  # the library has said so
        known = {parameter.name: parameter for parameter in called.parameters}
        given = [name for name, _ in call.arguments]
        for name, value in call.arguments:
            if name not in known:
                has = near(name, known) or f"; it has {', '.join(known) or 'none'}"
                self.note(f"{call.name} has no parameter {name!r}{has}", value.place)
            else:
                self._value(name, known[name].type, value, scope)
        for name in {name for name in given if given.count(name) > 1}:
            self.note(f"{name!r} is given twice", call.place)
        for parameter in called.parameters:
            if parameter.default is None and parameter.name not in given:
                message = f"{call.name} needs {parameter.name}, of type {parameter.type}"
                example = EXAMPLES.get(PARAMETER_TYPES.get(parameter.type, ANY), "...")
                self.note(message, call.place, f"as in {call.name}({parameter.name} = {example})")

    def _fuse(self, statement: Fuse, scope: _Scope) -> None:
        kinds = self._selection(statement.selection, scope)
        new = statement.template.ops[0]
        if len(statement.template.ops) > 1:
            self.note("fuse makes one op; several need 'replace'", statement.template.place)
        if not isinstance(statement.selection.pattern, Series):
            message = "fuse needs a pattern that names what the new op takes"
            hint = "as in fuse %y = aten.relu(%x) into ..."
            self.note(message, statement.selection.pattern.place, hint)
            return
        bound = dict(self.patterns.names)
        self.patterns.template(new, bound)
        for key in statement.keys:
            kinds.of(key)
        self._columns(statement)
        self._given(new, kinds)
        self._having(statement, scope)
        conditions = (*statement.keys, statement.having)
        self._unused(statement.selection, statement.template, bound, conditions)
        if statement.named:
            self._handle(statement.named, statement.place, scope)

    def _columns(self, statement: Fuse) -> None:
        """A group needs ``many``, and a template that takes columns."""
        splat = has_splat(statement.template.ops[0])
        if statement.keys and not statement.selection.many:
            message = "'group by' needs 'many': one match makes no group"
            self.note(message, statement.keys[0].place)
        elif splat and not statement.selection.many:
            self.note("'*' takes all matches of a group: write 'many'", statement.template.place)
        elif statement.keys and not splat:
            message = "a group becomes one op: take its columns, as in [*%w]"
            self.note(message, statement.template.place)

    def _given(self, new: NewOp, kinds: Kinds) -> None:
        for part in template_parts(new):
            if not isinstance(part, Given):
                continue
            items = part.value.items if isinstance(part.value, ListOf) else (part.value,)
            for item in items:
                if isinstance(item, Splat):
                    kinds.of(Variable(item.name, place=item.place))
                else:
                    kinds.of(item)

    def _having(self, statement: Fuse, scope: _Scope) -> None:
        if statement.having is None:
            return
        names = {**scope.names, "count": "number"}
        keys = frozenset(map(str, statement.keys))
        Kinds(names, frozenset(), self.problems, keys).truth(statement.having)

    def _unused(
        self,
        selection: Selection,
        template: Template,
        bound: Mapping[str, int],
        others: Sequence[Expression | None] = (),
        swaps: Sequence[Swap] = (),
    ) -> None:
        """What a pattern names and nobody uses is a slip, or would be lost unnoticed."""
        used = {name for name, times in bound.items() if times > 1}
        used.update(name for swap in swaps for name in (swap.new, swap.old))
        conditions = [c for c in (selection.where, *others) if c is not None]
        for new in template.ops:
            parts_ = [*template_parts(new), *result_parts(new)]
            conditions += [part.value for part in parts_ if isinstance(part, Given)]
            used.update(p.name for p in parts_ if isinstance(p, (Bound, Splat)))
        for expression in conditions:
            named = [p for p in parts(expression) if isinstance(p, (Variable, Splat))]
            used.update(part.name for part in named)
        for name in bound:
            if name not in used:
                message = f"%{name} is bound and never used; write _ where it does not matter"
                self.note(message, selection.place)

    def _sequence(self, template: Template, kinds: Kinds, bound: Mapping[str, int]) -> set[str]:
        """Check the ops of a template, whose results later ones may use; return its names."""
        known = set(bound)
        for new in template.ops:
            for part in (p for p in template_parts(new) if isinstance(p, Splat)):
                message = "'*' takes all matches of a group: only 'fuse' makes groups"
                self.note(message, part.place)
            results = {p.name for p in result_parts(new) if isinstance(p, Bound)}
            self.patterns.template(new, known | results, taken=known)
            self._given(new, replace(kinds, variables=frozenset(known)))
            known |= results
        return known

    def _replace(self, statement: Replace, scope: _Scope) -> None:
        kinds = self._selection(statement.selection, scope)
        bound = dict(self.patterns.names)
        self._sequence(statement.template, kinds, bound)
        self._unused(statement.selection, statement.template, bound)
        if statement.named:
            self._handle(statement.named, statement.place, scope)

    def _insert(self, statement: Insert, scope: _Scope) -> None:
        selection = statement.anchor.selection
        kinds = self._selection(selection, scope)
        bound = dict(self.patterns.names)
        self._nth(statement.anchor)
        known = self._sequence(statement.template, kinds, bound)
        for part in (p for new in statement.template.ops for p in result_parts(new)):
            if isinstance(part, Bound) and part.name in bound:
                message = f"%{part.name} is there already; give what is new a name of its own"
                self.note(message, part.place)
        for swap in statement.swaps:
            for name in (swap.new, swap.old):
                if name not in known:
                    self.note(f"nothing binds %{name}{near(name, known)}", swap.place)
        self._unused(selection, statement.template, bound, (), statement.swaps)
        if statement.named:
            self._handle(statement.named, statement.place, scope)

    def _reorder(self, statement: Reorder, scope: _Scope) -> None:
        self._selection(statement.selection, scope)
        if isinstance(statement.to, Anchor):
            self._selection(statement.to.selection, scope)
            self._nth(statement.to)

    def _parallelize(self, statement: Parallelize, scope: _Scope) -> None:
        for selection in statement.selections:
            self._selection(selection, scope)
        kind = self._kinds(scope).of(statement.streams)
        if kind not in ("number", *OPEN):
            self.note(f"a number of streams is needed, not {CALLED[kind]}", statement.streams.place)

    def _cast(self, statement: Cast, scope: _Scope) -> None:
        subject = statement.subject
        if subject.operand or subject.role or statement.scaled:
            what = "'scaled per'" if statement.scaled else "'cast' of an operand"
            self.note(f"{what} {LATER}", subject.place, "cast the op: cast aten.mm to f16")
        if subject.selection is not None:
            self._selection(subject.selection, scope)
        kind = self._kinds(scope).of(statement.to)
        if kind not in ("dtype", *OPEN):
            self.note(f"an element type is needed here, not {CALLED[kind]}", statement.to.place)

    def _sweep(self, statement: Sweep, scope: _Scope) -> None:
        inner = _Scope(dict(scope.names), dict(scope.handles))
        for name, values in statement.axes:
            self._free(name, statement.place)
            if name in inner.names:
                message = f"{name!r} is defined twice: give it another name"
                self.note(message, statement.place)
            if self._kinds(scope).of(values) not in ("list", *OPEN):
                self.note("a list of values is needed here, as in [512, 1024]", values.place)
            inner.names[name] = ANY
        self._block(statement.body, _Scope(dict(inner.names), dict(inner.handles)))
        kinds = Kinds(inner.names, frozenset(), self.problems, frozenset(MEASURES))
        wanted = [*statement.report, *([statement.best] if statement.best is not None else [])]
        for expression in wanted:
            for part in parts(expression):
                known = str(part) in MEASURES
                if isinstance(part, Attribute) and isinstance(part.of, Name) and not known:
                    hint = near(str(part), MEASURES) or f"; there are {', '.join(MEASURES)}"
                    self.note(f"a sweep cannot report {part}{hint}", part.place)
                    break
            else:
                kinds.of(expression)

    def _target(self, statement: Target, scope: _Scope) -> None:
        kind = self._kinds(scope).of(statement.device)
        if kind not in ("text", *OPEN):
            hint = 'write one as in "v100"'
            message = f"a device's name is needed here, not {CALLED[kind]}"
            self.note(message, statement.device.place, hint)

    def _nth(self, anchor: Anchor) -> None:
        if anchor.nth and anchor.selection.many:
            self.note(f"'{anchor.nth}' picks one match: drop 'many'", anchor.place)

    def _remove(self, statement: Remove, scope: _Scope) -> None:
        self._selection(statement.selection, scope)
        for swap in statement.swaps:
            for name in (swap.new, swap.old):
                if name not in self.patterns.names:
                    self.note(*unbound(name, self.patterns.names, swap.place))

    def _resize(self, statement: Resize, scope: _Scope) -> None:
        kinds = self._kinds(scope)
        if statement.selection is not None:
            kinds = self._selection(statement.selection, scope)
            if statement.operand not in self.patterns.names:
                self.note(*unbound(statement.operand, self.patterns.names, statement.place))
        elif self.dims is not None and statement.dimension not in self.dims:
            hint = near(statement.dimension, self.dims)
            message = f"the model has no dimension {statement.dimension!r}{hint}"
            told = "" if hint else f"its dimensions: {', '.join(self.dims) or 'none'}"
            self.note(message, statement.place, told)
        kind = kinds.of(statement.size)
        if kind not in ("number", *OPEN):
            self.note(f"a size is a number, not {CALLED[kind]}", statement.size.place)
