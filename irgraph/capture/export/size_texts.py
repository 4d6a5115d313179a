"""Sizes of exported programs as texts, which torch evaluates: checked to be sizes and no more."""

from __future__ import annotations

import ast
import re

_FUNCTIONS = frozenset((
    "Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Mod", "Max", "Min", "Eq", "Equality",
    "Ne", "Unequality", "Gt", "StrictGreaterThan", "Lt", "StrictLessThan", "Ge", "GreaterThan",
    "Le", "LessThan", "And", "Or", "Not", "FloorDiv", "ModularIndexing", "Where", "PythonMod",
    "CleanDiv", "CeilToInt", "FloorToInt", "CeilDiv", "FloatTrueDiv", "IntTrueDiv",
    "TruncToFloat", "TruncToInt", "RoundToInt", "ToFloat", "Identity", "floor", "ceiling", "Pow",
    "PowByNatural", "FloatPow",
))  # fmt: skip
_POWERS = frozenset(("Pow", "PowByNatural", "FloatPow"))
_PLAIN_NODES = (
    ast.Expression, ast.Load, ast.UnaryOp, ast.USub, ast.keyword, ast.BinOp, ast.Add, ast.Sub,
    ast.Mult,
)  # fmt: skip
_MAX_POWERS = 4
"""Maximum number of powers in one expression, and maximum magnitude of an exponent."""

_MAX_CHARACTERS = 10_000


def is_size(text: str) -> bool:
    """Return whether a text is an expression over sizes whose value is not huge."""
    try:
        nodes = list(ast.walk(ast.parse(text[: _MAX_CHARACTERS + 1], mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    powers = [n for n in nodes if isinstance(n, ast.Call) and _function_name(n) in _POWERS]
    is_short = len(text) <= _MAX_CHARACTERS and len(powers) <= _MAX_POWERS
    return is_short and all(map(_is_harmless, nodes))


def _function_name(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = _function_name(node)
        exponent = _value(node.args[1]) if len(node.args) > 1 else None
        small = isinstance(exponent, int | float) and -_MAX_POWERS <= exponent <= _MAX_POWERS
        return name in _FUNCTIONS and (small or name not in _POWERS)
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, str):
            return re.fullmatch(r"\w{1,80}|-?[\d.e+-]{1,40}", value) is not None
        return isinstance(value, int | float) and abs(value) < 1 << 63
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS or re.fullmatch(r"[suz]\w*\d+|true|false", node.id) is not None
    return isinstance(node, _PLAIN_NODES)


def _value(node: ast.AST) -> object:
    """Return the value of a number's node, also of ``Integer(2)``; ``None`` if it has none."""
    if isinstance(node, ast.Call) and len(node.args) == 1:
        return _value(node.args[0])
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand)
        return -inner if isinstance(inner, int | float) else None
    return node.value if isinstance(node, ast.Constant) else None
