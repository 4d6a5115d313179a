"""The messages that the sources can say, read off their syntax trees as patterns."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = (
    "irgraph/language", "irgraph/verbs", "irgraph/manage", "irgraph/text", "grammars",
    "irgraph/manage/run.py", "irgraph/axes", "irgraph/ops/verify.py", "irgraph/capture/onnx",
    "irgraph/capture/export/program.py", "irgraph/capture/lower.py",
    "irgraph/cli/pipeline.py", "irgraph/cli/commands/opt.py", "irgraph/cli/commands/bisect.py",
    "irgraph/cli/commands/reduce.py", "irgraph/cli/commands/passes.py",
    "irgraph/cli/commands/diff.py",
)  # fmt: skip
"""What is searched: folders and files."""

SAYING = {
    "fail": 0, "Diagnostic": 0, "RefusedError": 0, "BuildError": 0, "EvaluationError": 0,
    "FormMismatchError": 0, "FixedSizeError": 1, "Finding": 1, "note": 0, "misses.note": 2,
}  # fmt: skip
"""Calls that take a message, and which of their arguments it is."""

LEAST = 6
"""Letters that a message must hold of its own; what has fewer hands on another's."""


def templates() -> dict[str, str]:
    """Return by place, as ``file:line``, the regular expression of every message."""
    found = {}
    for path in _files():
        nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for function in (node for node in nodes if isinstance(node, ast.FunctionDef)):
            for line, pattern in _said(function):
                found[f"{path.relative_to(ROOT)}:{line}: {pattern}"] = pattern
    return found


def _files() -> Iterator[Path]:
    for source in SOURCES:
        path = ROOT / source
        assert path.exists(), f"{source} has moved"
        yield from sorted(path.rglob("*.py")) if path.is_dir() else [path]


def _said(function: ast.FunctionDef) -> Iterator[tuple[int, str]]:
    values: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            values.setdefault(node.targets[0].id, []).append(node.value)
    for node in ast.walk(function):
        message = _message(node)
        for pattern in () if message is None else _patterns(message, values):
            if len(re.sub(r"\.\*|\\.|\W", "", pattern)) >= LEAST:
                yield node.lineno, pattern  # type: ignore[attr-defined]


def _message(node: ast.AST) -> ast.expr | None:
    """Return the argument of a call that is a message, if the call takes one."""
    if not isinstance(node, ast.Call):
        return None
    called = ast.unparse(node.func).rpartition(".")
    name = "misses.note" if called[0].endswith("misses") else called[2]
    at = SAYING.get(name, len(node.args))
    return node.args[at] if at < len(node.args) else None


def _patterns(message: ast.expr, values: dict[str, list[ast.expr]]) -> Iterator[str]:
    """Yield what a message can be: one regular expression for each way to put it together."""
    if isinstance(message, ast.Constant) and isinstance(message.value, str):
        yield re.escape(message.value)
    elif isinstance(message, ast.JoinedStr):
        yield "".join(
            re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".*"
            for part in message.values
        )
    elif isinstance(message, ast.IfExp):
        yield from _patterns(message.body, values)
        yield from _patterns(message.orelse, values)
    elif isinstance(message, ast.Lambda):
        yield from _patterns(message.body, values)
    elif isinstance(message, ast.Name):
        for value in values.get(message.id, ()):
            yield from _patterns(value, {})
    elif isinstance(message, ast.BinOp):
        yield from (
            first + second
            for first in _patterns(message.left, values)
            for second in _patterns(message.right, values)
        )
    else:
        yield ".*"
