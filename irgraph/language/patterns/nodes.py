"""Patterns and templates: lines of ``model.ir`` with holes; ``str`` prints them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TypeAlias, Union

from irgraph.ir.op import is_call_name
from irgraph.language.expressions.nodes import Expression, Literal, Node, Splat, Variable
from irgraph.text.printer import quote


@dataclass(frozen=True)
class Bound(Node):
    """``%w`` binds a name; ``%w!`` requires that the op writes it in place."""

    name: str
    written: bool = False

    def __str__(self) -> str:
        return f"%{self.name}{'!' if self.written else ''}"


@dataclass(frozen=True)
class Blank(Node):
    """``_``: matches anything."""

    def __str__(self) -> str:
        return "_"


@dataclass(frozen=True)
class Rest(Node):
    """``...``: all arguments that are not named."""

    def __str__(self) -> str:
        return "..."


@dataclass(frozen=True)
class HoleList(Node):
    """A list of holes; a ``Splat`` among them matches the remaining elements."""

    items: tuple[Hole, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.items))}]"


@dataclass(frozen=True)
class NamedHole(Node):
    """An argument by the schema's name: ``mode = %m``."""

    name: str
    hole: Hole

    def __str__(self) -> str:
        return f"{self.name} = {self.hole}"


@dataclass(frozen=True)
class OpPattern(Node):
    """One op with holes.

    ``op`` is a dotted name, a glob such as ``aten.{addmm,mm}``, or any other text;
    ``holes`` and ``results`` are ``None`` if the pattern has no such list; with ``many`` it matches
    all such ops between two members of a series.
    """

    op: str
    holes: tuple[Hole, ...] | None = None
    results: tuple[Hole, ...] | None = None
    label: str = ""
    many: bool = False

    @cached_property
    def positional_holes(self) -> tuple[Hole, ...]:
        """The holes that match arguments by their position."""
        return tuple(hole for hole in self.holes or () if not isinstance(hole, (NamedHole, Rest)))

    @cached_property
    def named_holes(self) -> Mapping[str, Hole]:
        """The holes that match arguments by their names."""
        return {hole.name: hole.hole for hole in self.holes or () if isinstance(hole, NamedHole)}

    @cached_property
    def argument_names(self) -> Mapping[str, bool]:
        """The names among its arguments, except in nested ops, and whether it writes each."""
        outer = (hole for hole in self.holes or () if not isinstance(hole, OpPattern))
        return _writes_by_name(outer)

    @cached_property
    def result_names(self) -> Mapping[str, bool]:
        """The names among its results."""
        return _writes_by_name(self.results or ())

    @cached_property
    def has_nested(self) -> bool:
        """Whether the holes contain patterns of other ops."""
        return len(list(op_patterns(self))) > 1

    @cached_property
    def is_open(self) -> bool:
        """Whether the op may have more arguments than the pattern has holes."""
        return self.holes is None or any(isinstance(hole, Rest) for hole in self.holes)

    def __str__(self) -> str:
        label = "many " * self.many + (f"{self.label}: " if self.label else "")
        results = f"{', '.join(map(str, self.results))} = " if self.results else ""
        holes = "" if self.holes is None else f"({', '.join(map(str, self.holes))})"
        return f"{label}{results}{spell_op(self.op)}{holes}"


Hole: TypeAlias = Union[Bound, Blank, Rest, HoleList, NamedHole, Splat, Literal, OpPattern]


@dataclass(frozen=True)
class Series(Node):
    """Ops in launch order, possibly with others in between."""

    ops: tuple[OpPattern, ...]

    def __str__(self) -> str:
        """Return the pattern's text; a single op needs no braces."""
        ops = "  ".join(map(str, self.ops))
        return ops if len(self.ops) == 1 and not self.ops[0].many else f"{{ {ops} }}"


@dataclass(frozen=True)
class Module(Node):
    """The outermost ops that a module called.

    If ``is_name``, ``path`` is the name of a parameter or a ``let`` whose value is the path.
    """

    path: str
    is_name: bool = False

    def __str__(self) -> str:
        return f"module {self.path if self.is_name else quote(self.path)}"


