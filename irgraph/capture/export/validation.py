"""Validates the JSON of an exported program, so that reading it runs no code of its author.

Torch's own reader looks operators up by attribute, imports classes by name, evaluates sizes as
Python (``sympy.sympify``), and writes names into the source of a function that it executes. Every
text of a program is therefore an identifier, unless its field has another form, which is checked.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from irgraph.capture.export.size_texts import is_size
from irgraph.ir.torch_schemas.pure_operators import PROCESSES, refusal

HIGHER_ORDER = frozenset((
    "cond", "while_loop", "map_impl", "scan", "associative_scan", "flex_attention", "out_dtype",
    "wrap_with_set_grad_enabled", "wrap_with_autocast",
))  # fmt: skip
"""Operators on functions that only call them."""

_OPERATOR = re.compile(r"torch\.ops\.(\w+\.\w+)(?:\.(\w+))?", re.ASCII)
_SIZE_OPERATORS = re.compile(
    r"_operator\.(?:eq|ne|le|ge|lt|gt|neg|pos|mul|add|sub|floordiv|mod|pow|truediv|and_|or_|"
    r"lshift|rshift|getitem)|math\.(?:trunc|ceil|floor|sqrt)|"
    r"torch\.(?:_sym_sqrt|sym_(?:not|int|float|ite|max|min|sqrt|sum|fresh_size))"
)
"""Operators on sizes."""

_GROWING = re.compile(r"_operator\.(?:pow|lshift)")
_MAX_GROWING = 4
"""Maximum number of powers and shifts of sizes in a program."""

_MAX_EXPONENT = 8

_PATH = re.compile(r"[\w-]+(?:\.[\w-]+)*|", re.ASCII)
_MODULES = re.compile(r"[\w .,;@\[\]<>()'-]*", re.ASCII)
_VERSION = re.compile(r"[\w.+<>=-]*", re.ASCII)

_CONTAINERS = frozenset(
    ("builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict", None)
)
"""Container types of inputs and results."""


class UntrustedError(ValueError):
    """The program contains something that is not known to be harmless."""


def validate(program: Any) -> Any:  # noqa: ANN401
    """Return the JSON of an exported program, reduced to the parts that its forward pass needs.

    Raises ``UntrustedError`` with the name of an operator, size, type or text outside the lists.
    """
    _check_growth(program)
    return _validated("", program)


def _validated(field: str, value: Any) -> Any:  # noqa: ANN401
    """Return the value of a field of the program's schema without the parts that are not read."""
    if isinstance(value, str):
        _TEXTS.get(field, _check_identifier)(value)
        return value
    if isinstance(value, list):
        return [_validated(field, item) for item in value]
    if not isinstance(value, dict):
        return value
    return {key: _validated(key, item) for key, item in _read_parts(field, value)}


def _read_parts(field: str, value: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object that are read, after a check of their names."""
    for key, item in value.items():
        if key == "as_custom_obj" or (key == "custom_obj_values" and item):
            raise UntrustedError("it holds an object of a custom class")
        if key == "guards_code":
            yield key, []
        elif field != "metadata" or key == "nn_module_stack":
            _check_identifier(key)
            yield key, item


def _check_identifier(text: str) -> None:
    is_name = text.isascii() and text.isidentifier() and not keyword.iskeyword(text)
    if text and (not is_name or text.startswith("__")):
        raise UntrustedError(f"a name is {text[:80]!r}")


def _matching(pattern: re.Pattern[str]) -> Callable[[str], None]:
    """Return a check that a text has the form of a pattern."""

    def check(text: str) -> None:
        if pattern.fullmatch(text) is None or text.startswith("__") or ".__" in text:
            raise UntrustedError(f"a name is {text[:80]!r}")

    return check


def _check_operator(name: str) -> None:
    if _SIZE_OPERATORS.fullmatch(name):
        return
    match = _OPERATOR.fullmatch(name)
    if match is None:
        raise UntrustedError(f"it calls {name[:80]}")
    operator, overload = match[1], match[2] or ""
    library, _, base = operator.partition(".")
    if library == "higher_order":
        reason = "" if base in HIGHER_ORDER and not overload else "it is not on the list"
    else:
        reason = _refusal(operator, "" if overload == "default" else overload)
    if reason:
        raise UntrustedError(f"it calls {name[:80]}: {reason}")


def _refusal(operator: str, overload: str) -> str:
    reason = refusal(operator, overload)
    if reason == PROCESSES and operator.startswith(("_c10d_functional.", "c10d_functional.")):
        return ""  # on the meta device it only returns tensors
    return "torch has no such operator" if reason is None else reason


def _check_size(text: str) -> None:
    if not is_size(text):
        raise UntrustedError(f"a size is {text[:80]}")


def _check_containers(spec: str) -> None:
    for part in _parts(json.loads(spec)):
        kind, context = part.get("type"), part.get("context")
        if kind not in _CONTAINERS:
            raise UntrustedError(f"its inputs or results are of the type {str(kind)[:80]}")
        keys = json.loads(context or "null")
        if any("__enum__" in inner for inner in _parts(keys)):
            raise UntrustedError("a key of its inputs or results is an enumeration")
        for key in keys if isinstance(keys, list) else ():
            _matching(_PATH)(key if isinstance(key, str) else "")
    _check_keywords(json.loads(spec))


def _check_keywords(spec: Any) -> None:  # noqa: ANN401
    """Refuse keys of keyword arguments that are no identifiers: they are names in the source."""
    children = spec[1].get("children_spec", ()) if isinstance(spec, list) else ()
    for child in children:
        keys = json.loads(child.get("context") or "null")
        if child.get("type") == "builtins.dict" and isinstance(keys, list):
            for key in keys:
                _check_identifier(str(key))


def _parts(value: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    """Yield all objects of a JSON value."""
    if isinstance(value, dict):
        yield value
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _parts(item)


def _check_growth(program: Any) -> None:  # noqa: ANN401
    """Refuse powers and shifts of sizes whose values could be huge."""
    targets = (p for p in _parts(program) if _GROWING.fullmatch(str(p.get("target"))))
    for number, node in enumerate(targets):
        arguments = node.get("inputs")
        last = arguments[-1] if isinstance(arguments, list) and arguments else {}
        exponent = last["arg"].get("as_int") if isinstance(last.get("arg"), dict) else None
        is_small = isinstance(exponent, int) and abs(exponent) <= _MAX_EXPONENT
        if number >= _MAX_GROWING or not is_small:
            raise UntrustedError(f"it calls {node['target']} with large numbers")


_TEXTS: Mapping[str, Callable[[str], None]] = {
    **dict.fromkeys(("target", "as_operator"), _check_operator),
    **dict.fromkeys(("in_spec", "out_spec"), _check_containers),
    **dict.fromkeys(
        ("parameter_name", "buffer_name", "tensor_constant_name", "fqn"), _matching(_PATH)
    ),
    **dict.fromkeys(("as_string", "as_strings"), lambda _: None),
    "expr_str": _check_size,
    "nn_module_stack": _matching(_MODULES),
    "torch_version": _matching(_VERSION),
}
"""Checks of texts that are no identifiers, by field. Torch quotes the texts among arguments."""
