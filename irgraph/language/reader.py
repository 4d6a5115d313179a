"""Converts the grammar's trees to scripts, statements, patterns and expressions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lark import Token, Tree
from lark.tree import Meta

from irgraph.diagnostics import SourceSpan, fail
from irgraph.ir.quantity import Quantity
from irgraph.ir.tensor import DeviceRef, DType
from irgraph.language import statements
from irgraph.language.clauses import Anchor, Call, Parameter, Swap
from irgraph.language.expressions.nodes import (
    Attribute,
    Binary,
    Expression,
    Item,
    ListOf,
    Literal,
    Name,
    Node,
    Splat,
    Unary,
    Variable,
)
from irgraph.language.patterns.nodes import (
    Blank,
    Bound,
    Hole,
    HoleList,
    ListTemplate,
    Module,
    NamedArgument,
    NamedHole,
    NamedOps,
    NewOp,
    OpPattern,
    Part,
    Rest,
    Selection,
    Series,
    Template,
)
from irgraph.language.patterns.short_forms import expand_short_forms
from irgraph.language.script import Pass, Script
from irgraph.language.statement import Statement
from irgraph.text.builder import BuildError, unquote

MAX_DEPTH = 100
"""Maximum depth of nested grammar rules in a script."""

MAX_NUMBER = 1e300
"""Bound on numbers in scripts."""

WORDS = {"true": True, "false": False, "none": None, "no": 0}

NODES: Mapping[str, type[Node]] = {
    "anchor": Anchor,
    "attribute": Attribute,
    "bound": Bound,
    "call": Call,
    "found": NamedOps,
    "item": Item,
    "name": Name,
    "named_hole": NamedHole,
    "named_part": NamedArgument,
    "parameter": Parameter,
    "phase": Literal,
    "swap": Swap,
    "variable": Variable,
}
"""Nodes whose fields are the parts of a rule, in order."""

SEQUENCES: Mapping[str, Callable[..., Node]] = {
    "list": ListOf,
    "list_hole": HoleList,
    "made_list": ListTemplate,
    "part_list": ListTemplate,
    "series": Series,
    "template": Template,
}
"""Nodes with a single field, which contains all parts of a rule."""


class Reader:
    """Converts the tree of one text; every resulting object has its place.

    A rule is converted by its method, or to a node of ``NODES`` or ``SEQUENCES``, or to the
    statement of its file; any other rule becomes the tuple of its parts.
    """

    def __init__(self, text: str, source: str, start: str = "start") -> None:
        self.text = text
        self.source = source
        self.depth = 0
        self.statements = statements.statement_names(start)

    def read(self, node: Tree[Token] | Token | None) -> Any:  # noqa: ANN401
        """Return the object of a tree; tokens are returned unchanged."""
        if not isinstance(node, Tree):
            return node
        place = self.place(node.meta)
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise fail("this is nested too deeply", place)
        parts = [self.read(child) for child in node.children]
        self.depth -= 1
        rule = str(node.data)
        method = getattr(self, f"_{rule}", None)
        if method is not None:
            return method(place, *parts)
        values = [self.value(part) if isinstance(part, Token) else part for part in parts]
        if rule in NODES:
            return NODES[rule].read(values, place)
        if rule in SEQUENCES:
            return SEQUENCES[rule](tuple(values), place=place)
        if rule in self.statements:
            return statements.read_statement(rule, values, place)
        return tuple(values)

    def place(self, node: Token | Meta) -> SourceSpan:
        """Return the place of a token or a tree; the place of an empty tree is the text's start."""
        start, end = getattr(node, "start_pos", None) or 0, getattr(node, "end_pos", None) or 1
        line, column = getattr(node, "line", None) or 1, getattr(node, "column", None) or 1
        return SourceSpan(self.source, self.text, line, column, end - start)

    def value(self, token: Token) -> Any:  # noqa: ANN401
        """Return the value of a token."""
        kind, text = token.type, str(token)
        if kind in ("MANY", "BANG"):
            return True
        if kind == "VALUE":
            return text[1:]
        if kind == "NUMBER":
            return self.number(token, text)
        if kind == "STRING":
            return self.string(token)
        if kind in ("BOOL", "NO"):
            return WORDS[text]
        if kind == "QUANTITY":
            unit = text.lstrip("0123456789_.eE+-")
            return Quantity(float(self.number(token, text.removesuffix(unit))), unit)
        if kind == "DTYPE":
            return DType(text)
        return DeviceRef(text[1:]) if kind == "DEVICE" else text

    def number(self, token: Token, text: str) -> int | float:
        """Return the value of a number, which may have underscores between digits."""
        try:
            value = int(text) if text.lstrip("-").replace("_", "").isdigit() else float(text)
        except ValueError:
            raise fail(f"not a number: {text[:40]!r}", self.place(token)) from None
        if not abs(value) < MAX_NUMBER:
            raise fail(f"expected a number below 1e300, not {text[:40]}", self.place(token))
        return value

    def string(self, token: Token, need: str = "") -> str:
        """Return the value of a string literal; with ``need`` it must not be empty."""
        try:
            text = unquote(str(token))
        except BuildError as error:
            raise fail(str(error), self.place(token)) from None
        if need and not text.strip():
            raise fail(need, self.place(token))
        return text

    def _start(self, place: SourceSpan, *parts: Pass | Statement) -> Script:
        passes = tuple(part for part in parts if isinstance(part, Pass))
        return Script(passes, tuple(p for p in parts if isinstance(p, Statement)), place=place)

    def _pipeline(self, place: SourceSpan, *calls: Call) -> Script:
        body = tuple(statements.read_statement("apply", [call], call.place) for call in calls)
        return Script((), body, place=place)

    def _pass(
        self,
        _: SourceSpan,
        name: Token,
        parameters: Sequence[Parameter] | None,
        description: Token,
        changing: tuple[()] | None,
        body: tuple[Statement, ...],
    ) -> Pass:
        text, declared = self.string(description), tuple(parameters or ())
        return Pass(str(name), text, declared, body, changing is not None, place=self.place(name))

    def _count(self, _: SourceSpan, token: Token) -> int:
        number = self.number(token, str(token))
        if isinstance(number, float) or number < 0:
            raise fail("expected a whole number", self.place(token))
        return number

    def _assuming(self, _: SourceSpan, reason: Token) -> str:
        return self.string(reason, "an assumption needs a reason")

    def _selection(
        self,
        place: SourceSpan,
        many: Token | None,
        pattern: OpPattern | Series | Module | NamedOps,
        within: tuple[str, bool] | None,
        condition: Expression | None,
    ) -> Selection:
        path, phase = within or ("", False)
        if isinstance(pattern, OpPattern):
            pattern = Series((pattern,), place=place)
        return Selection(pattern, many is not None, path, phase, condition, place=place)

    def _within(self, _: SourceSpan, word: Token) -> tuple[str, bool]:
        if word.type == "PHASE":
            return str(word), True
        return self.string(word, "expected the name of a module or a label"), False

    def _module(self, place: SourceSpan, word: Token) -> Module:
        if word.type == "NAME":
            return Module(str(word), True, place=place)
        return Module(self.string(word, "expected the path of a module"), place=place)

    def _several(self, _: SourceSpan, __: Token, pattern: OpPattern) -> OpPattern:
        return replace(pattern, many=True)

    def _op_pattern(
        self,
        _: SourceSpan,
        label: Token | None,
        results: tuple[Hole, ...] | None,
        name: Token,
        holes: tuple[Hole, ...] | None,
    ) -> OpPattern:
        return OpPattern(self.value(name), holes, results, str(label or ""), place=self.place(name))

    def _nested(self, _: SourceSpan, name: Token, holes: tuple[Hole, ...]) -> OpPattern:
        return OpPattern(self.value(name), holes, place=self.place(name))

    def _blank(self, place: SourceSpan, _: Token) -> Blank:
        return Blank(place=place)

    def _rest(self, place: SourceSpan, _: Token) -> Rest:
        return Rest(place=place)

    def _splat(self, place: SourceSpan, _: Token, name: Token, bang: Token | None) -> Splat:
        return Splat(self.value(name), bang is not None, place=place)

    def _new_op(
        self, _: SourceSpan, results: tuple[Part, ...] | None, name: Token, parts: tuple[Part, ...]
    ) -> NewOp:
        return expand_short_forms(
            NewOp(self.value(name), parts, results or (), place=self.place(name))
        )

    def _literal(self, place: SourceSpan, token: Token) -> Literal:
        return Literal(self.value(token), place=place)

    def _binary(
        self, place: SourceSpan, left: Expression, operator: Token, right: Expression
    ) -> Expression:
        return Binary(str(operator), left, right, place=place)

    _comparison = _sum = _product = _binary

    def _disjunction(self, place: SourceSpan, left: Expression, right: Expression) -> Expression:
        return Binary("or", left, right, place=place)

    def _conjunction(self, place: SourceSpan, left: Expression, right: Expression) -> Expression:
        return Binary("and", left, right, place=place)

    def _negation(self, place: SourceSpan, operand: Expression) -> Expression:
        return Unary("not", operand, place=place)

    def _minus(self, place: SourceSpan, operand: Expression) -> Expression:
        return Unary("-", operand, place=place)
