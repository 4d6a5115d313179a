"""Operator schemas: arguments, returns and writes, read from torch's own schema strings."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import suggestion
from irgraph.ir.op import Op, Result, Value
from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.custom_ops import custom_ops, package_ops


class Argument(Struct, frozen=True):
    """One argument of a schema.

    Attributes:
        name: as the schema spells it.
        type: without alias marks, such as ``Tensor``, ``Tensor[]``, ``Tensor?``, ``SymInt[]``.
        alias: letters of the alias set, ``""`` for a fresh value.
        written: whether the call writes it in place (``Tensor(a!)``).
        default: the literal's text, or ``None`` if the argument is required.
        keyword: whether it comes after the ``*``.
    """

    name: str
    type: str
    alias: str = ""
    written: bool = False
    default: str | None = None
    keyword: bool = False

    @property
    def is_tensor(self) -> bool:
        """Whether its type is a tensor or a list of tensors."""
        return self.type.startswith("Tensor")

    @property
    def is_list(self) -> bool:
        """Whether its type is a list."""
        return "[" in self.type

    @property
    def optional(self) -> bool:
        """Whether it accepts ``None``."""
        return self.type.endswith("?")


class Schema(Struct, frozen=True):
    """An operator overload: ``aten.add_`` with overload ``Tensor``, its arguments and returns."""

    name: str
    overload: str
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]
    composite: bool = False
    random: bool = False
    pointwise: bool = False

    @property
    def fresh_returns(self) -> tuple[Argument, ...]:
        """The returns that are not an argument written in place (those *are* the argument)."""
        return tuple(r for r in self.returns if not r.written)

    @property
    def has_out(self) -> bool:
        """Whether an argument receives the result."""
        return any(argument.name == "out" for argument in self.arguments)


class SchemaError(ValueError):
    """A schema string that cannot be read; the message quotes it."""


_HEAD = re.compile(
    r"\s*([A-Za-z_]\w*)::(\w+)(?:\.(\w+))?\((.*)\)\s*->\s*(.*)$", re.ASCII | re.DOTALL
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_TYPE = re.compile(r"^([A-Za-z_]\w*)(?:\(([^)]*)\))?((?:\[\d*\]|\?)*)$")


@cache
def parse_schema(
    text: str, composite: bool = False, random: bool = False, pointwise: bool = False
) -> Schema:
    """Parse torch's notation, ``aten::relu_(Tensor(a!) self) -> Tensor(a!)``.

    Raises:
        SchemaError: the text is not in this notation.
    """
    head = _HEAD.match(text)
    if head is None:
        raise SchemaError(f"not a schema in torch's notation: {text!r}")
    library, base, overload, inside, after = head.groups()
    arguments: list[Argument] = []
    keyword = False
    for part in _split(inside):
        if part == "*":
            keyword = True
        else:
            arguments.append(_argument(part, keyword))
    names = [argument.name for argument in arguments]
    if "" in names or len(set(names)) < len(names):
        raise SchemaError(f"not every argument has a name of its own: {text!r}")
    if library == "c10d" and base.endswith("_") and arguments:
        # torch omits the marks here: collectives write their first argument
        arguments[0] = replace(arguments[0], alias="a", written=True)
    returns = _split(after[1:-1]) if after.startswith("(") else [after]
    return Schema(
        f"{library}.{base}",
        overload or "",
        tuple(arguments),
        tuple(_argument(part, False) for part in returns if part),
        composite,
        random,
        pointwise,
    )


def _split(text: str) -> list[str]:
    """Split at commas outside brackets and quotes."""
    parts, depth, start, quoted = [], 0, 0, False
    for i, char in enumerate(text):
        if char in "\"'":
            quoted = not quoted
        elif not quoted and char in "([":
            depth += 1
        elif not quoted and char in ")]":
            depth -= 1
        elif char == "," and depth == 0 and not quoted:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return [part for part in parts if part]


def _argument(text: str, keyword: bool) -> Argument:
    declared, equals, default = text.partition("=")
    words = re.sub(r"(?<=[,>])\s+|\s+(?=->)", "", declared).split()
    name = words[1] if len(words) > 1 else ""
    if not words or len(words) > 2 or (name and not _NAME.fullmatch(name)):
        raise SchemaError(f"not an argument in torch's notation: {text!r}")
    match = _TYPE.match(words[0])
    if match is None or "," in words[0]:
        return Argument(name, words[0], default=default if equals else None, keyword=keyword)
    base, alias, suffix = match.groups()
    alias = alias or ""
    # an array type with a size, int[2], accepts any list
    kind = base + re.sub(r"\d", "", suffix)
    return Argument(
        name,
        kind,
        alias.replace("!", "").partition("->")[0].strip(),
        "!" in alias,
        default.strip() if equals else None,
        keyword,
    )


@cache
def _schema_lines() -> Mapping[str, tuple[str, ...]]:
    """Return the lines of the shipped file and of other schemas, unparsed, by op name."""
    text = (Path(__file__).parent / "torch_schemas" / "schemas.txt").read_text("utf-8")
    lines_by_op: dict[str, list[str]] = {}
    for line in (*text.splitlines()[1:], *(f"- {schema}" for schema in _other_schemas())):
        library, _, rest = line.partition("::")
        base = rest[: rest.index("(")].partition(".")[0]
        lines_by_op.setdefault(f"{library.partition(' ')[2]}.{base}", []).append(line)
    return {name: tuple(lines) for name, lines in lines_by_op.items()}


EVENT_SCHEMAS = (
    "sync::record() -> Tensor",
    "sync::wait(Tensor event) -> ()",
    "sync::event(Tensor event) -> ()",
)
"""Schemas of events: one is recorded on a stream, and a stream or the host waits for it."""


def _other_schemas() -> tuple[str, ...]:
    """Return the schemas of events and of ops that torch lacks."""
    return (*(custom.schema for custom in custom_ops().values()), *EVENT_SCHEMAS)


@cache
def schemas_of(name: str) -> tuple[Schema, ...]:
    """Return all overloads of a dotted op name, shipped or irgraph's own; empty if unknown."""
    schemas = []
    for line in _schema_lines().get(name, ()):
        flags, _, text = line.partition(" ")
        schemas.append(parse_schema(text, "c" in flags, "r" in flags, "p" in flags))
    return tuple(sorted(schemas, key=lambda schema: schema.has_out))


