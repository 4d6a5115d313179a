"""The state of a script's check: names so far, the model's schemas, and problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from irgraph.diagnostics import Diagnostic, SourceSpan, suggestion
from irgraph.language.checking.patterns import RESERVED, check_pattern
from irgraph.language.clauses import Anchor, Parameter, Swap
from irgraph.language.expressions.kinds import (
    ANY,
    EXAMPLES,
    KIND_NAMES,
    PARAMETER_TYPES,
    UNKNOWN_KINDS,
    Kinds,
    unbound_name_problem,
)
from irgraph.language.expressions.nodes import Expression, Literal, Name, Splat
from irgraph.language.patterns.nodes import Bound, Module, NamedOps, Selection, Series, op_patterns


@dataclass
class Checker:
    """The names that a statement can use, and the problems noted so far.

    Attributes:
        passes: the parameters of every pass that may be applied.
        dims: the model's dimensions; ``None`` if there is no model.
        schemas: the schemas that the model declares.
        problems: the problems noted so far.
        names: kinds of the values that have names.
        handles: places of the names of ops.
    """

    passes: Mapping[str, Sequence[Parameter]] = field(default_factory=dict)
    dims: Sequence[str] | None = None
    schemas: Sequence[str] = ()
    problems: list[Diagnostic] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)
    handles: dict[str, SourceSpan] = field(default_factory=dict)

    def inner(self) -> Checker:
        """Return the checker of a block, whose names end with it."""
        return replace(self, names=dict(self.names), handles=dict(self.handles))

    def note(self, message: str, place: SourceSpan, hint: str = "") -> None:
        """Note a problem."""
        self.problems.append(Diagnostic(message, place, hint=hint))

    def define(self, name: str, kind: str, place: SourceSpan) -> None:
        """Define the name of a value, and note a problem if it is reserved or defined already."""
        if name in RESERVED:
            self.note(f"{name!r} is reserved in conditions", place)
        if name in self.names:
            self.note(f"{name!r} is defined twice: choose another name", place)
        self.names[name] = kind

    def name_ops(self, name: str, place: SourceSpan) -> None:
        """Define a name of ops, unless it is empty, and note a problem if it is defined already."""
        if name in self.handles:
            first = Diagnostic("first here", self.handles[name], severity="note")
            self.problems.append(Diagnostic(f"{name!r} is named twice", place, (first,)))
        if name:
            self.handles[name] = place

    @property
    def kinds(self) -> Kinds:
        """The kinds of expressions outside of patterns."""
        return Kinds(self.names, {}, self.problems)

    def selection(self, selection: Selection) -> Kinds:
        """Check a selection; return the kinds of expressions over the names that it binds."""
        pattern, names, uses = selection.pattern, dict(self.names), Counter[str]()
        if isinstance(pattern, Series):
            check_pattern(pattern, self.schemas, self.problems)
            names |= {
                op.label: "op" for outer in pattern.ops for op in op_patterns(outer) if op.label
            }
            uses.update(h.name for h in pattern.walk() if isinstance(h, (Bound, Splat)))
        if not isinstance(pattern, Series) or len(pattern.ops) == 1:
            names["op"] = "op"
        kinds = Kinds(names, uses, self.problems)
        if isinstance(pattern, NamedOps) and pattern.name not in self.handles:
            similar = suggestion(pattern.name, self.handles)
            message = f"{pattern.name!r} names no ops that were found or made before{similar}"
            hint = f"name ops with find {pattern.name} = ...; an op's name has a dot"
            self.note(message, pattern.place, "" if similar else hint)
        if isinstance(pattern, Module) and pattern.is_name:
            hint = 'write its path as in module "bot_mlp"'
            path = Name(pattern.path, place=pattern.place)
            kinds.require("text", path, "the path of a module", hint)
        if selection.condition is not None:
            kinds.require_condition(selection.condition)
        return kinds

    def anchor(self, anchor: Anchor) -> Kinds:
        """Check an anchor; return the kinds of expressions over the names that it binds."""
        kinds = self.selection(anchor.selection)
        if anchor.nth and anchor.selection.many:
            self.note(f"'{anchor.nth}' picks one match: drop 'many'", anchor.place)
        return kinds

    def swaps(self, swaps: Sequence[Swap], kinds: Kinds) -> None:
        """Check that a pattern binds the names of a substitution."""
        for swap in swaps:
            for name in (swap.new, swap.old):
                if name not in kinds.variables:
                    self.note(*unbound_name_problem(name, kinds.variables, swap.place))

    def argument(self, parameter: Parameter, value: Expression) -> None:
        """Check that a pass's argument, or a parameter's default, is of its type."""
        name, declared = parameter.name, parameter.type
        expected = PARAMETER_TYPES.get(declared, ANY)
        if isinstance(value, Name) and not self.names and expected in EXAMPLES:
            hint = f"{name!r} must be of type {declared}, as in {EXAMPLES[expected]}"
            self.note(f"{value} is not defined", value.place, hint)
            return
        if declared == "int" and isinstance(value, Literal) and isinstance(value.value, float):
            self.note(f"{name!r} must be a whole number, not {value}", value.place)
            return
        kind = self.kinds.infer(value)
        fits = kind == expected or (kind, expected) == ("number", "fraction")
        if not fits and kind not in UNKNOWN_KINDS and expected != ANY:
            message = f"{name!r} must be of type {declared}, not {KIND_NAMES[kind]}"
            self.note(message, value.place, f"write one as in {EXAMPLES[expected]}")
