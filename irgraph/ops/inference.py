"""Shapes and types of results, from the book of operators or torch's meta device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from irgraph.facts import FactTable
from irgraph.ir.dim import Dim, rebind
from irgraph.ir.dtypes import FROM_TORCH, TORCH
from irgraph.ir.edit import map_value
from irgraph.ir.op import EMPTY, Op, Result, Value, tensors_in
from irgraph.ir.schema import Argument, Schema, bind, resolve
from irgraph.ir.tensor import DeviceRef, DType, Shape, Tensor, row_major
from irgraph.ir.torch_schemas.constants import CONSTANT_TYPES, torch_constant
from irgraph.ir.torch_schemas.convolution_layout import with_cudnn_layout
from irgraph.ir.torch_schemas.pure_operators import OperatorError, pure_operator
from irgraph.ir.torch_schemas.recurrent import register_recurrent
from irgraph.ir.torch_schemas.registration import register_custom_ops
from irgraph.ops.book import meaning_of
from irgraph.ops.call import Call
from irgraph.ops.meaning import OPAQUE
from irgraph.ops.size_expressions import Expressions, dims_of
from irgraph.ops.sizes import SizeError, result_shapes


class ShapeError(Exception):
    """Raised if the types of an op's results cannot be inferred; the message is the reason.

    ``refused`` is set if torch has the op and refuses these operands.
    """

    def __init__(
        self,
        message: str,
        *,
        refused: bool = False,
    ) -> None:
        super().__init__(message)
        self.refused = refused


def _complex_number(text: str) -> complex:
    """Return the number of a text such as ``1+2j``; raise ``ShapeError`` for another text."""
    try:
        return complex(text)
    except ValueError:
        raise ShapeError(f"{text!r} is no number", refused=True) from None


PROBE_SIZES = (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049)
"""Sizes set for dimensions, to find out which results depend on them."""


def infer(
    op: Op,
    schemas: Sequence[str] = (),
    dims: Mapping[str, int] = EMPTY,
    device: str = "gpu0",
) -> tuple[Result, ...]:
    """Return an op's results: tensors without names, in no buffer or in an operand's buffer.

    ``schemas`` are declared by the model, ``dims`` are its dimensions: sizes that depend on them
    are expressions. ``device`` is the device of results that no operand determines.
    Raises ``ShapeError`` if torch does not have the op, refuses its operands, or a size is no
    simple expression over the dimensions; ``ImportError`` if torch is not installed.
    """
    actual = torch_results(op, schemas, dims, device)
    operands = list(dims_of(op))
    if not operands:
        return actual
    probe_sizes = dict(zip(dims, PROBE_SIZES, strict=False))
    probe = {**dims, **probe_sizes}
    try:
        probed = torch_results(op, schemas, probe, device)
    except ShapeError:
        sizes = [f"{name} = {size}" for name, size in dims.items()]
        raise ShapeError(f"its arguments fit only while {', '.join(sizes)}") from None
    expressions = Expressions(operands, dims, probe)
    pairs = zip(actual, probed, strict=True)
    return tuple(_with_expressions(a, b, expressions) for a, b in pairs)


def _with_expressions(
    actual: Result,
    probed: Result,
    expressions: Expressions,
) -> Result:
    """Return a result whose sizes are expressions, from its values under two settings."""
    if isinstance(actual, tuple) and isinstance(probed, tuple):
        pairs = zip(actual, probed, strict=True)
        items = [_with_expressions(a, b, expressions) for a, b in pairs]
        return tuple(tensors_in(items))
    if not isinstance(actual, Tensor) or not isinstance(probed, Tensor):
        return actual

    def size(value: int, probed_value: int) -> int:
        expression = expressions.size(value, probed_value)
        if expression is None:
            raise ShapeError(f"the size {value} is no plain expression over the dimensions")
        return expression

    shape = tuple(map(size, actual.shape, probed.shape))
    strides = None
    if actual.strides is not None and probed.strides is not None:
        strides = tuple(map(size, actual.strides, probed.strides))
    offset = actual.offset
    if offset != probed.offset:
        offset = size(offset, probed.offset)
    return replace(actual, shape=shape, strides=strides, offset=offset)


MAX_CACHED_CALLS = 4096
_CACHE = FactTable[str, tuple[Result, ...] | ShapeError](MAX_CACHED_CALLS)
"""Cached results of calls, by everything that determines them: a step has few distinct calls."""


def shapes_of(
    op: Op,
    schemas: Sequence[str] = (),
    dims: Mapping[str, int] = EMPTY,
    device: str = "gpu0",
) -> list[Shape]:
    """Return the shapes of a call's recorded results, in order, lists flattened.

    The book of operators determines them, or else torch's meta device. Raises as ``infer`` does.
    """
    shapes = declared_shapes(op)
    if shapes is not None:
        return shapes
    results = torch_results(op, schemas, dims, device)
    pairs = zip(results, op.results, strict=False)
    recorded_results = [result for result, recorded in pairs if recorded is not None]
    return [tensor.shape for tensor in tensors_in(recorded_results)]


def declared_shapes(op: Op) -> list[Shape] | None:
    """Return the shapes of a call's results, ``None`` if its declaration does not determine them.

    Declarations leave out the limits of windows and steps: torch may refuse such a call.
    """
    meaning = meaning_of(op)
    if meaning is None or meaning.sizes_by_torch or meaning.slopes or meaning.steps:
        return None
    if any(OPAQUE in axes for axes in meaning.operands):
        return None
    if meaning.groups and not op.inputs[0].contiguous:
        return None
    try:
        shapes = result_shapes(Call(op), meaning)[: len(op.outputs)]
    except SizeError:
        return None
    if len(shapes) < len(op.outputs):
        return None
    known_shapes: list[Shape] = []
    for shape in shapes:
        known_shape = tuple(size for size in shape if size is not None)
        if len(known_shape) < len(shape):
            return None
        known_shapes.append(known_shape)
    return known_shapes


class _PlainCall:
    """A call of plain numbers, whose tensors and buffers are named by position.

    Attributes:
        op: the call.
        buffers: the original buffers, by the buffers' names in the call.
    """

    def __init__(self, op: Op, dims: Mapping[str, int]) -> None:
        self._dims = dims
        self._names: dict[str, str] = {}
        self._buffers = {"": ""}
        operands = tuple(map(self._plain, op.operands))
        attributes: dict[str, Value] = {}
        for name, value in op.attributes.items():
            attributes[name] = self._plain(value)
        marked = [self._names[name] for name in op.written if name in self._names]
        written = frozenset(marked)
        self.op = Op(op.name, operands, (), attributes, written)
        self.buffers = {name: buffer for buffer, name in self._buffers.items()}

    def _plain(self, value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(self._plain, value))
        if isinstance(value, Dim):
            return self._size(value)
        return self._plain_tensor(value) if isinstance(value, Tensor) else value

    def _plain_tensor(self, tensor: Tensor) -> Tensor:
        strides = tensor.strides
        return Tensor(
            name=self._names.setdefault(tensor.name, f"t{len(self._names)}"),
            dtype=tensor.dtype,
            shape=tuple(map(self._size, tensor.shape)),
            buffer=self._buffers.setdefault(tensor.buffer, f"b{len(self._buffers)}"),
            strides=None if strides is None else tuple(map(self._size, strides)),
            offset=self._size(tensor.offset),
            device=tensor.device,
        )

    def _size(self, size: int) -> int:
        # without dimensions a size is its current value
        return int(rebind(size, self._dims)) if self._dims else int(size)


def torch_results(
    op: Op,
    schemas: Sequence[str] = (),
    dims: Mapping[str, int] = EMPTY,
    device: str = "gpu0",
) -> tuple[Result, ...]:
    """Return an op's results for given dimensions, with all sizes as plain numbers.

    As in a model, the results do not contain numbers that it returns in addition to tensors.
    Ops without results run as well, so that torch checks their operands.
    """
    schema = resolve(op, schemas)
    if schema is None:
        raise ShapeError(f"{op.name} has no schema that takes these operands")
    plain = _PlainCall(op, dims)
    call = plain.op
    written = [tensor.name in call.written for tensor in call.inputs]
    values = (call.name, call.operands, call.attributes, written)
    key = repr((*values, schemas, device))
    cached = _CACHE.get(key)
    if cached is None:
        try:
            cached = _run(call, schema, device)
        except ShapeError as error:
            cached = error
        _CACHE[key] = cached
    if isinstance(cached, ShapeError):
        raise ShapeError(str(cached), refused=cached.refused)

    def in_original_buffer(tensor: Tensor) -> Tensor:
        return replace(tensor, buffer=plain.buffers[tensor.buffer])

    return map_value(cached, in_original_buffer)


def _run(op: Op, schema: Schema, device: str) -> tuple[Result, ...]:
    """Return the results of a call of plain numbers that is not cached."""
    metas = {tensor: _meta(tensor) for tensor in op.inputs}
    call = _Call(op, metas, _device(op, device))
    returned = call.run(schema)
    values = returned if isinstance(returned, tuple) else (returned,)
    results: list[Result] = []
    for value, declared in zip(values, schema.returns, strict=False):
        if declared.is_tensor and not declared.written:
            results.append(call.result(value))
    return tuple(results)


def torch_type(name: str) -> Any:  # noqa: ANN401  (a torch.dtype)
    """Return torch's element type of a name."""
    import torch

    return getattr(torch, TORCH[name])


