"""Nodes without equivalent in torch, as opaque ops ``onnx.NAME`` with their own schemas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TypeAlias

import torch
from msgspec import Struct
from onnx import TypeProto, defs, helper, numpy_helper, shape_inference

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import UnsupportedError
from irgraph.capture.onnx.bodies import proto_of, type_proto
from irgraph.capture.onnx.model import OnnxNode, dtype_of, is_ir_dtype, type_word

_SCHEMA = "(Tensor[] inputs, str attributes) -> Tensor[]"

Types: TypeAlias = list[tuple[torch.dtype, tuple[int, ...]]]

_PENDING_RESULTS: list[Types] = []
"""Result types of the op that is called next."""


class OpaqueOp(Struct, frozen=True):
    """An op that represents a node: a call returns empty tensors of known types."""

    call: Callable[..., list[Torch]]
    attributes: str
    results: Types

    def __call__(self, inputs: Sequence[Torch]) -> list[Torch]:
        """Call the op on its tensor inputs."""
        _PENDING_RESULTS.append(self.results)
        return self.call(list(inputs), self.attributes)


def opaque_op(
    node: OnnxNode, opset: int, type_of: Callable[[str], Torch], constants: Mapping[str, Torch]
) -> OpaqueOp:
    """Return the op that represents a node, with the result types that onnx infers.

    Raises:
        UnsupportedError: the type of a result cannot be inferred.
    """
    inferred = _infer_types(node, opset, type_of, constants)
    results = [_result_type(name, inferred.get(name)) for name in node.outputs if name]
    text = ", ".join(f"{name} = {value}" for name, value in node.attributes.items())
    return OpaqueOp(_define_op(node.op), " ".join(text.split()), results)


def _infer_types(
    node: OnnxNode, opset: int, type_of: Callable[[str], Torch], constants: Mapping[str, Torch]
) -> Mapping[str, TypeProto]:
    names = [name for name in node.inputs if name]
    try:
        schema = defs.get_schema(node.op, opset, node.domain)
        types = {name: type_proto(type_of(name)) for name in names}
        data = {
            n: numpy_helper.from_array(constants[n].numpy(), n) for n in names if n in constants
        }
        opsets = [helper.make_opsetid("", opset)]
        return dict(
            shape_inference.infer_node_outputs(schema, proto_of(node), types, data, None, opsets)
        )
    except defs.SchemaError:
        raise UnsupportedError(f"onnx knows no operator {node.domain}.{node.op}") from None
    except Exception as error:  # its C++ code raises various types
        first = (str(error).strip().splitlines() or [""])[0]
        raise UnsupportedError(f"onnx cannot infer the types of its results: {first}") from None


def _result_type(name: str, proto: TypeProto | None) -> tuple[torch.dtype, tuple[int, ...]]:
    if proto is None or proto.WhichOneof("value") != "tensor_type":
        raise UnsupportedError(f"the result {name!r} is not a tensor")
    tensor_type = proto.tensor_type
    if not tensor_type.HasField("shape") or not all(
        s.HasField("dim_value") for s in tensor_type.shape.dim
    ):
        raise UnsupportedError(f"the shape of {name!r} depends on values")
    dtype = dtype_of(tensor_type.elem_type)
    if not is_ir_dtype(dtype):
        raise UnsupportedError(
            f"{name!r} has type {type_word(tensor_type.elem_type)}, which is not supported"
        )
    return dtype, tuple(size.dim_value for size in tensor_type.shape.dim)


def _empty_results(inputs: list[Torch], attributes: str) -> list[Torch]:
    """Return empty tensors of the pending result types; nothing is computed."""
    return [
        torch.empty(shape, dtype=dtype, device="meta") for dtype, shape in _PENDING_RESULTS.pop()
    ]


@cache
def _define_op(name: str) -> Callable[..., list[Torch]]:
    """Return torch's operator ``onnx::NAME``, defined at its first use."""
    library = torch.library.Library("onnx", "FRAGMENT")
    library.define(f"{name}{_SCHEMA}")
    library.impl(name, _empty_results, "CompositeExplicitAutograd")
    _LIBRARIES.append(library)
    call: Callable[..., list[Torch]] = getattr(torch.ops.onnx, name).default
    return call


_LIBRARIES: list[torch.library.Library] = []
"""References to the libraries: the operators of a library are removed with it."""
