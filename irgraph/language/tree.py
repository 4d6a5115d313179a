"""Scripts, passes and statements as objects; ``str`` gives the text of a script again.

What a statement is about (patterns, templates, expressions) is in ``patterns`` and ``expressions``.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, Union

from irgraph.language.expressions import Expression, Node
from irgraph.language.patterns import Selection, Template
from irgraph.text.printer import quote

if TYPE_CHECKING:
    from irgraph.ir.graph import Graph
    from irgraph.manage.space import Space

INDENT = "  "


@dataclass(frozen=True)
class Swap(Node):
    """``%x for %y``: who used ``old`` uses ``new``."""

    new: str
    old: str

    def __str__(self) -> str:
        """Return the text."""
        return f"%{self.new} for %{self.old}"


@dataclass(frozen=True)
class Anchor(Node):
    """``before first aten.cat``: where something goes."""

    side: str
    selection: Selection
    nth: str = ""

    def __str__(self) -> str:
        """Return the clause's text."""
        return _words(self.side, self.nth, self.selection)


@dataclass(frozen=True)
class Subject(Node):
    """What a verb changes.

    ``operand`` of the matches, tensors declared as ``label`` (a glob over labels) in ``role``,
    or the matched ops themselves.
    """

    selection: Selection | None = None
    operand: str = ""
    role: str = ""
    label: str = ""
    where: Expression | None = None

    def __str__(self) -> str:
        """Return the subject's text."""
        if self.role:
            return _words(self.role, quote(self.label), _clause("where", self.where))
        return _words(f"%{self.operand} of" if self.operand else "", self.selection)


@dataclass(frozen=True)
class Call(Node):
    """A pass's name with arguments: ``fuse-embedding(least = 4)``."""

    name: str
    arguments: tuple[tuple[str, Expression], ...] = ()

    def __str__(self) -> str:
        """Return the call's text."""
        arguments = ", ".join(f"{name} = {value}" for name, value in self.arguments)
        return f"{self.name}({arguments})" if arguments else self.name


@dataclass(frozen=True)
class Let(Node):
    """``let name = value``."""

    name: str
    value: Expression

    def __str__(self) -> str:
        """Return the statement's text."""
        return f"let {self.name} = {self.value}"


@dataclass(frozen=True)
class Find(Node):
    """``find name = selection`` names the ops that match."""

    name: str
    selection: Selection

    def __str__(self) -> str:
        """Return the statement's text."""
        return f"find {self.name} = {self.selection}"


@dataclass(frozen=True)
class Apply(Node):
    """``apply pass(...)``."""

    call: Call

    def __str__(self) -> str:
        """Return the statement's text."""
        return f"apply {self.call}"


@dataclass(frozen=True)
class Repeat(Node):
    """``repeat at most N { ... }`` runs the body until it changes nothing."""

    most: int
    body: tuple[Statement, ...]

    def __str__(self) -> str:
        """Return the statement's text."""
        return f"repeat at most {self.most} {block(self.body)}"


@dataclass(frozen=True)
class Sweep(Node):
    """``sweep name in list, ... { ... } report ... best by ...``."""

    axes: tuple[tuple[str, Expression], ...]
    body: tuple[Statement, ...]
    report: tuple[Expression, ...]
    best: Expression | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        axes = ", ".join(f"{name} in {values}" for name, values in self.axes)
        report = ", ".join(map(str, self.report))
        return _words(
            "sweep", axes, block(self.body), "report", report, _clause("best by", self.best)
        )


@dataclass(frozen=True)
class Target(Node):
    """``target device`` names the device that costs are for."""

    device: Expression

    def __str__(self) -> str:
        """Return the statement's text."""
        return f"target {self.device}"


@dataclass(frozen=True)
class Expect(Node):
    """``expect 1 selection`` fails the script where another number of ops match."""

    count: int
    selection: Selection

    def __str__(self) -> str:
        """Return the statement's text."""
        return f"expect {self.count or 'no'} {self.selection}"


@dataclass(frozen=True)
class Fuse(Node):
    """``fuse selection group by ... having ... into template as name assuming "..."``."""

    selection: Selection
    template: Template
    keys: tuple[Expression, ...] = ()
    having: Expression | None = None
    named: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        keys = ", ".join(map(str, self.keys))
        return _words(
            "fuse",
            self.selection,
            f"group by {keys}" if keys else "",
            _clause("having", self.having),
            f"into {self.template}",
            _tail(self.named, self.assuming),
        )


@dataclass(frozen=True)
class Remove(Node):
    """``remove selection using %x for %y, ... assuming "..."``."""

    selection: Selection
    swaps: tuple[Swap, ...] = ()
    assuming: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        return _words("remove", self.selection, _using(self.swaps), _tail("", self.assuming))


@dataclass(frozen=True)
class Replace(Node):
    """``replace selection with template``."""

    selection: Selection
    template: Template
    named: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        tail = _tail(self.named, self.assuming)
        return _words("replace", self.selection, f"with {self.template}", tail)


