"""Nodes that nothing in torch stands for, as ops ``onnx.NAME`` of the model's own schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

import torch
from msgspec import Struct
from onnx import TypeProto, defs, helper, numpy_helper, shape_inference

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import UnsupportedError
from irgraph.capture.onnx.bodies import proto_of, typed
from irgraph.capture.onnx.model import Node, dtype_of, in_ir, type_word

_SCHEMA = "(Tensor[] inputs, str attributes) -> Tensor[]"

Types: TypeAlias = list[tuple[torch.dtype, tuple[int, ...]]]

_RESULTS: list[Types] = []
"""The types of what the op that is called next gives."""


class OpaqueOp(Struct, frozen=True):
    """An op that stands for a node: called with its tensors it gives empty ones of known types."""

    call: Callable[..., list[Torch]]
    attributes: str
    results: Types

    def __call__(self, inputs: Sequence[Torch]) -> list[Torch]:
        """Call the op."""
        _RESULTS.append(self.results)
        return self.call(list(inputs), self.attributes)


def stranger(
    node: Node, opset: int, type_of: Callable[[str], Torch], known: Mapping[str, Torch]
) -> OpaqueOp:
    """Return the op that stands for a node whose results have types that onnx infers.

    Raises:
        UnsupportedError: the type of a result cannot be known.
    """
    inferred = _inferred(node, opset, type_of, known)
    results = [_type(name, inferred.get(name)) for name in node.outputs if name]
    said = ", ".join(f"{name} = {value}" for name, value in node.attributes.items())
    return OpaqueOp(_op(node.op), " ".join(said.split()), results)


def _inferred(
    node: Node, opset: int, type_of: Callable[[str], Torch], known: Mapping[str, Torch]
) -> Mapping[str, TypeProto]:
    names = [name for name in node.inputs if name]
    try:
        schema = defs.get_schema(node.op, opset, node.domain)
        types = {name: typed(type_of(name)) for name in names}
        data = {n: numpy_helper.from_array(known[n].numpy(), n) for n in names if n in known}
        opsets = [helper.make_opsetid("", opset)]
        return dict(
            shape_inference.infer_node_outputs(schema, proto_of(node), types, data, None, opsets)
        )
    except defs.SchemaError:
        raise UnsupportedError(f"onnx knows no operator {node.domain}.{node.op}") from None
    except Exception as error:  # its C++ code raises what it likes
        first = (str(error).strip().splitlines() or [""])[0]
        raise UnsupportedError(f"onnx cannot infer the types of its results: {first}") from None


def _type(name: str, found: TypeProto | None) -> tuple[torch.dtype, tuple[int, ...]]:
    if found is None or found.WhichOneof("value") != "tensor_type":
        raise UnsupportedError(f"the result {name!r} is not a tensor")
    said = found.tensor_type
    if not said.HasField("shape") or not all(s.HasField("dim_value") for s in said.shape.dim):
        raise UnsupportedError(f"the shape of {name!r} depends on values")
    dtype = dtype_of(said.elem_type)
    if not in_ir(dtype):
        raise UnsupportedError(
            f"{name!r} has type {type_word(said.elem_type)}, which is not supported"
        )
    return dtype, tuple(size.dim_value for size in said.shape.dim)


def _empty(inputs: list[Torch], attributes: str) -> list[Torch]:
    """Give results of the types that were said; nothing is computed."""
    return [torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in _RESULTS.pop()]


@cache
def _op(name: str) -> Callable[..., list[Torch]]:
    """Return torch's operator ``onnx::NAME``, defined at its first use."""
    library = torch.library.Library("onnx", "FRAGMENT")
    library.define(f"{name}{_SCHEMA}")
    library.impl(name, _empty, "CompositeExplicitAutograd")
    _LIBRARIES.append(library)
    call: Callable[..., list[Torch]] = getattr(torch.ops.onnx, name).default
    return call


_LIBRARIES: list[torch.library.Library] = []
"""Kept, as what a library defines goes with it."""