def known_ops() -> tuple[str, ...]:
    """Return the dotted names of all ops with a schema, sorted, for suggestions."""
    return tuple(sorted(_schema_lines()))


def shipped_ops() -> frozenset[str]:
    """Return the names of all ops with a schema, except what installed packages declare."""
    return frozenset(_schema_lines()) - package_ops()


@cache
def schema_words() -> frozenset[str]:
    """Return every word of the shipped schemas: libraries, operators, types, arguments."""
    lines_by_op = _schema_lines()
    texts = [line.partition(" ")[2] for name in shipped_ops() for line in lines_by_op[name]]
    return frozenset(re.findall(r"[^\W\d]\w*", " ".join(texts)))


def op_suggestion(name: str) -> str:
    """Return ``; did you mean 'aten.relu'?`` for ``torch.relu``, ``F.relu`` or ``nn.ReLU``.

    The suggestion is ATen's op of this name if it exists, and else the closest name.
    """
    op_names = known_ops()
    base = name.replace("::", ".").rpartition(".")[2].lower()
    return (
        f"; did you mean 'aten.{base}'?"
        if f"aten.{base}" in op_names
        else suggestion(name, op_names)
    )


def resolve(op: Op, extra: Sequence[str] = ()) -> Schema | None:
    """Return the overload that accepts this op's operands, or ``None`` if none does.

    ``extra`` are schema strings that a model declares for ops outside the shipped list. Of several
    overloads, a call with a body is of the first composite one: the others call nothing.
    """
    declared = [s for s in map(parse_schema, extra) if s.name == op.name]
    candidates = (*declared, *schemas_of(op.name))
    matching = (schema for schema in candidates if _matches(schema, op))
    first = next(matching, None)
    if first is None or first.composite or not op.body:
        return first
    return next((schema for schema in matching if schema.composite), first)


def _matches(schema: Schema, op: Op) -> bool:
    return accepts(schema, op) and written_by(schema, op) == op.written


def accepts(schema: Schema, op: Op) -> bool:
    """Return whether a schema accepts an op's arguments, regardless of the op's writes."""
    arguments, attributes = schema.arguments, op.attributes
    operand_count = len(op.operands)
    if operand_count > len(arguments):
        return False
    for argument, value in zip(arguments, op.operands, strict=False):
        if not _accepts_value(argument, value):
            return False
    attribute_count = 0
    for argument in arguments[operand_count:]:
        if argument.name in attributes:
            attribute_count += 1
            if not _accepts_value(argument, attributes[argument.name]):
                return False
        elif argument.default is None:
            return False
    return attribute_count == len(attributes)


def written_by(schema: Schema, op: Op) -> frozenset[str]:
    """Return the names of an op's tensors that a schema writes."""
    if not any(argument.written for argument in schema.arguments):
        return frozenset()
    return frozenset(t.name for a, v in bind(schema, op) if a.written for t in _tensors(v))


def bind(schema: Schema, op: Op) -> list[tuple[Argument, Value]]:
    """Pair a schema's arguments with an op's values for them, in schema order."""
    pairs: list[tuple[Argument, Value]] = []
    for i, argument in enumerate(schema.arguments):
        if i < len(op.operands):
            pairs.append((argument, op.operands[i]))
        elif argument.name in op.attributes:
            pairs.append((argument, op.attributes[argument.name]))
    return pairs


def arguments_of(op: Op, extra: Sequence[str] = ()) -> dict[str, Value]:
    """Return an op's arguments by the names of its schema; empty if no schema accepts the op.

    ``extra`` are schema strings, as in ``resolve``.
    """
    schema = resolve(op, extra)
    return {argument.name: value for argument, value in bind(schema, op)} if schema else {}


def _tensors(value: Value | Result) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple):
        return [t for item in value for t in _tensors(item)]
    return []


def _accepts_value(argument: Argument, value: Value) -> bool:
    if value is None:  # torch records an undefined tensor as None; any tensor may be undefined
        return argument.optional or argument.is_list or argument.is_tensor
    if argument.is_list:
        excluded = (int, float) if argument.is_tensor else Tensor
        if isinstance(value, tuple):
            return not any(isinstance(item, excluded) for item in value)
        return not (argument.is_tensor or isinstance(value, Tensor))
    return argument.is_tensor == isinstance(value, Tensor) and not isinstance(value, tuple)