class _Call(Struct, frozen=True):
    """One call on the meta device, with a meta tensor for each operand."""

    op: Op
    metas: Mapping[Tensor, Any]
    device: str

    @property
    def names_device(self) -> bool:
        """Whether an argument is the device of the results."""
        return isinstance(self.op.attributes.get("device"), DeviceRef)

    def run(self, schema: Schema) -> Any:  # noqa: ANN401  (any result of torch)
        """Return the results of torch."""
        import torch

        if any(argument.type.startswith("__torch__") for argument in schema.arguments):
            raise ShapeError(f"torch has no values for all arguments of {self.op.name}")
        register_custom_ops()
        register_recurrent()
        try:
            operator = pure_operator(self.op.name, schema.overload, meta=True)
        except OperatorError as error:
            reason = "torch has no" if error.missing else f"{error}: shapes are not inferred of"
            raise ShapeError(f"{reason} {self.op.name}") from None
        positional, keywords = self._torch_arguments(schema)
        torch_name = schema.name.replace(".", "::")
        try:
            with torch.no_grad():
                returned = operator(*positional, **keywords)
                return with_cudnn_layout(torch_name, positional, returned)
        except Exception as error:
            message = str(error).strip() or type(error).__name__
            first_line = message.splitlines()[0]
            refused = type(error) in (RuntimeError, ValueError, IndexError)
            raise ShapeError(f"torch refuses it: {first_line}", refused=refused) from None

    def _torch_arguments(self, schema: Schema) -> tuple[list[Any], dict[str, Any]]:
        """Return torch's arguments, by position and by keyword."""
        keywords: dict[str, Any] = {}
        for argument, value in bind(schema, self.op):
            keywords[argument.name] = self._torch_argument(argument, value)
        if any(argument.name == "device" for argument in schema.arguments):
            keywords.setdefault("device", "meta")
        positional: list[Any] = []
        for argument in schema.arguments:
            if argument.keyword or argument.name not in keywords:
                break
            positional.append(keywords.pop(argument.name))
        return positional, keywords

    def _torch_argument(
        self,
        argument: Argument,
        value: Value,
    ) -> Any:  # noqa: ANN401  (an argument of torch)
        kind = argument.type.rstrip("?")
        if isinstance(value, str) and kind in CONSTANT_TYPES:
            return torch_constant(value)
        if isinstance(value, str) and kind == "Scalar":
            return _complex_number(value)
        if kind == "Device" and value is not None:
            return "meta"
        return self._torch_value(value)

    def _torch_value(self, value: Value) -> Any:  # noqa: ANN401  (an argument of torch)
        if isinstance(value, Tensor):
            return self.metas[value]
        if isinstance(value, tuple):
            return [self._torch_value(item) for item in value]
        if isinstance(value, DType):
            return torch_type(value)
        if isinstance(value, DeviceRef):
            return "meta"
        return value

    def result(self, value: Any) -> Result:  # noqa: ANN401  (a result of torch)
        import torch

        if value is None:
            return None
        if isinstance(value, (list, tuple)):
            results = map(self.result, value)
            return tuple(tensor for tensor in results if isinstance(tensor, Tensor))
        if not isinstance(value, torch.Tensor):
            return None
        dtype = _names().get(str(value.dtype))
        if dtype is None:
            raise ShapeError(f"it returns elements of the unknown type {value.dtype}")
        shape = tuple(map(int, value.shape))
        strides = tuple(map(int, value.stride()))
        result = Tensor(
            name="",
            dtype=dtype,
            shape=shape,
            buffer="",
            strides=None if strides == row_major(shape) else strides,
            device=self.device,
        )
        base = self._base(value)
        if base is None:
            return result
        start = int(value.storage_offset()) * value.element_size()
        offset = base.offset + start
        return replace(result, buffer=base.buffer, offset=offset, device=base.device)

    def _base(self, value: Any) -> Tensor | None:  # noqa: ANN401  (a result of torch)
        """Return the operand whose bytes a result shares, ``None`` if there is none."""
        import torch

        for tensor, meta in self.metas.items():
            if torch._C._is_alias_of(value, meta):
                # on meta, a copy to another device is the operand itself
                is_copy = tensor.device != self.device and self.names_device
                return None if is_copy else tensor
        return None


@cache
def _names() -> Mapping[str, str]:
    """Return element types by torch's names; unsigned types as signed ones of the same size."""
    names = {f"torch.uint{bits}": f"i{bits}" for bits in (16, 32, 64)}
    for torch_name, name in FROM_TORCH.items():
        names[f"torch.{torch_name}"] = name
    return names


def _meta(tensor: Tensor) -> Any:  # noqa: ANN401  (a torch.Tensor)
    import torch

    if tensor.dtype not in FROM_TORCH.values():
        raise ShapeError(f"torch has no element type {tensor.dtype}")
    strides = tensor.strides or row_major(tensor.shape)
    dtype = torch_type(tensor.dtype)
    return torch.empty_strided(tensor.shape, strides, dtype=dtype, device="meta")


def _device(op: Op, default: str) -> str:
    """Return the device of the results: the call's ``device``, or the first operand's device."""
    device = op.attributes.get("device")
    if isinstance(device, DeviceRef):
        return str(device)
    devices = (tensor.device for tensor in op.inputs)
    return next(devices, default)
