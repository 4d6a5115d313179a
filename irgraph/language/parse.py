"""Reads the text of scripts and pipelines; errors show line, column, caret and a near word."""

from __future__ import annotations

from lark import Token, Tree
from lark.exceptions import UnexpectedInput

import grammars
from irgraph.language.expressions import Expression
from irgraph.language.patterns import Selection
from irgraph.language.reader import Node, Reader, present, token_of, tree_of
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
    Parameter,
    Pass,
    PlaceIn,
    Remove,
    Reorder,
    Repeat,
    Replace,
    Resize,
    Script,
    Shard,
    Statement,
    Subject,
    Swap,
    Sweep,
    Target,
)
from irgraph.text.diagnostics import fail, place_at
from irgraph.text.syntax import syntax_error


def parse_script(text: str, source: str = "script") -> Script:
    """Return the script of a text; raise ``IrgraphError`` (exit code 4) where it is none."""
    return _read(text, source, "start")


def parse_pipeline(text: str, source: str = "pipeline") -> Script:
    """Return the script that applies passes in order: ``fuse-embedding(least=4), tidy``."""
    return _read(text, source, "pipeline")


def _read(text: str, source: str, start: str) -> Script:
    try:
        tree = grammars.load("transform", start).parse(text)
        reader = _Statements(text, source)
        return reader.script(tree) if start == "start" else reader.pipeline(tree)
    except UnexpectedInput as error:
        raise syntax_error(error, text, source) from None
    except RecursionError:
        place = place_at(text, source, 0)
        raise fail("this is nested too deeply", place) from None


