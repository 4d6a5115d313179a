"""Fast reader of canonical text, the layout of ``print_graph``, line by line.

Any other text raises ``NotCanonicalError``; then the grammar reads it, which accepts every layout
and reports all errors. A property test compares the two readers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from irgraph.ir.graph import Graph
from irgraph.ir.op import EMPTY, Note, Op, Result, Value
from irgraph.ir.quantity import Quantity
from irgraph.ir.tensor import Tensor
from irgraph.text.builder import MAX_DEPTH, Builder, unquote
from irgraph.text.printer import INDENT, print_step


class NotCanonicalError(ValueError):
    """The text is not in the canonical layout."""


_TEXT = r'"(?:[^"\\]|\\.)*"'
_INNER = rf"(?:[^\"\[\]]|{_TEXT})"
_UNIT = r"(?:ns|us|ms|s|B|KiB|MiB|GiB|TiB|%)"
_COUNT = r"\d[\d.]*(?:e[+-]?\d+)?"
_HEADER = re.compile(rf"model ({_TEXT}) \{{ (.*) \}}$")
_SETTING = re.compile(rf"(\w+) = (\{{[^}}]*\}}|{_TEXT}|[^\s\"{{]+)(?:  |$)", re.ASCII)
_TYPE = r"(\w+)\[([^\]]*)\](?: @(\w+))? in \$(\w+(?:\+[\w*+-]+)?)"
_TENSOR_TYPE = re.compile(_TYPE, re.ASCII)
_CALL = re.compile(
    rf"( *)(?:(?:%(\w+)|([%\w\[\], ]+)) = )?({_TEXT}|[A-Za-z_]\w*(?:\.\w+)+)"
    rf"\(([^\"()]*(?:{_TEXT}[^\"()]*)*)\)(?: : {_TYPE})?",
    re.ASCII,
)
"""A call up to the type of a single result; the types of several results are read separately."""
_SUFFIX = re.compile(
    rf"(?: on (\w+)(?:/(\w+))?)?(?: in module ({_TEXT}))?(?: phase (\w+))?"
    rf"(?: \[((?:[^\"\]]|{_TEXT})*)\])?(?: from ({_TEXT}))?( \{{)?$",
    re.ASCII,
)
_ARGUMENT = re.compile(
    rf"(?:([A-Za-z_]\w*) = )?"
    rf"(?:%(\w+)(!)?|\[((?:{_INNER}|\[{_INNER}*\])*)\]|({_TEXT}|[\w.@+*-]+))(?:, |$)",
    re.ASCII,
)
_NOTE = re.compile(
    rf"(\w+) = (?:({_COUNT})({_UNIT})(?: \+- ({_COUNT}){_UNIT})?|({_TEXT}|[\w.+-]+))(?:, |$)",
    re.ASCII,
)
_ARGUMENT_TEXT = re.compile(r"[^,\[]*\[[^\]]*\]|[^ ,][^,\[]*")
_SIMPLE_ARGUMENT = re.compile(r"(?:([A-Za-z_]\w*) = )?(?:\[([^\[\]\"]*)\]|([\w.@+*-]+))", re.ASCII)
_RESULT = re.compile(r"%\w+|_", re.ASCII)
_DECLARED = re.compile(rf"(input|param|state) %(\w+)(?: ({_TEXT}))? : ", re.ASCII)
_OTHER_DECLARATION = re.compile(
    rf"device @(\w+) ({_TEXT})$|stream (\w+) @(\w+)$|schema ({_TEXT})$", re.ASCII
)

Context = tuple[str, str, str, str]


def read_canonical(text: str, source: str = "") -> Graph:
    """Return the graph of a canonical text, or raise ``NotCanonicalError``.

    The text is canonical if printing the graph returns the same text.
    """
    reader = _Reader(Builder(source), text.split("\n"))
    try:
        reader.header()
        reader.declarations()
        ops = tuple(reader.ops(("main", "", "", "forward")))
        reader.returned()
        graph = reader.builder.graph(ops)
    except (ValueError, IndexError) as error:
        raise NotCanonicalError(str(error)) from error
    if print_step(graph) != text:
        raise NotCanonicalError("the layout is another one")
    return graph


class _Reader:
    def __init__(self, builder: Builder, lines: list[str]) -> None:
        self.builder = builder
        self.lines = lines
        self.index = 0
        self.words: dict[str, tuple[str, Value]] = {}

    def header(self) -> None:
        match = _HEADER.match(self.lines[0])
        if match is None or self.lines[1:2] != [""]:
            raise NotCanonicalError("header")
        self.builder.name = unquote(match[1])
        for name, value in _matches(_SETTING, match[2]):
            if value[0] != "{":
                self.builder.setting(name, self.builder.literal(value))
                continue
            for item in filter(None, value[1:-1].split(", ")):
                dim, _, size = item.partition(" = ")
                self.builder.dim(dim, size)
        self.index = 2

    def declarations(self) -> None:
        while self.lines[self.index] and not self.lines[self.index].startswith("%"):
            line = self.lines[self.index]
            match = _DECLARED.match(line)
            if match is not None:
                tensor, end = self.read_tensor(match[2], line, match.end())
                label = unquote(match[3]) if match[3] else ""
                self.builder.declare(match[1], tensor, label, self.value(line[end:]))
            else:
                self.other_declaration(line)
            self.index += 1
        if self.lines[self.index]:
            raise NotCanonicalError("no blank line before the ops")
        if self.index < len(self.lines) - 1:
            self.index += 1

    def value(self, text: str) -> tuple[Value, ...] | None:
        """Return the elements of a declared tensor, ``None`` if the text has none."""
        if not text:
            return None
        if not (text.startswith(" = [") and text.endswith("]")):
            raise NotCanonicalError("declaration")
        return self.arguments(text[4:-1], set())[0] if len(text) > 5 else ()

    def other_declaration(self, line: str) -> None:
        match = _OTHER_DECLARATION.match(line)
        if match is None:
            raise NotCanonicalError("declaration")
        device, sheet, stream, on, schema = match.groups()
        if device:
            self.builder.device(device, unquote(sheet))
        elif stream:
            self.builder.stream(stream, on)
        else:
            self.builder.schemas.append(unquote(schema))

    def ops(self, outer: Context) -> Iterator[Op]:
        while self.index < len(self.lines):
            line = self.lines[self.index]
            if line.startswith("return") or (line.endswith("}") and not line.strip(" }")):
                return
            if not line:
                if self.index != len(self.lines) - 1:
                    raise NotCanonicalError("blank line")
                return
            yield self.op(line, outer)

    def returned(self) -> None:
        """Read the results of the step from the last line, if there is a ``return``."""
        line = self.lines[self.index] if self.index < len(self.lines) else ""
        if line.startswith("return"):
            names = line.removeprefix("return ").split(", ") if line != "return" else []
            self.builder.set_results(name.removeprefix("%") for name in names)
            self.index += 1

    def op(self, line: str, outer: Context) -> Op:
        call = _CALL.match(line)
        if call is None:
            raise NotCanonicalError(line)
        indent, result_name, result_names, name, argument_text, dtype, shape, device, location = (
            call.groups()
        )
        results: tuple[Result, ...] = ()
        end = call.end()
        if result_name and dtype:
            results = (self.builder.tensor(result_name, dtype, shape, device or "", location),)
        else:
            end = call.end(5) + 1
            results, end = self.results(result_names, line, end) if result_names else ((), end)
        written: set[str] = set()
        operands, attributes = (
            self.arguments(argument_text, written) if argument_text else ((), EMPTY)
        )
        context, notes, origin, has_body = outer, EMPTY, "", False
        if end != len(line):
            context, notes, origin, has_body = self.suffix(line, end, outer)
        self.index += 1
        number = self.index
        body = self.body(indent, context) if has_body else ()
        if name[0] == '"':
            name = unquote(name)
        return Op(
            name,
            operands,
            results,
            attributes,
            frozenset(written),
            body,
            *context,
            notes,
            origin,
            number,
        )

    def body(self, indent: str, context: Context) -> tuple[Op, ...]:
        """Read the calls inside a call up to its closing brace."""
        if len(indent) > MAX_DEPTH * len(INDENT):
            raise NotCanonicalError("too deep")
        body = tuple(self.ops(context))
        if not body or self.lines[self.index] != indent + "}":
            raise NotCanonicalError("body")
        self.index += 1
        return body

    def suffix(
        self, line: str, position: int, outer: Context
    ) -> tuple[Context, Mapping[str, Note], str, bool]:
        """Return thread, stream, module and phase, notes, origin, and whether a body follows."""
        match = _SUFFIX.match(line, position)
        if match is None:
            raise NotCanonicalError(line)
        thread, stream, module, phase, notes, origin, brace = match.groups()
        context = (
            thread or outer[0],
            (stream or "") if thread else outer[1],
            unquote(module) if module else outer[2],
            phase or outer[3],
        )
        note_by_name = self.notes(notes) if notes else EMPTY
        return context, note_by_name, unquote(origin) if origin else "", bool(brace)

    def results(self, names: str, line: str, position: int) -> tuple[tuple[Result, ...], int]:
        if line[position : position + 3] != " : ":
            raise NotCanonicalError("types")
        position += 3
        results: list[Result] = []
        for i, name in enumerate(_split_names(names)):
            position += 2 * bool(i)
            if isinstance(name, list):
                items, position = self.read_tensors(name, line, position)
                results.append(items)
            elif name == "_":
                position += len("none")
                results.append(None)
            else:
                tensor, position = self.read_tensor(name, line, position)
                results.append(tensor)
        return tuple(results), position

    def read_tensors(
        self, names: list[str], line: str, position: int
    ) -> tuple[tuple[Tensor, ...], int]:
        items: list[Tensor] = []
        for name in names:
            tensor, end = self.read_tensor(name, line, position + 1 + bool(items))
            items.append(tensor)
            position = end
        return tuple(items), position + (1 if items else 2)

    def read_tensor(self, name: str, line: str, position: int) -> tuple[Tensor, int]:
        match = _TENSOR_TYPE.match(line, position)
        if match is None:
            raise NotCanonicalError("type")
        tensor = self.builder.tensor(
            name.removeprefix("%"), match[1], match[2], match[3] or "", match[4]
        )
        return tensor, match.end()

    def arguments(
        self, text: str, written: set[str]
    ) -> tuple[tuple[Value, ...], Mapping[str, Value]]:
        """Return operands and attributes: names of tensors, and texts that are cached."""
        operands: list[Value] = []
        attributes: dict[str, Value] = {}
        tensors, words = self.builder.tensors, self.words
        for argument_text in _ARGUMENT_TEXT.findall(text) if "[" in text else text.split(", "):
            tensor = tensors.get(argument_text[1:]) if argument_text[:1] == "%" else None
            if tensor is not None and not attributes:
                operands.append(tensor)
                continue
            argument = words.get(argument_text) or self.simple_argument(argument_text, written)
            if argument is None:
                return self.any_arguments(text, written)
            key, value = argument
            if bool(attributes) > bool(key) or key in attributes:
                raise NotCanonicalError(f"{argument_text} has another place")
            if key:
                attributes[key] = value
            else:
                operands.append(value)
        return tuple(operands), attributes or EMPTY

    def simple_argument(self, text: str, written: set[str]) -> tuple[str, Value] | None:
        """Return the name and the value of an argument; cache it if it refers to no tensors.

        ``None`` if it is not simple; the name is ``""`` for an operand.
        """
        if text[:1] == "%" and text[-1] == "!":
            written.add(text[1:-1])
            return "", self.builder.use(text[1:-1])
        match = _SIMPLE_ARGUMENT.fullmatch(text)
        if match is None:
            return None
        key, items, bare_word = match.groups()
        if bare_word is not None:
            argument: tuple[str, Value] = key or "", self.builder.literal(bare_word)
        else:
            argument = key or "", self.any_arguments(items, written)[0]
        if "%" not in text:
            self.words[text] = argument
        return argument

    def any_arguments(
        self, text: str, written: set[str]
    ) -> tuple[tuple[Value, ...], Mapping[str, Value]]:
        """Return operands and attributes of any kind, including nested lists and strings."""
        operands: list[Value] = []
        attributes: dict[str, Value] = {}
        for key, name, mark, items, bare_word in _matches(_ARGUMENT, text):
            value: Value
            if name:
                value = self.builder.use(name)
                if mark:
                    written.add(name)
            elif bare_word:
                value = self.builder.literal(bare_word)
            else:
                value = self.any_arguments(items, written)[0] if items else ()
            if key:
                if key in attributes:
                    raise NotCanonicalError(f"{key} is given twice")
                attributes[key] = value
            elif attributes:
                raise NotCanonicalError("an operand after attributes")
            else:
                operands.append(value)
        return tuple(operands), attributes or EMPTY

    def notes(self, text: str) -> dict[str, Note]:
        notes: dict[str, Note] = {}
        for name, value, unit, spread, bare_word in _matches(_NOTE, text):
            if unit:
                notes[name] = Quantity(float(value), unit, float(spread or 0.0))
            else:
                notes[name] = word(bare_word, self.builder)
        return notes


def word(text: str, builder: Builder) -> Note:
    """Return a note's value: a bare word is a string."""
    if text.isidentifier() and text not in ("true", "false", "none", "inf", "nan"):
        return text
    value = builder.literal(text)
    return value if isinstance(value, str | int | float | bool) else None


def _matches(pattern: re.Pattern[str], text: str) -> Iterator[tuple[str, ...]]:
    position = 0
    while position < len(text):
        match = pattern.match(text, position)
        if match is None or match.end() == position:
            raise NotCanonicalError(text)
        position = match.end()
        yield match.groups()


def _split_names(names: str) -> list[str | list[str]]:
    if "[" not in names:
        simple_names = names.split(", ")
        if not all(map(_RESULT.fullmatch, simple_names)):
            raise NotCanonicalError(names)
        return list(simple_names)
    groups: list[str | list[str]] = []
    for match in re.finditer(r"\[([^\]]*)\]|%\w+|_", names):
        groups.append([n for n in match[1].split(", ") if n] if match[1] is not None else match[0])
    return groups