@dataclass(frozen=True)
class Insert(Node):
    """``insert template after selection using %z for %y``."""

    template: Template
    anchor: Anchor
    swaps: tuple[Swap, ...] = ()
    named: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        tail = _tail(self.named, "")
        return _words("insert", self.template, self.anchor, _using(self.swaps), tail)


@dataclass(frozen=True)
class Reorder(Node):
    """``reorder selection before selection``, or ``earliest on stream copy``."""

    selection: Selection
    to: Anchor | str
    stream: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        stream = f"on stream {self.stream}" if self.stream else ""
        return _words("reorder", self.selection, self.to, stream, _tail("", self.assuming))


@dataclass(frozen=True)
class Parallelize(Node):
    """``parallelize selection, selection over n streams``."""

    selections: tuple[Selection, ...]
    streams: Expression
    assuming: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        selections = ", ".join(map(str, self.selections))
        tail = _tail("", self.assuming)
        return _words("parallelize", selections, "over", self.streams, "streams", tail)


@dataclass(frozen=True)
class Resize(Node):
    """``resize B = 4096``, or an operand's axis: ``resize %w.shape[0] of aten.mm(...) = 8``."""

    size: Expression
    dimension: str = ""
    operand: str = ""
    axis: int = 0
    selection: Selection | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        axis = f"%{self.operand}.shape[{self.axis}] of {self.selection}"
        return f"resize {self.dimension or axis} = {self.size}"


@dataclass(frozen=True)
class Cast(Node):
    """``cast subject to type scaled per row``."""

    subject: Subject
    to: Expression
    scaled: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        scaled = f"scaled per {self.scaled}" if self.scaled else ""
        return _words("cast", self.subject, "to", self.to, scaled)


@dataclass(frozen=True)
class Shard(Node):
    """``shard subject over devices by axis balanced on measure joined by op``."""

    subject: Subject
    over: Expression
    axis: str
    balanced: Expression | None = None
    joined: str = ""

    def __str__(self) -> str:
        """Return the statement's text."""
        joined = f"joined by {self.joined}" if self.joined else ""
        balanced = _clause("balanced on", self.balanced)
        return _words("shard", self.subject, "over", self.over, "by", self.axis, balanced, joined)


@dataclass(frozen=True)
class PlaceIn(Node):
    """``place subject in memory caching share``."""

    subject: Subject
    memory: str
    caching: Expression | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        caching = _clause("caching", self.caching)
        return _words("place", self.subject, "in", self.memory, caching)


Statement: TypeAlias = Union[
    Let, Find, Apply, Repeat, Sweep, Target, Expect, Fuse, Remove, Replace, Insert, Reorder,
    Parallelize, Resize, Cast, Shard, PlaceIn,
]  # fmt: skip


@dataclass(frozen=True)
class Parameter(Node):
    """``least: int = 2``; without a default the caller must give it."""

    name: str
    type: str
    default: Expression | None = None

    def __str__(self) -> str:
        """Return the parameter's text."""
        default = f" = {self.default}" if self.default is not None else ""
        return f"{self.name}: {self.type}{default}"


@dataclass(frozen=True)
class Pass(Node):
    """A named, described, parameterised block of statements."""

    name: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    body: tuple[Statement, ...] = ()

    def __str__(self) -> str:
        """Return the pass's text."""
        parameters = ", ".join(map(str, self.parameters))
        head = f"pass {self.name}{f'({parameters})' if parameters else ''}"
        return f"{head}\n{INDENT}{quote(self.description)}\n{block(self.body)}"

    def space(self, graph: Graph) -> Space:
        """Return what the pass can do to a graph (``irgraph.manage.space.space``)."""
        from irgraph.manage.space import space

        return space(self, graph)


@dataclass(frozen=True)
class Script(Node):
    """Passes and the statements that run, in order."""

    passes: tuple[Pass, ...] = ()
    body: tuple[Statement, ...] = ()

    def __str__(self) -> str:
        """Return the script's text, with a final newline."""
        items = [*map(str, self.passes), *(["\n".join(map(str, self.body))] if self.body else [])]
        return "\n\n".join(items) + "\n"


def block(statements: tuple[Statement, ...]) -> str:
    """Return statements in braces, one a line."""
    if not statements:
        return "{\n}"
    return "{\n" + textwrap.indent("\n".join(map(str, statements)), INDENT) + "\n}"


def walk(statements: tuple[Statement, ...]) -> Iterator[Statement]:
    """Yield statements and those in their blocks."""
    for statement in statements:
        yield statement
        if isinstance(statement, (Repeat, Sweep)):
            yield from walk(statement.body)


def _clause(word: str, value: object) -> str:
    return "" if value is None else f"{word} {value}"


def _using(swaps: tuple[Swap, ...]) -> str:
    return f"using {', '.join(map(str, swaps))}" if swaps else ""


def _words(*parts: object) -> str:
    return " ".join(str(part) for part in parts if part is not None and part != "")


def _tail(named: str, assuming: str) -> str:
    return _words(
        f"as {named}" if named else "", _clause("assuming", quote(assuming) if assuming else None)
    )
