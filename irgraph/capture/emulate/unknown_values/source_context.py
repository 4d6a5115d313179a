"""The statement of a program in which a value is read: the test of a branch, a loop, an assertion.

The program's source is read once and parsed; a program without source has no context.
"""

from __future__ import annotations

import ast
import linecache
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from types import FrameType

SURROUNDING_PACKAGES = ("torch", "irgraph", "contextlib", "functools", "unittest")
"""Packages whose calls are on the stack between the program's line and a read."""

DISPATCH_MODULES = (
    "torch._tensor",
    "torch.utils.",
    "torch.overrides",
    "torch._compile",
    "torch._dynamo",
    "torch._ops",
)
"""Modules of torch between a tensor's method and a dispatch mode."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)

LOOPS = (ast.While, ast.For, ast.AsyncFor)


@dataclass(frozen=True, slots=True)
class Location:
    """The line of a program that reads a value.

    Attributes:
        path, line: file and line.
        kind: ``guard`` for the test of a branch that raises or skips, ``exit`` for a
            branch that ends a loop, ``branch`` for any other, ``assert``, ``while`` for the test
            of a loop, ``round`` for other reads in a round of such a loop, else ``""``.
        negated: whether the test is the negation of the value.
    """

    path: str
    line: int
    kind: str = ""
    negated: bool = False


def program_location() -> Location | None:
    """Return the innermost line of the program on the stack, ``None`` outside a program."""
    frame: FrameType | None = sys._getframe(1)
    is_inside_torch = False
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in SURROUNDING_PACKAGES:
            return _location(frame, is_inside_torch)
        # a tensor's methods and dispatch serve the program's expression, other code its own
        name = str(frame.f_globals.get("__name__", ""))
        is_inside_torch |= package == "torch" and not name.startswith(DISPATCH_MODULES)
        frame = frame.f_back
    return None


def _location(frame: FrameType, is_inside_torch: bool) -> Location:
    path, line = frame.f_code.co_filename, frame.f_lineno
    if is_inside_torch:
        return Location(path, line)
    kind, negated = _context(path, line, _column(frame))
    return Location(path, line, kind, negated)


def _column(frame: FrameType) -> int | None:
    """Return the column of the expression that a frame evaluates, if it is recorded."""
    positions = list(frame.f_code.co_positions())
    index = frame.f_lasti // 2
    return positions[index][2] if 0 <= index < len(positions) else None


@cache
def _context(path: str, line: int, column: int | None) -> tuple[str, bool]:
    """Return the kind of the innermost statement whose test is on a line, and its negation."""
    chain = _statements_at(path, line)
    for depth in range(len(chain) - 1, -1, -1):
        node = chain[depth]
        test = getattr(node, "test", None)
        if isinstance(node, ast.stmt) and test is not None and _covers(test, line):
            kind = _kind_of(node, chain[:depth])
            return kind, _is_negated(test, line, column)
    loop = next((node for node in reversed(chain) if isinstance(node, (*LOOPS, *FUNCTIONS))), None)
    return ("round" if isinstance(loop, ast.While) else ""), False


def _kind_of(node: ast.stmt, enclosing: list[ast.AST]) -> str:
    if isinstance(node, ast.While):
        return "while"
    if isinstance(node, ast.Assert):
        return "assert"
    if not isinstance(node, ast.If):
        return ""
    last = node.body[-1]
    if isinstance(last, (ast.Raise, ast.Continue)):
        return "guard"
    loop = next((n for n in reversed(enclosing) if isinstance(n, (*LOOPS, *FUNCTIONS))), None)
    leaves_loop = isinstance(last, (ast.Break, ast.Return)) and isinstance(loop, LOOPS)
    return "exit" if leaves_loop else "branch"


def _is_negated(test: ast.expr, line: int, column: int | None) -> bool:
    """Return whether an odd number of ``not`` surrounds the expression at a position."""
    count, node = 0, test
    while True:
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            count, node = count + 1, node.operand
            continue
        parts = node.values if isinstance(node, ast.BoolOp) else []
        inner = next((part for part in parts if _starts_at(part, line, column)), None)
        if inner is None:
            return count % 2 == 1
        node = inner


def _starts_at(node: ast.expr, line: int, column: int | None) -> bool:
    if not _covers(node, line) or column is None:
        return False
    is_after = (line, column) >= (node.lineno, node.col_offset)
    end = (node.end_lineno or node.lineno, node.end_col_offset or 0)
    return is_after and (line, column) < end


def _covers(node: ast.AST, line: int) -> bool:
    start = getattr(node, "lineno", None)
    return start is not None and start <= line <= (getattr(node, "end_lineno", None) or start)


def _statements_at(path: str, line: int) -> list[ast.AST]:
    """Return the nodes that contain a line, the outermost first."""
    chain: list[ast.AST] = []
    node: ast.AST | None = _tree(path)
    while node is not None:
        node = next((child for child in _statements_of(node) if _covers(child, line)), None)
        if node is not None:
            chain.append(node)
    return chain


def _statements_of(node: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.ExceptHandler, ast.match_case)):
            yield child


@cache
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return None
