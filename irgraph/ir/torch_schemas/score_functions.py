"""Functions of one score of an attention, as text.

FlexAttention has two Python functions as arguments: one changes a score, the other selects scores.
The arguments of both are a score ``s``, its sample ``b``, head ``h``, query ``q`` and key ``k``,
and they may look up elements of tensors ``b0``, ``b1`` and so on. Their calls are stored as
statements in Python's syntax:

    t0 = aten.sub.Tensor(q, k); t1 = aten.abs.default(t0); t2 = aten.le.Scalar(t1, 128); t2

A text may contain only torch's pointwise operators and lookups of single elements.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, TypeAlias

from msgspec import Struct

from irgraph.ir.dtypes import TORCH
from irgraph.ir.torch_schemas.pure_operators import OperatorError, pure_operator

Torch: TypeAlias = Any

LOOKUPS = ("index.Tensor", "select.int", "slice.Tensor")
"""Operators that look up elements of tensors."""

NUMBER_MAKERS = ("scalar_tensor.default", "full.default", "zeros.default", "ones.default")
"""Operators that return a single number."""

OTHER_OPERATORS = (
    "_to_copy.default", "alias.default", "detach.default", "full_like.default",
    "new_full.default", "new_ones.default", "new_zeros.default", "ones_like.default",
    "zeros_like.default",
)  # fmt: skip
"""Further operators that compute each element of a result from its own index only."""

SIZED_OPERATORS = (*NUMBER_MAKERS[1:], "new_full.default", "new_ones.default", "new_zeros.default")
"""Operators with an argument for the size, which must be empty."""

NUMBERS = {"inf": float("inf"), "nan": float("nan")}


class ScoreFunctionError(ValueError):
    """A text is not a valid score function; the message has the reason."""


class Ref(Struct, frozen=True):
    """A value by its name."""

    name: str


class ScoreCall(Struct, frozen=True):
    """One call: the name of its result, the operator, its arguments."""

    result_name: str
    operator: str
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


class ScoreFunction(Struct, frozen=True):
    """The calls of a function in order, and its return value."""

    steps: tuple[ScoreCall, ...]
    returned: Any


def operator_of(name: str) -> Torch:
    """Return torch's operator of a name such as ``add.Tensor``.

    Raises ``ScoreFunctionError`` if it is not an operator on single elements.
    """
    base, _, overload = name.partition(".")
    try:
        operator = pure_operator(f"aten.{base}", "" if overload == "default" else overload)
    except OperatorError:
        operator = None
    if not overload or operator is None or not is_elementwise(operator):
        raise ScoreFunctionError(f"aten.{name} is no operator on single elements")
    return operator


def is_elementwise(operator: Torch) -> bool:
    """Return whether a text may contain an operator of torch: it neither writes nor draws."""
    import torch

    if operator.namespace != "aten" or operator._schema.is_mutable:
        return False
    if torch.Tag.nondeterministic_seeded in operator.tags:
        return False
    name = operator.name().partition("::")[2]
    name = name if "." in name else f"{name}.default"
    return torch.Tag.pointwise in operator.tags or name in (
        *LOOKUPS,
        *NUMBER_MAKERS,
        *OTHER_OPERATORS,
    )


@cache
def read(text: str) -> ScoreFunction:
    """Parse a text; raise ``ScoreFunctionError`` if it is not a valid score function."""
    try:
        return _parse(text)
    except ScoreFunctionError:
        raise
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ScoreFunctionError(f"cannot be read: {text[:80]!r}") from None


def _parse(text: str) -> ScoreFunction:
    *statements, last = ast.parse(text, mode="exec").body or [ast.Pass()]
    if not isinstance(last, ast.Expr):
        raise ScoreFunctionError("it does not end in what it returns")
    steps = tuple(map(_step, statements))
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
    keywords = {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    step = ScoreCall(
        target.id, words.removeprefix("aten."), tuple(map(_value, call.args)), keywords
    )
    sizes = [v for v in step.arguments if isinstance(v, list)] + [keywords.get("size") or []]
    if step.operator in SIZED_OPERATORS and any(sizes):
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
    """Yield the tensor, the axis and the source of the index of each lookup of a function.

    The source is an index of the score (``b``, ``h``, ``q``, ``k``) or another tensor; ``""`` if
    the index is computed.
    """
    source_by_name: dict[str, str] = {name: name for name in "bhqk"}
    for step in read(text).steps if text else ():
        source = (
            step.arguments[0].name if step.arguments and isinstance(step.arguments[0], Ref) else ""
        )
        if step.operator == "_to_copy.default" and source in source_by_name:
            source_by_name[step.result_name] = source_by_name[source]
        if step.operator != "index.Tensor" or not source.startswith("b") or source == "b":
            continue
        source_by_name[step.result_name] = source
        for axis, index in enumerate(step.arguments[1]):
            if isinstance(index, Ref):
                yield source, axis, source_by_name.get(index.name, "")


def index_tensors(shape: Sequence[int], device: Torch) -> dict[str, Torch]:
    """Return broadcastable indices of sample, head, query and key of each score.

    Scores are [batch, heads, length, keys]; the indices have their names in score functions.
    """
    import torch

    indices = {}
    for axis, (name, size) in enumerate(zip("bhqk", shape, strict=True)):
        sizes = [-1 if other == axis else 1 for other in range(4)]
        indices[name] = torch.arange(size, device=device).view(sizes)
    return indices


def evaluate(text: str, names: Mapping[str, Torch], score_dtype: Torch) -> Torch:
    """Return the result of a function on tensors that are broadcast to each other.

    ``score_dtype`` is the type of scores: casts to f32 are casts to it.
    """
    function = read(text)
    value_by_name = dict(names)
    template = next(iter(names.values()))
    for step in function.steps:
        operator = operator_of(step.operator)
        arguments = [_resolve(value, value_by_name, score_dtype) for value in step.arguments]
        keywords = {
            key: _resolve(value, value_by_name, score_dtype) for key, value in step.keywords.items()
        }
        if step.operator in NUMBER_MAKERS:
            keywords["device"] = template.device
        value_by_name[step.result_name] = operator(*arguments, **keywords)
    result = _resolve(function.returned, value_by_name, score_dtype)
    if not hasattr(result, "expand"):
        raise ScoreFunctionError("it returns no tensor")
    return result


def _resolve(value: Any, value_by_name: Mapping[str, Torch], score_dtype: Torch) -> Torch:  # noqa: ANN401
    import torch

    if isinstance(value, list):
        return [_resolve(item, value_by_name, score_dtype) for item in value]
    if not isinstance(value, Ref):
        return value
    if value.name in value_by_name:
        return value_by_name[value.name]
    if value.name == "f32" and score_dtype is not None:
        return score_dtype
    if value.name in TORCH:
        return getattr(torch, TORCH[value.name])
    raise ScoreFunctionError(f"it names {value.name!r}, which nothing makes")