@dataclass(frozen=True)
class NamedOps(Node):
    """The ops that an earlier ``find`` or ``as`` named."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Selection(Node):
    """The ops that a statement selects: a pattern, all its matches or the first, and conditions.

    ``within`` is a module's path or a label, or a phase if ``phase`` is set.
    """

    pattern: Series | Module | NamedOps
    many: bool = False
    within: str = ""
    phase: bool = False
    condition: Expression | None = None

    def __str__(self) -> str:
        text = f"{'many ' if self.many else ''}{self.pattern}"
        if self.within:
            text += f" within {self.within if self.phase else quote(self.within)}"
        return text + (f" where {self.condition}" if self.condition is not None else "")


@dataclass(frozen=True)
class ListTemplate(Node):
    """A list in a template."""

    items: tuple[Part, ...]

    def __str__(self) -> str:
        return f"[{', '.join(map(str, self.items))}]"


@dataclass(frozen=True)
class NamedArgument(Node):
    """An argument of a new op by the schema's name: ``mode = %m``."""

    name: str
    value: Expression

    def __str__(self) -> str:
        return f"{self.name} = {self.value}"


Part: TypeAlias = Union[Bound, Splat, Literal, ListTemplate, Rest, NamedArgument]


@dataclass(frozen=True)
class NewOp(Node):
    """A new op: its name, arguments and results."""

    op: str
    parts: tuple[Part, ...] = ()
    results: tuple[Part, ...] = ()

    @cached_property
    def argument_names(self) -> Mapping[str, bool]:
        """The names among its arguments, and whether it writes each."""
        return _writes_by_name(self.parts)

    @cached_property
    def result_names(self) -> Mapping[str, bool]:
        """The names among its results."""
        return _writes_by_name(self.results)

    @cached_property
    def operand_names(self) -> tuple[str, ...]:
        """The names that are its arguments, or elements of its list arguments."""
        return tuple(
            part.name for part in flatten_lists(self.parts) if isinstance(part, (Bound, Splat))
        )

    @cached_property
    def defined_names(self) -> tuple[str, ...]:
        """The names that are its results, or elements of its list results."""
        return tuple(p.name for p in flatten_lists(self.results) if isinstance(p, (Bound, Splat)))

    @cached_property
    def written_names(self) -> tuple[str, ...]:
        """The names in ``operand_names`` that it writes in place."""
        parts = (part for part in flatten_lists(self.parts) if isinstance(part, (Bound, Splat)))
        return tuple(part.name for part in parts if part.written)

    @cached_property
    def all_names(self) -> frozenset[str]:
        """Every name in its text."""
        return frozenset(re.findall(r"%(\w+)", str(self)))

    def __str__(self) -> str:
        results = f"{', '.join(map(str, self.results))} = " if self.results else ""
        return f"{results}{spell_op(self.op)}({', '.join(map(str, self.parts))})"


def _writes_by_name(parts: Iterable[Node]) -> Mapping[str, bool]:
    nodes = [node for part in parts for node in part.walk()]
    named_nodes = (node for node in nodes if isinstance(node, (Bound, Splat, Variable)))
    return {node.name: getattr(node, "written", False) for node in named_nodes}


@dataclass(frozen=True)
class Template(Node):
    """New ops, in launch order."""

    ops: tuple[NewOp, ...]

    def __str__(self) -> str:
        """Return the template's text; a single op needs no braces."""
        ops = "  ".join(map(str, self.ops))
        return ops if len(self.ops) == 1 else f"{{ {ops} }}"


_GLOB = re.compile(r"[A-Za-z_]\w*(\.([\w*]|\{[\w*,]+\})+)+")


def spell_op(name: str) -> str:
    """Return an op's name or glob as scripts write it: quoted unless it is dotted."""
    return name if is_call_name(name) or _GLOB.fullmatch(name) else quote(name)


def is_glob(name: str) -> bool:
    """Return whether an op's name in a pattern is a glob."""
    return bool(_GLOB.fullmatch(name)) and any(c in name for c in "*{")


@cache
def glob(name: str) -> re.Pattern[str]:
    """Return the regular expression of a glob such as ``aten.{addmm,mm}``."""
    text = ""
    inside = False
    for char in name:
        inside = inside and char != "}"
        fragment = {"*": r"\w*", "{": "(?:", "}": ")"}.get(char, re.escape(char))
        text += "|" if char == "," and inside else fragment
        inside = inside or char == "{"
    return re.compile(text)


def op_patterns(pattern: OpPattern) -> Iterator[OpPattern]:
    """Yield a pattern and the patterns among its holes, outer before inner."""
    return (node for node in pattern.walk() if isinstance(node, OpPattern))


def flatten_lists(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts of a template, with the items of its lists instead of the lists."""
    for part in parts:
        if isinstance(part, ListTemplate):
            yield from flatten_lists(part.items)
        else:
            yield part
