"""Functions of one score of an attention, spelled out as text.

FlexAttention takes two functions of Python: one changes a score, the other says which scores count.
Both see a score ``s`` by its sample ``b``, head ``h``, query ``q`` and key ``k``, and may look into
tensors ``b0``, ``b1`` and so on. Their calls are kept as statements of Python's form:

    t0 = aten.sub.Tensor(q, k); t1 = aten.abs.default(t0); t2 = aten.le.Scalar(t1, 128); t2

A text names nothing but operators of torch that compute each element by itself, or look one up.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeAlias

from msgspec import Struct

from irgraph.ir.dtypes import TORCH

Torch: TypeAlias = Any

LOOKUPS = ("index.Tensor", "select.int", "slice.Tensor")
"""Operators by which tensors are looked into."""

MAKING = ("scalar_tensor.default", "full.default", "zeros.default", "ones.default")
"""Operators that make a single number."""

OTHERS = (
    "_to_copy.default", "alias.default", "detach.default", "full_like.default",
    "new_full.default", "new_ones.default", "new_zeros.default", "ones_like.default",
    "zeros_like.default",
)  # fmt: skip
"""Further operators that give each element of a result from its own place alone."""

SIZED = (*MAKING[1:], "new_full.default", "new_ones.default", "new_zeros.default")
"""Those of them that take a size, which is none."""

NUMBERS = {"inf": float("inf"), "nan": float("nan")}


class ScoreFunctionError(ValueError):
    """A text is no such function; the message says why."""


class Ref(Struct, frozen=True):
    """A value by its name."""

    name: str


class ScoreCall(Struct, frozen=True):
    """One call: the name of what it makes, the operator, its arguments."""

    made: str
    operator: str
    given: tuple[Any, ...]
    named: Mapping[str, Any]


class ScoreFunction(Struct, frozen=True):
    """The calls of a function in order, and the value that it returns."""

    steps: tuple[ScoreCall, ...]
    returned: Any


def operator_of(name: str) -> Torch:
    """Return torch's operator of a name such as ``add.Tensor``; raise ``SpellingError``."""
    import torch

    base, _, overload = name.partition(".")
    found = getattr(getattr(torch.ops.aten, base, None), overload, None)
    if found is None or not is_elementwise(found):
        raise ScoreFunctionError(f"aten.{name} is no operator on single elements")
    return found


def is_elementwise(operator: Torch) -> bool:
    """Return whether a text may name an operator of torch's: it writes nothing, draws nothing."""
    import torch

    if operator.namespace != "aten" or operator._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return False
    name = operator.name().partition("::")[2]
    name = name if "." in name else f"{name}.default"
    return torch.Tag.pointwise in operator.tags or name in (*LOOKUPS, *MAKING, *OTHERS)


@cache
def read(text: str) -> ScoreFunction:
    """Read a text; raise ``SpellingError`` where it is no such function."""
    try:
        return _spelled(text)
    except ScoreFunctionError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ScoreFunctionError(f"cannot be read: {text[:80]!r}") from None


def _spelled(text: str) -> ScoreFunction:
    *before, last = ast.parse(text, mode="exec").body or [ast.Pass()]
    if not isinstance(last, ast.Expr):
        raise ScoreFunctionError("it does not end in what it returns")
    steps = tuple(map(_step, before))
    return ScoreFunction(steps, _value(last.value))


def _step(statement: Any) -> ScoreCall:  # noqa: ANN401  (whatever stands there)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        raise ScoreFunctionError("each statement gives one name to a call")
    target, call = statement.targets[0], statement.value
    if not isinstance(target, ast.Name) or not isinstance(call, ast.Call):
        raise ScoreFunctionError("each statement gives one name to a call")
    words = ast.unparse(call.func)
    if not words.startswith("aten."):
        raise ScoreFunctionError(f"{words} is no operator of aten")
    named = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    step = ScoreCall(target.id, words.removeprefix("aten."), tuple(map(_value, call.args)), named)
    sizes = [v for v in step.given if isinstance(v, list)] + [named.get("size") or []]
    if step.operator in SIZED and any(sizes):
        raise ScoreFunctionError(f"{words} makes more than one number")
    return step


def _value(node: Any) -> Any:  # noqa: ANN401  (literals, names, lists of them)
    if isinstance(node, ast.Name):
        return NUMBERS.get(node.id, Ref(node.id))
    if isinstance(node, ast.List):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        number = _value(node.operand)
        if isinstance(number, (int, float)):
            return -number
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float, type(None))):
        return node.value
    raise ScoreFunctionError(f"{ast.unparse(node)!r} is neither a number nor a name")


def lookups(text: str) -> Iterator[tuple[str, int, str]]:
    """Yield each tensor that a function looks into, an axis, and whose values it takes as index.

    Those are a place's (``b``, ``h``, ``q``, ``k``) or another tensor's; nothing (``""``) where the
    index was computed.
    """
    whose: dict[str, str] = {name: name for name in "bhqk"}
    for step in read(text).steps if text else ():
        source = step.given[0].name if step.given and isinstance(step.given[0], Ref) else ""
        if step.operator == "_to_copy.default" and source in whose:
            whose[step.made] = whose[source]
        if step.operator != "index.Tensor" or not source.startswith("b") or source == "b":
            continue
        whose[step.made] = source
        for axis, index in enumerate(step.given[1]):
            if isinstance(index, Ref):
                yield source, axis, whose.get(index.name, "")


def computed(text: str, names: Mapping[str, Torch], working: Torch) -> Torch:
    """Return what a function makes of tensors that are broadcast to each other.

    ``working`` is the type of scores: casts to f32 are casts to it.
    """
    spelled = read(text)
    known = dict(names)
    like = next(iter(names.values()))
    for step in spelled.steps:
        operator = operator_of(step.operator)
        given = [_given(value, known, working) for value in step.given]
        named = {key: _given(value, known, working) for key, value in step.named.items()}
        if step.operator in MAKING:
            named["device"] = like.device
        known[step.made] = operator(*given, **named)
    made = _given(spelled.returned, known, working)
    if not hasattr(made, "expand"):
        raise ScoreFunctionError("it returns no tensor")
    return made


def _given(value: Any, known: Mapping[str, Torch], working: Torch) -> Torch:  # noqa: ANN401
    import torch

    if isinstance(value, list):
        return [_given(item, known, working) for item in value]
    if not isinstance(value, Ref):
        return value
    if value.name in known:
        return known[value.name]
    if value.name == "f32" and working is not None:
        return working
    if value.name in TORCH:
        return getattr(torch, TORCH[value.name])
    raise ScoreFunctionError(f"it names {value.name!r}, which nothing makes")
