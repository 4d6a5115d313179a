"""Patterns and templates: lines of ``model.ir`` with placeholders; ``str`` prints them."""

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
    """``...``: all that is not named."""

    def __str__(self) -> str:
        return "..."


@dataclass(frozen=True)
class HoleList(Node):
    """A list of placeholders; a ``Splat`` among them takes the remaining elements."""

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

    ``op`` is a dotted name, a glob such as ``aten.{addmm,mm}``, or any other words;
    ``holes`` and ``results`` are ``None`` where the pattern does not say; ``many`` stands for all
    such ops between two members of a series.
    """

    op: str
    holes: tuple[Hole, ...] | None = None
    results: tuple[Hole, ...] | None = None
    label: str = ""
    many: bool = False

    @cached_property
    def placed(self) -> tuple[Hole, ...]:
        """The holes that stand for arguments by their place."""
        return tuple(hole for hole in self.holes or () if not isinstance(hole, (NamedHole, Rest)))

    @cached_property
    def named(self) -> Mapping[str, Hole]:
        """The holes that stand for arguments by their names."""
        return {hole.name: hole.hole for hole in self.holes or () if isinstance(hole, NamedHole)}

    @cached_property
    def taken(self) -> Mapping[str, bool]:
        """The names among its arguments, and whether it writes them; not those of inner calls."""
        outer = (hole for hole in self.holes or () if not isinstance(hole, OpPattern))
        return _named(outer)

    @cached_property
    def made(self) -> Mapping[str, bool]:
        """The names among its results."""
        return _named(self.results or ())

    @cached_property
    def nests(self) -> bool:
        """Whether there are patterns of other ops among the holes."""
        return len(list(nested(self))) > 1

    @cached_property
    def open(self) -> bool:
        """Whether there may be more arguments than there are holes."""
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
    """The outermost ops that a module called; ``named`` where a parameter or ``let`` names it."""

    path: str
    named: bool = False

    def __str__(self) -> str:
        return f"module {self.path if self.named else quote(self.path)}"


@dataclass(frozen=True)
class NamedOps(Node):
    """The ops that an earlier ``find`` or ``as`` named."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Selection(Node):
    """What a statement is about: a pattern, all its matches or the first, and conditions.

    ``within`` is a module's path or a label, or a phase where ``phase`` is set.
    """

    pattern: Series | Module | NamedOps
    many: bool = False
    within: str = ""
    phase: bool = False
    where: Expression | None = None

    def __str__(self) -> str:
        text = f"{'many ' if self.many else ''}{self.pattern}"
        if self.within:
            text += f" within {self.within if self.phase else quote(self.within)}"
        return text + (f" where {self.where}" if self.where is not None else "")


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
    """An op to make: its name, arguments and results."""

    op: str
    parts: tuple[Part, ...] = ()
    results: tuple[Part, ...] = ()

    @cached_property
    def taken(self) -> Mapping[str, bool]:
        """The names among its arguments, and whether it writes them."""
        return _named(self.parts)

    @cached_property
    def made(self) -> Mapping[str, bool]:
        """The names among its results."""
        return _named(self.results)

    @cached_property
    def takes(self) -> tuple[str, ...]:
        """The names that stand among its arguments themselves, lists opened."""
        return tuple(part.name for part in opened(self.parts) if isinstance(part, (Bound, Splat)))

    @cached_property
    def makes(self) -> tuple[str, ...]:
        """The names that stand among its results themselves, lists opened."""
        return tuple(p.name for p in opened(self.results) if isinstance(p, (Bound, Splat)))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """Those of ``takes`` that it writes in place."""
        parts = (part for part in opened(self.parts) if isinstance(part, (Bound, Splat)))
        return tuple(part.name for part in parts if part.written)

    @cached_property
    def spelt(self) -> frozenset[str]:
        """Every name in its text."""
        return frozenset(re.findall(r"%(\w+)", str(self)))

    def __str__(self) -> str:
        results = f"{', '.join(map(str, self.results))} = " if self.results else ""
        return f"{results}{spell_op(self.op)}({', '.join(map(str, self.parts))})"


def _named(parts: Iterable[Node]) -> Mapping[str, bool]:
    nodes = [node for part in parts for node in part.walk()]
    found = (node for node in nodes if isinstance(node, (Bound, Splat, Variable)))
    return {node.name: getattr(node, "written", False) for node in found}


@dataclass(frozen=True)
class Template(Node):
    """The ops to make, in launch order."""

    ops: tuple[NewOp, ...]

    def __str__(self) -> str:
        """Return the template's text; a single op needs no braces."""
        ops = "  ".join(map(str, self.ops))
        return ops if len(self.ops) == 1 else f"{{ {ops} }}"


_GLOB = re.compile(r"[A-Za-z_]\w*(\.([\w*]|\{[\w*,]+\})+)+")


def spell_op(name: str) -> str:
    """Return an op's name or glob as scripts write it: quoted where it is no dotted name."""
    return name if is_call_name(name) or _GLOB.fullmatch(name) else quote(name)


def is_glob(name: str) -> bool:
    """Return whether an op's name in a pattern is a glob."""
    return bool(_GLOB.fullmatch(name)) and any(c in name for c in "*{")


@cache
def glob(name: str) -> re.Pattern[str]:
    """Return what ``aten.{addmm,mm}`` or ``aten._foreach_*`` matches."""
    text = ""
    inside = False
    for char in name:
        inside = inside and char != "}"
        piece = {"*": r"\w*", "{": "(?:", "}": ")"}.get(char, re.escape(char))
        text += "|" if char == "," and inside else piece
        inside = inside or char == "{"
    return re.compile(text)


def nested(pattern: OpPattern) -> Iterator[OpPattern]:
    """Yield a pattern and the patterns among its holes, outer before inner."""
    return (node for node in pattern.walk() if isinstance(node, OpPattern))


def opened(parts: Iterable[Part]) -> Iterator[Part]:
    """Yield parts of a template, those of lists one by one."""
    for part in parts:
        if isinstance(part, ListTemplate):
            yield from opened(part.items)
        else:
            yield part