class _Statements(Reader):
    """Adds statements to what ``Reader`` knows."""

    def script(self, tree: Tree[Token]) -> Script:
        passes = [self._pass(child) for child in _trees(tree) if child.data == "pass"]
        body = [self.statement(child) for child in _trees(tree) if child.data != "pass"]
        return Script(tuple(passes), tuple(body), place=self.place(tree))

    def pipeline(self, tree: Tree[Token]) -> Script:
        calls = [self._call(child) for child in tree.children]
        applied = tuple(Apply(call, place=call.place) for call in calls)
        return Script((), applied, place=self.place(tree))

    def _pass(self, tree: Tree[Token]) -> Pass:
        name, parameters, description, *body = tree.children
        assert isinstance(name, Token)
        assert isinstance(description, Token)
        declared = [] if parameters is None else list(present(tree_of(parameters)))
        return Pass(
            str(name),
            self.string(description),
            tuple(self._parameter(tree_of(child)) for child in declared),
            tuple(self.statement(tree_of(child)) for child in body),
            place=self.place(name),
        )

    def _parameter(self, tree: Tree[Token]) -> Parameter:
        name, kind, default = tree.children
        value = None if default is None else self.expression(default)
        return Parameter(str(name), str(kind), value, place=self.place(tree))

    def statement(self, tree: Tree[Token]) -> Statement:
        """Read one statement."""
        made: Statement = getattr(self, f"_{tree.data}")(tree)
        return made

    def _block(self, node: Node) -> tuple[Statement, ...]:
        return tuple(self.statement(child) for child in _trees(tree_of(node)))

    def _let(self, tree: Tree[Token]) -> Let:
        name, value = tree.children
        return Let(str(name), self.expression(value), place=self.place(tree))

    def _find(self, tree: Tree[Token]) -> Find:
        name, selection = tree.children
        return Find(str(name), self.selection(selection), place=self.place(tree))

    def _apply(self, tree: Tree[Token]) -> Apply:
        return Apply(self._call(tree.children[0]), place=self.place(tree))

    def _call(self, node: Node) -> Call:
        tree = tree_of(node)
        name, keywords = tree.children
        pairs = (
            [] if keywords is None else [tree_of(k).children for k in present(tree_of(keywords))]
        )
        arguments = tuple((str(key), self.expression(value)) for key, value in pairs)
        return Call(str(name), arguments, place=self.place(tree))

    def _repeat(self, tree: Tree[Token]) -> Repeat:
        most, body = tree.children
        return Repeat(self._count(most), self._block(body), place=self.place(tree))

    def _count(self, node: Node) -> int:
        assert isinstance(node, Token)
        number = self.number(node)
        if isinstance(number, float) or number < 0:
            raise fail("a whole number is needed here", self.place(node))
        return number

    def _sweep(self, tree: Tree[Token]) -> Sweep:
        axes, body, report, best = tree.children
        pairs = [tree_of(axis).children for axis in _trees(tree_of(axes))]
        return Sweep(
            tuple((str(name), self.expression(values)) for name, values in pairs),
            self._block(body),
            tuple(self.expression(child) for child in tree_of(report).children),
            self._optional(best),
            place=self.place(tree),
        )

    def _optional(self, node: Node) -> Expression | None:
        return None if node is None else self.expression(node)

    def _clause(self, node: Node) -> Expression | None:
        return None if node is None else self.expression(tree_of(node).children[0])

    def _target(self, tree: Tree[Token]) -> Target:
        return Target(self.expression(tree.children[0]), place=self.place(tree))

    def _expect(self, tree: Tree[Token]) -> Expect:
        count, selection = tree.children
        assert isinstance(count, Token)
        number = 0 if count.type == "NO" else self._count(count)
        return Expect(number, self.selection(selection), place=self.place(tree))

    def _fuse(self, tree: Tree[Token]) -> Fuse:
        selection, group, template, named, assuming = tree.children
        keys, having = (None, None) if group is None else tree_of(group).children
        return Fuse(
            self.selection(selection),
            self.template(template),
            () if keys is None else tuple(self.expression(k) for k in tree_of(keys).children),
            self._clause(having),
            self._text(named),
            self._reason(assuming),
            place=self.place(tree),
        )

    def _text(self, node: Node) -> str:
        """Return the word or string of a clause, nothing where there is none."""
        if node is None:
            return ""
        token = token_of(node)
        return self.string(token) if token.type == "STRING" else str(token)

    def _reason(self, node: Node) -> str:
        return "" if node is None else self.words(token_of(node), "an assumption needs a reason")

    def _replace(self, tree: Tree[Token]) -> Replace:
        selection, template, named, assuming = tree.children
        return Replace(
            self.selection(selection),
            self.template(template),
            self._text(named),
            self._reason(assuming),
            place=self.place(tree),
        )

    def _swaps(self, node: Node) -> tuple[Swap, ...]:
        pairs = [] if node is None else _trees(tree_of(node))
        return tuple(
            Swap(str(swap.children[0])[1:], str(swap.children[1])[1:], place=self.place(swap))
            for swap in pairs
        )

    def _remove(self, tree: Tree[Token]) -> Remove:
        selection, rewire, assuming = tree.children
        return Remove(
            self.selection(selection),
            self._swaps(rewire),
            self._reason(assuming),
            place=self.place(tree),
        )

    def _anchor(self, node: Node) -> Anchor:
        tree = tree_of(node)
        side, nth, selection = tree.children
        found = self.selection(selection)
        return Anchor(str(side), found, "" if nth is None else str(nth), place=self.place(tree))

    def _insert(self, tree: Tree[Token]) -> Insert:
        template, anchor, rewire, named = tree.children
        return Insert(
            self.template(template),
            self._anchor(anchor),
            self._swaps(rewire),
            self._text(named),
            place=self.place(tree),
        )

    def _reorder(self, tree: Tree[Token]) -> Reorder:
        selection, to, on, assuming = tree.children
        where = str(to) if isinstance(to, Token) else self._anchor(to)
        return Reorder(
            self.selection(selection),
            where,
            self._text(on),
            self._reason(assuming),
            place=self.place(tree),
        )

    def _parallelize(self, tree: Tree[Token]) -> Parallelize:
        *selections, streams, assuming = tree.children
        found: tuple[Selection, ...] = tuple(self.selection(child) for child in selections)
        over = self.expression(streams)
        return Parallelize(found, over, self._reason(assuming), place=self.place(tree))

    def _resize(self, tree: Tree[Token]) -> Resize:
        of, size = tree.children
        value = self.expression(size)
        if isinstance(of, Token):
            return Resize(value, str(of), place=self.place(tree))
        operand, axis, selection = tree_of(of).children
        return Resize(
            value,
            operand=str(operand)[1:],
            axis=self._count(axis),
            selection=self.selection(selection),
            place=self.place(tree),
        )

    def _subject(self, node: Node) -> Subject:
        tree = tree_of(node)
        place = self.place(tree)
        if tree.data == "operand_of":
            operand, selection = tree.children
            return Subject(self.selection(selection), str(operand)[1:], place=place)
        if tree.data == "labelled":
            role, label, where = tree.children
            assert isinstance(label, Token)
            condition = self._clause(where)
            return Subject(None, "", str(role), self.string(label), condition, place=place)
        return Subject(self.selection(tree), place=place)

    def _cast(self, tree: Tree[Token]) -> Cast:
        subject, to, scaled = tree.children
        target = self.expression(to)
        return Cast(self._subject(subject), target, self._text(scaled), place=self.place(tree))

    def _shard(self, tree: Tree[Token]) -> Shard:
        subject, over, axis, balanced, joined = tree.children
        return Shard(
            self._subject(subject),
            self.expression(over),
            str(axis),
            self._clause(balanced),
            self._text(joined),
            place=self.place(tree),
        )

    def _place(self, tree: Tree[Token]) -> PlaceIn:
        subject, memory, cached = tree.children
        held = self._subject(subject)
        return PlaceIn(held, str(memory), self._clause(cached), place=self.place(tree))


def _trees(tree: Tree[Token]) -> list[Tree[Token]]:
    return [child for child in tree.children if isinstance(child, Tree)]
