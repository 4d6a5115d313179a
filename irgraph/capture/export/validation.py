"""Validates the JSON of an exported program, so that reading it runs no code of its author.

Torch's own reader looks operators up by attribute, imports classes by name and evaluates sizes as
Python (``sympy.sympify``). All of these are first compared with lists of harmless names.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from typing import Any

NAMESPACES = frozenset((
    "aten", "prims", "torchvision", "quantized", "quantized_decomposed", "fbgemm",
    "_c10d_functional", "c10d_functional", "higher_order",
))  # fmt: skip
"""Libraries whose operators only compute on tensors."""

EXCLUDED_OPERATORS = frozenset(("aten.from_file", "aten._print"))
"""Operators of these libraries that access files or the terminal."""

_OPERATOR = re.compile(r"torch\.ops\.((\w+)\.\w+)(?:\.\w+)?")
_SIZE_OPERATORS = re.compile(
    r"_operator\.(?:eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|"
    r"lshift|rshift|getitem)|math\.(?:trunc|ceil|floor|sqrt)|"
    r"torch\.(?:_sym_sqrt|sym_(?:not|int|float|ite|max|min|sqrt|sum|fresh_size))"
)
"""Operators on sizes."""

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

_CONTAINERS = frozenset(
    ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None)
)
"""Container types of inputs and results."""


class UntrustedError(ValueError):
    """The program contains something that is not known to be harmless."""


def validate(program: Any) -> Any:  # noqa: ANN401
    """Return the JSON of an exported program, reduced to the parts that its forward pass needs.

    Raises ``UntrustedError`` with the name of an operator, size or type outside the lists.
    """
    if isinstance(program, list):
        return [validate(item) for item in program]
    if not isinstance(program, dict):
        return program
    result = {}
    for key, value in program.items():
        if key in ("target", "as_operator") and isinstance(value, str):
            _check_operator(value)
        elif key == "expr_str":
            _check_size(str(value))
        elif key in ("in_spec", "out_spec") and isinstance(value, str):
            _check_containers(value)
        elif key == "metadata" and isinstance(value, dict):
            value = {k: v for k, v in value.items() if k == "nn_module_stack"}
        elif key == "as_custom_obj" or (key == "custom_obj_values" and value):
            raise UntrustedError("it holds an object of a custom class")
        result[key] = [] if key == "guards_code" else validate(value)
    return result


def _check_operator(name: str) -> None:
    match = _OPERATOR.fullmatch(name)
    if match and match[2] in NAMESPACES and match[1] not in EXCLUDED_OPERATORS:
        return
    if _SIZE_OPERATORS.fullmatch(name) is None:
        raise UntrustedError(f"it calls {name[:80]}")


def _check_containers(spec: str) -> None:
    for part in _parts(json.loads(spec)):
        kind, context = part.get("type"), part.get("context")
        if kind not in _CONTAINERS:
            raise UntrustedError(f"its inputs or results are of the type {str(kind)[:80]}")
        if any("__enum__" in inner for inner in _parts(json.loads(context or "null"))):
            raise UntrustedError("a key of its inputs or results is an enumeration")


def _parts(value: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Yield all objects of a JSON value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _parts(item)


def _check_size(text: str) -> None:
    """Refuse an expression that is not over sizes, or whose value could be huge."""
    try:
        nodes = list(ast.walk(ast.parse(text, mode="eval"))) if len(text) < 10_000 else [None]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        nodes = [None]
    powers = [n for n in nodes if isinstance(n, ast.Call) and _function_name(n) in _POWERS]
    if len(powers) > _MAX_POWERS or not all(map(_is_harmless, nodes)):
        raise UntrustedError(f"a size is {text[:80]}")


def _function_name(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else ""


def _is_harmless(node: ast.AST | None) -> bool:
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
