"""From the grammar's trees to expressions, patterns and templates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from lark import Token, Tree

from irgraph.ir.op import Value
from irgraph.ir.quantity import Quantity
from irgraph.ir.tensor import DeviceRef, DType
from irgraph.language.expressions import (
    Attribute,
    Binary,
    Expression,
    Item,
    ListOf,
    Literal,
    Name,
    Splat,
    Unary,
    Variable,
)
from irgraph.language.patterns import (
    Blank,
    Bound,
    Found,
    Given,
    Hole,
    Listed,
    Module,
    Named,
    NewOp,
    OpPattern,
    Part,
    Parts,
    Rest,
    Selection,
    Series,
    Template,
)
from irgraph.language.short_forms import spelled_out
from irgraph.text.builder import BuildError, unquote
from irgraph.text.diagnostics import Place, fail, place_at

Node = Tree[Token] | Token | None
DEEPEST = 100
"""Levels of nesting that a script may have."""

LARGEST = 1e300
"""Numbers in scripts are smaller than this."""

WORDS = {"true": True, "false": False, "none": None}


class Reader:
    """Walks trees of one text; every object it makes knows its place."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.depth = 0

    def place(self, node: Tree[Token] | Token) -> Place:
        """Return the place of a node; an empty one lies at the text's start."""
        token = node if isinstance(node, Token) else node.meta
        start = getattr(token, "start_pos", None) or 0
        end = getattr(token, "end_pos", None) or start + 1
        return place_at(self.text, self.source, start, end - start)

    def string(self, token: Token) -> str:
        """Return the value of a string literal."""
        try:
            return unquote(str(token))
        except BuildError as error:
            raise fail(str(error), self.place(token)) from None

    def words(self, token: Token, need: str) -> str:
        """Return the value of a string that must say something."""
        text = self.string(token)
        if not text.strip():
            raise fail(need, self.place(token))
        return text

    def number(self, token: Token) -> int | float:
        """Return the value of a number; underscores may stand between digits."""
        text = str(token)
        try:
            value = int(text) if text.lstrip("-").replace("_", "").isdigit() else float(text)
        except ValueError:
            raise fail(f"not a number: {text[:40]!r}", self.place(token)) from None
        if not abs(value) < LARGEST:
            raise fail(f"a number below 1e300 is needed here, not {text[:40]}", self.place(token))
        return value

    def literal(self, node: Tree[Token]) -> Literal:
        """Read a literal."""
        token = token_of(node)
        return Literal(self._value(token), place=self.place(token))

    def _value(self, token: Token) -> Value | Quantity:
        if token.type == "NUMBER":
            return self.number(token)
        if token.type == "STRING":
            return self.string(token)
        if token.type == "BOOL":
            return WORDS[token]
        if token.type == "QUANTITY":
            unit = str(token).lstrip("0123456789_.eE+-")
            number = Token("NUMBER", str(token).removesuffix(unit))
            return Quantity(float(self.number(Token.new_borrow_pos("NUMBER", number, token))), unit)
        return DType(token) if token.type == "DTYPE" else DeviceRef(token[1:])

    @contextmanager
    def level(self, tree: Tree[Token]) -> Iterator[None]:
        """Count how deeply a node is nested; too deep is an error, not a crash."""
        self.depth += 1
        if self.depth > DEEPEST:
            raise fail("this is nested too deeply", self.place(tree))
        yield
        self.depth -= 1

    def expression(self, node: Node) -> Expression:
        """Read an expression."""
        tree = tree_of(node)
        with self.level(tree):
            return self._expression(tree)

    def _expression(self, tree: Tree[Token]) -> Expression:
        kind = str(tree.data)
        place = self.place(tree)
        if kind == "literal":
            return self.literal(tree)
        if kind == "list":
            return ListOf(tuple(self._element(child) for child in present(tree)), place=place)
        if kind in ("name", "phase", "variable"):
            return self._word(kind, token_of(tree))
        if kind in ("negation", "minus"):
            operator = "not" if kind == "negation" else "-"
            return Unary(operator, self.expression(tree.children[0]), place=place)
        return self._compound(kind, tree, place)

    def _word(self, kind: str, token: Token) -> Expression:
        place = self.place(token)
        if kind == "phase":
            return Literal(str(token), place=place)
        if kind == "name":
            return Name(str(token), place=place)
        return Variable(str(token)[1:], place=place)

    def _compound(self, kind: str, tree: Tree[Token], place: Place) -> Expression:
        first, last = tree.children[0], tree.children[-1]
        if kind == "attribute":
            return Attribute(self.expression(first), str(last), place=place)
        if kind == "item":
            return Item(self.expression(first), self.expression(last), place=place)
        operator = {"disjunction": "or", "conjunction": "and"}.get(kind) or str(tree.children[1])
        return Binary(operator, self.expression(first), self.expression(last), place=place)

    def _element(self, node: Node) -> Expression | Splat:
        tree = tree_of(node)
        return self.splat(tree) if tree.data == "spread" else self.expression(tree)

    def splat(self, tree: Tree[Token]) -> Splat:
        """Read ``*%w``."""
        _, name, bang = tree.children
        return Splat(str(name)[1:], bang is not None, place=self.place(tree))

    def selection(self, node: Node) -> Selection:
        """Read a selection."""
        tree = tree_of(node)
        many, pattern, within, where = tree.children
        path, phase = "", False
        if within is not None:
            token = token_of(within)
            phase = token.type == "PHASE"
            path = str(token) if phase else self.words(token, "name a module or a label")
        condition = None if where is None else self.expression(tree_of(where).children[0])
        matched = self._pattern(tree_of(pattern))
        return Selection(matched, many is not None, path, phase, condition, place=self.place(tree))

    def _pattern(self, tree: Tree[Token]) -> Series | Module | Found:
        place = self.place(tree)
        if tree.data == "module":
            token = token_of(tree)
            if token.type == "NAME":
                return Module(str(token), True, place=place)
            return Module(self.words(token, "name a module"), place=place)
        if tree.data == "found":
            return Found(str(token_of(tree)), place=place)
        if tree.data == "series":
            return Series(tuple(map(self._member, tree.children)), True, place=place)
        return Series((self.op(tree),), place=place)

    def _member(self, node: Node) -> OpPattern:
        tree = tree_of(node)
        if tree.data == "several":
            return replace(self.op(tree.children[1]), many=True)
        return self.op(tree)

    def op(self, node: Node) -> OpPattern:
        """Read one op of a pattern."""
        tree = tree_of(node)
        label, results, name, holes = tree.children
        place = self.place(name if isinstance(name, Token) else tree)
        return OpPattern(
            self._op_name(name),
            None if holes is None else self._holes(holes),
            None if results is None else self._holes(results),
            "" if label is None else str(token_of(label)),
            place=place,
        )

    def _op_name(self, node: Node) -> str:
        assert isinstance(node, Token)
        return self.string(node) if node.type == "STRING" else str(node)

    def _holes(self, node: Node) -> tuple[Hole, ...]:
        return tuple(self.hole(child) for child in present(tree_of(node)))

    def hole(self, node: Node) -> Hole:
        """Read one hole."""
        tree = tree_of(node)
        place = self.place(tree)
        first = tree.children[0]
        kind = tree.data
        if kind == "bound":
            return Bound(str(first)[1:], tree.children[1] is not None, place=place)
        if kind == "nested":
            assert isinstance(first, Token)
            with self.level(tree):
                holes = self._holes(tree.children[1])
            return OpPattern(self._op_name(first), holes, place=self.place(first))
        if kind == "named_hole":
            return Named(str(first), self.hole(tree.children[1]), place=place)
        if kind == "list_hole":
            with self.level(tree):
                return Listed(self._holes(tree), place=place)
        if kind == "spread":
            return self.splat(tree)
        if kind == "literal":
            return self.literal(tree)
        return Blank(place=place) if kind == "blank" else Rest(place=place)

    def template(self, node: Node) -> Template:
        """Read a template."""
        tree = tree_of(node)
        braces = tree.data == "templates"
        ops = [self._new(child) for child in (tree.children if braces else [tree])]
        return Template(tuple(ops), braces, place=self.place(tree))

    def _new(self, node: Node) -> NewOp:
        tree = tree_of(node)
        made, name, parts = tree.children
        results = () if made is None else self._parts(made)
        assert isinstance(name, Token)
        new = NewOp(self._op_name(name), self._parts(parts), results, place=self.place(name))
        return spelled_out(new)

    def _parts(self, node: Node) -> tuple[Part, ...]:
        return tuple(self._part(child) for child in present(tree_of(node)))

    def _part(self, node: Node) -> Part:
        tree = tree_of(node)
        place = self.place(tree)
        if tree.data in ("made_list", "part_list"):
            with self.level(tree):
                return Parts(self._parts(tree), place=place)
        if tree.data == "named_part":
            name, value = tree.children
            return Given(str(name), self.expression(value), place=place)
        if tree.data == "spread":
            return self.splat(tree)
        part = self.hole(tree)
        assert isinstance(part, (Bound, Literal, Rest))
        return part


def tree_of(node: Node) -> Tree[Token]:
    """Return a child that the grammar makes a tree."""
    assert isinstance(node, Tree)
    return node


def token_of(node: Node) -> Token:
    """Return the first word of a tree."""
    token = tree_of(node).children[0]
    assert isinstance(token, Token)
    return token


def present(tree: Tree[Token]) -> Iterator[Tree[Token] | Token]:
    """Yield the children that are there."""
    for child in tree.children:
        if child is not None:
            yield child
