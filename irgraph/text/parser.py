"""General reader of ``model.ir``, by the grammar: it accepts any layout and reports all errors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from lark import Token, Tree
from lark.exceptions import UnexpectedInput

import grammars
from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan, fail, place_at
from irgraph.ir.graph import Graph
from irgraph.ir.op import EMPTY, Note, Op, Result, Value
from irgraph.ir.quantity import Quantity
from irgraph.ir.tensor import Tensor
from irgraph.text.builder import MAX_DEPTH, Builder, BuildError, unquote
from irgraph.text.canonical import word
from irgraph.text.syntax import syntax_error

Node = Tree[Token] | Token
Context = tuple[str, str, str, str]


def parse_any(text: str, source: str = "model.ir") -> Graph:
    """Return the graph of a text in any layout, through the grammar."""
    try:
        tree = grammars.load("model").parse(text)
        return _Reader(text, source).graph(tree)
    except UnexpectedInput as error:
        raise syntax_error(error, text, source) from None
    except RecursionError:
        raise fail("the text is nested too deeply to read", SourceSpan(source, text, 1)) from None


class _Reader:
    """Visitor of a syntax tree that calls the builder."""

    def __init__(self, text: str, source: str) -> None:
        self.text = text
        self.source = source
        self.builder = Builder(source)
        self.depth = 0

    def graph(self, tree: Tree[Token]) -> Graph:
        ops = []
        for child in tree.children:
            if not isinstance(child, Tree):
                continue
            if child.data == "op":
                ops.append(self.op(child, ("main", "", "", "forward")))
            else:
                self.guard(child, getattr(self, f"_{child.data}"))
        return self.builder.graph(tuple(ops))

    def guard(self, node: Tree[Token], action: object, *arguments: object) -> object:
        """Apply an action to a node; convert a ``BuildError`` into an error at its position."""
        try:
            return action(node, *arguments)  # type: ignore[operator]
        except BuildError as error:
            raise self.error(node, error) from None

    def error(self, node: Tree[Token], error: BuildError) -> IrgraphError:
        for token in node.scan_values(lambda value: isinstance(value, Token)):
            if error.word and error.word in (token, token.removesuffix("!")):
                return self.failure(error, token)
        return self.failure(error, next(_tokens(node)))

    def failure(self, error: BuildError, token: Token) -> IrgraphError:
        notes = []
        if error.is_duplicate:
            first = re.search(rf"(?<!\w){re.escape(error.word)}\b", self.text)
            start = first.start() if first else 0
            place = place_at(self.text, self.source, start, len(error.word))
            notes = [Diagnostic("first here", place, severity="note")]
        return fail(str(error), self.span(token), hint=error.hint, notes=notes)

    def span(self, token: Token) -> SourceSpan:
        return SourceSpan(self.source, self.text, token.line or 1, token.column or 1, len(token))

    def _header(self, node: Tree[Token]) -> None:
        self.builder.name = unquote(str(node.children[0]))
        settings = [child for child in node.children[1:] if isinstance(child, Tree)]
        for setting in settings:
            key, value = setting.children
            if isinstance(value, Tree):
                pairs = [str(t) for t in value.children if t is not None]
                for name, size in zip(pairs[::2], pairs[1::2], strict=True):
                    self.builder.dim(name, size)
        for setting in settings:
            key, value = setting.children
            if not isinstance(value, Tree):
                self.builder.setting(str(key), self.builder.literal(str(value)))

    def _device(self, node: Tree[Token]) -> None:
        name, sheet = map(str, node.children)
        self.builder.device(name[1:], unquote(sheet))

    def _stream(self, node: Tree[Token]) -> None:
        name, device = node.children
        self.builder.stream(_word(name), str(device)[1:])

    def _schema(self, node: Tree[Token]) -> None:
        self.builder.schemas.append(unquote(str(node.children[0])))

    def _tensor(self, node: Tree[Token]) -> None:
        role, name, label, type_node, value = node.children
        tensor = self.read_tensor(str(name)[1:], type_node)
        elements = None if value is None else self.operand(value, set())
        assert elements is None or isinstance(elements, tuple)
        self.builder.declare(str(role), tensor, unquote(str(label)) if label else "", elements)

    def _returned(self, node: Tree[Token]) -> None:
        names = [str(token)[1:] for token in node.children if token is not None]
        self.builder.set_results(names)

    def read_tensor(self, name: str, node: Node) -> Tensor:
        assert isinstance(node, Tree)
        dtype, sizes, strides, device, buffer, offset = node.children
        shape = _comma(sizes) + (f"; {_comma(strides)}" if strides is not None else "")
        location = str(buffer)[1:] + (f"+{offset}" if offset is not None else "")
        return self.builder.tensor(name, str(dtype), shape, str(device or "")[1:], location)

    def op(self, node: Tree[Token], outer: Context) -> Op:
        op = self.guard(node, self._op, outer)
        assert isinstance(op, Op)
        return op

    def _op(self, node: Tree[Token], outer: Context) -> Op:
        parts = _parts(node)
        name = str(parts["opname"].children[0])
        results = self.results(node, parts)
        written: set[str] = set()
        operands, attributes = self.arguments(node, written)
        context = _context(parts, outer)
        body = parts["body"].children if "body" in parts else []
        origin = parts["origin"].children[0] if "origin" in parts else None
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise BuildError(f"ops are nested more than {MAX_DEPTH} levels deep")
        ops = tuple(self.op(child, context) for child in body if isinstance(child, Tree))
        self.depth -= 1
        return Op(
            unquote(name) if name[0] == '"' else name,
            operands,
            results,
            attributes,
            frozenset(written),
            ops,
            *context,
            self.notes(parts["notes"]) if "notes" in parts else EMPTY,
            unquote(str(origin)) if origin is not None else "",
            node.meta.line,
        )

    def results(self, node: Tree[Token], parts: dict[str, Tree[Token]]) -> tuple[Result, ...]:
        names = parts["results"].children if "results" in parts else []
        types = parts["types"].children if "types" in parts else []
        if len(names) != len(types):
            message = f"{len(names)} results but {len(types)} types: give each its own"
            raise BuildError(message, str(next(_tokens(node))))
        return tuple(self.result(n, t) for n, t in zip(names, types, strict=True))

    def result(self, name: Node, kind: Node) -> Result:
        if isinstance(name, Tree):
            names = [str(child)[1:] for child in name.children if child is not None]
            is_list = isinstance(kind, Tree) and kind.data == "type_list"
            kinds = [c for c in kind.children if c is not None] if isinstance(kind, Tree) else []
            if not is_list or len(names) != len(kinds):
                word = names[0] if names else str(next(_tokens(kind), ""))
                raise BuildError("a list of results needs a list of as many types", word)
            return tuple(self.read_tensor(n, k) for n, k in zip(names, kinds, strict=True))
        assert isinstance(kind, Tree)
        if name == "_" or kind.data != "placed":
            if name == "_" and kind.data == "none_type":
                return None
            raise BuildError("'_' goes with the type 'none', a name with a tensor's type", name)
        return self.read_tensor(str(name)[1:], kind)

    def arguments(
        self, node: Tree[Token], written: set[str]
    ) -> tuple[tuple[Value, ...], dict[str, Value]]:
        operands: list[Value] = []
        attributes: dict[str, Value] = {}
        for child in node.children:
            if isinstance(child, Tree) and child.data == "named":
                key, value = child.children
                if str(key) in attributes:
                    raise BuildError(f"{key} is given twice", str(key))
                attributes[str(key)] = self.operand(value, written)
            elif isinstance(child, Token) or (
                isinstance(child, Tree) and child.data in ("written", "list")
            ):
                if attributes:
                    raise BuildError("operands come before named arguments", str(child))
                operands.append(self.operand(child, written))
        return tuple(operands), attributes

    def operand(self, node: Node, written: set[str]) -> Value:
        if isinstance(node, Token):
            text = str(node)
            return self.builder.use(text[1:]) if text[0] == "%" else self.builder.literal(text)
        if node.data == "written":
            name = str(node.children[0])[1:]
            written.add(name)
            return self.builder.use(name)
        return tuple(self.operand(child, written) for child in node.children if child is not None)

    def notes(self, node: Tree[Token]) -> dict[str, Note]:
        notes: dict[str, Note] = {}
        for note in node.children[1:]:
            assert isinstance(note, Tree)
            key, value = note.children
            if isinstance(value, Tree):
                number, unit = _split_quantity(str(value.children[0]))
                spread = value.children[1]
                width = _split_quantity(str(spread))[0] if spread is not None else 0.0
                notes[str(key)] = Quantity(number, unit, width)
            else:
                notes[str(key)] = word(str(value), self.builder)
        return notes


def _parts(node: Tree[Token]) -> dict[str, Tree[Token]]:
    return {str(c.data): c for c in node.children if isinstance(c, Tree)}


def _context(parts: dict[str, Tree[Token]], outer: Context) -> Context:
    thread, stream, module, phase = outer
    if "on" in parts:
        first, second = parts["on"].children
        thread, stream = _word(first), _word(second) if second is not None else ""
    if "module" in parts:
        module = unquote(str(parts["module"].children[0]))
    if "phase" in parts:
        phase = _word(parts["phase"].children[0])
    return thread, stream, module, phase


def _word(node: Node) -> str:
    return str(node.children[0]) if isinstance(node, Tree) else str(node)


def _comma(node: Node | None) -> str:
    return "" if node is None else ", ".join(str(t) for t in _tokens(node) if t != ";")


def _tokens(node: Node) -> Iterator[Token]:
    if isinstance(node, Token):
        yield node
        return
    for child in node.children:
        if child is not None:
            yield from _tokens(child)


def _split_quantity(text: str) -> tuple[float, str]:
    unit = text.lstrip("0123456789._eE+-")
    number = text[: len(text) - len(unit)]
    return float(number.rstrip("_")), unit
