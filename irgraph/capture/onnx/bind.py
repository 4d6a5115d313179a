"""Binds a node's inputs and attributes to its operator's converter; none of them is ignored.

A converter is a plain function on torch tensors. Its positional parameters are the operator's
inputs, its keyword parameters the attributes, each by its name (``transA`` is ``trans_a``, ``max``
is ``max_``); an attribute may also bind to the input that replaces it in later opsets. Annotations
specify the form of an input:

- ``Torch``: a tensor. ``Operand``: a tensor, or a number if it is a constant of one element.
- ``Type``: the element type of a tensor.
- ``Ints``, ``Floats``, ``Number``, ``Constant``: a constant, as numbers, one number, or with its
  type.

A keyword parameter ``outputs`` is the number of results that the node names.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from inspect import Parameter, signature
from typing import Any, NamedTuple, TypeAlias

from msgspec import Struct

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.model import OnnxNode

Operand: TypeAlias = Any
Type: TypeAlias = Any
Ints: TypeAlias = Sequence[int]
Floats: TypeAlias = Sequence[float]
Number: TypeAlias = float
Convert: TypeAlias = Callable[..., Any]


class Constant(NamedTuple):
    """A constant: its elements in row-major order, and their element type."""

    elements: Sequence[float]
    dtype: Torch


class UnsupportedError(Exception):
    """Raised if a converter does not support a form of a node; the text names the form."""


class Ref(Struct, frozen=True):
    """A tensor input, by its name in the model; or its element type with ``type_only``."""

    name: str
    type_only: bool = False


@dataclass(slots=True)
class ConverterCall:
    """A converter and its arguments, tensors by name."""

    convert: Convert
    positional: list[Any] = field(default_factory=list)
    keywords: dict[str, Any] = field(default_factory=dict)

    def __call__(self, lookup: Callable[[str], Torch]) -> Any:  # noqa: ANN401
        """Call the converter with the tensors that ``lookup`` returns."""
        arguments = [_look_up(v, lookup) if isinstance(v, Ref) else v for v in self.positional]
        return self.convert(*arguments, **self.keywords)

    @property
    def needed_inputs(self) -> list[str]:
        """Return the names of the inputs whose content is used."""
        return [v.name for v in self.positional if isinstance(v, Ref) and not v.type_only]


def _look_up(ref: Ref, lookup: Callable[[str], Torch]) -> Any:  # noqa: ANN401
    tensor = lookup(ref.name)
    return tensor.dtype if ref.type_only else tensor


def bind(convert: Convert, node: OnnxNode, constants: Mapping[str, Torch]) -> ConverterCall:
    """Return the call of a node's converter; ``constants`` are the values of constants by name.

    Raises:
        UnsupportedError: the node has an input or attribute that the converter does not read, or an
            input that must be constant is not.
    """
    call = ConverterCall(convert)
    parameters, keywords = _parameters(convert)
    attributes = dict(node.attributes)
    variadic = bool(parameters) and parameters[-1].kind is Parameter.VAR_POSITIONAL
    for i, name in enumerate(node.inputs):
        if i >= len(parameters) and not variadic and name:
            raise UnsupportedError(f"its input {i + 1}, {name!r}, is not supported")
        parameter = parameters[min(i, len(parameters) - 1)] if parameters else None
        if parameter is not None and (i < len(parameters) or variadic):
            call.positional.append(_input(parameter, name, node, constants, attributes))
    for parameter in parameters[len(node.inputs) :]:
        if parameter.kind is not Parameter.VAR_POSITIONAL:
            call.positional.append(_default_input(parameter, attributes))
    for name in list(attributes):
        keyword = _python_name(name)
        if keyword not in keywords:
            raise UnsupportedError(
                f"its attribute {name} = {_short_text(attributes[name])} is not supported"
            )
        call.keywords[keyword] = attributes.pop(name)
    if "outputs" in keywords:
        call.keywords["outputs"] = sum(map(bool, node.outputs))
    missing = [
        n for n, p in keywords.items() if p.default is Parameter.empty and n not in call.keywords
    ]
    if missing:
        raise UnsupportedError(f"its required attribute {missing[0]} is missing")
    return call


@cache
def _parameters(convert: Convert) -> tuple[list[Parameter], dict[str, Parameter]]:
    parameters = list(signature(convert).parameters.values())
    keywords = {p.name: p for p in parameters if p.kind is Parameter.KEYWORD_ONLY}
    return [p for p in parameters if p.name not in keywords], keywords


def _python_name(attribute: str) -> str:
    word = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", attribute).lower()
    return word + "_" if word in ("min", "max", "to", "sorted", "id", "type", "axis_") else word


def _default_input(parameter: Parameter, attributes: dict[str, Any]) -> Any:  # noqa: ANN401
    """Return the value of an absent input: an attribute of older opsets, or the default."""
    word = parameter.name
    attribute = next((name for name in attributes if _python_name(name) == word), None)
    if attribute is not None:
        return attributes.pop(attribute)
    if parameter.default is Parameter.empty:
        raise UnsupportedError(f"its required input {word.rstrip('_')} is missing")
    return parameter.default


def _input(
    parameter: Parameter,
    name: str,
    node: OnnxNode,
    constants: Mapping[str, Torch],
    attributes: dict[str, Any],
) -> Any:  # noqa: ANN401
    if not name:
        return _default_input(parameter, attributes)
    kind = str(parameter.annotation).partition(" ")[0]
    value = constants.get(name)
    if kind in ("Ints", "Floats", "Number", "Constant"):
        if value is None:
            raise UnsupportedError(
                f"its input {parameter.name.rstrip('_')}, {name!r}, is not a constant"
            )
        return _constant(kind, value)
    if (
        kind == "Operand"
        and value is not None
        and value.numel() == 1
        and _is_number(value, node, constants)
    ):
        return value.item()
    return Ref(name, kind == "Type")


def _is_number(value: Torch, node: OnnxNode, constants: Mapping[str, Torch]) -> bool:
    """Return whether a constant of one element may be a number, as another operand is a tensor."""
    others = [name for name in node.inputs if name and name not in constants]
    return bool(others) and value.ndim == 0 and not value.is_complex()


def _constant(kind: str, value: Torch) -> Any:  # noqa: ANN401
    elements = tuple(value.reshape(-1).tolist())
    if kind != "Number":
        return Constant(elements, value.dtype) if kind == "Constant" else elements
    if value.numel() != 1:
        raise UnsupportedError(f"a constant of {value.numel()} elements stands for a number")
    return elements[0]


def _short_text(value: Any) -> str:  # noqa: ANN401
    text = " ".join(str(value).split())
    return text if len(text) < 40 else text[:37] + "..."
