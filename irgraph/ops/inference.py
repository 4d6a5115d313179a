"""Shapes and types of results, from the book of operators or torch's meta device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from irgraph.facts import FactTable
from irgraph.ir.dim import Dim, evaluate, make, rebind
from irgraph.ir.dtypes import FROM_TORCH, TORCH
from irgraph.ir.edit import map_value
from irgraph.ir.op import EMPTY, Op, Result, Value, tensors_in
from irgraph.ir.schema import Argument, Schema, bind, resolve
from irgraph.ir.tensor import DeviceRef, DType, Tensor, row_major
from irgraph.ir.torch_schemas.constants import CONSTANT_TYPES, torch_constant
from irgraph.ir.torch_schemas.convolution_layout import with_cudnn_layout
from irgraph.ir.torch_schemas.pure_operators import OperatorError, pure_operator
from irgraph.ir.torch_schemas.recurrent import register_recurrent
from irgraph.ir.torch_schemas.registration import register_custom_ops
from irgraph.ops.book import meaning_of
from irgraph.ops.call import Call
from irgraph.ops.meaning import OPAQUE
from irgraph.ops.shapes import Shape
from irgraph.ops.sizes import SizeError, result_shapes


class ShapeError(Exception):
    """Raised if the types of an op's results cannot be inferred; the message is the reason.

    ``refused`` is set if torch has the op and refuses these operands.
    """

    def __init__(self, message: str, *, refused: bool = False) -> None:
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
    expressions = list(_dims_of(op))
    if not expressions:
        return actual
    probe = {**dims, **dict(zip(dims, PROBE_SIZES, strict=False))}
    try:
        probed = torch_results(op, schemas, probe, device)
    except ShapeError:
        sizes = ", ".join(f"{name} = {size}" for name, size in dims.items())
        raise ShapeError(f"its arguments fit only while {sizes}") from None
    fit = _Sizes(expressions, dims, probe)
    return tuple(fit.result(a, b) for a, b in zip(actual, probed, strict=True))


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
    return [
        t.shape for t in tensors_in(result for result, recorded in pairs if recorded is not None)
    ]


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
    known = [tuple(size for size in shape if size is not None) for shape in shapes]
    return known if shapes == known and len(known) == len(op.outputs) else None


def _plain_call(op: Op, dims: Mapping[str, int]) -> tuple[Op, dict[str, str]]:
    """Return a call of plain numbers, and the original buffers.

    Its tensors and buffers are named by position.
    """
    names: dict[str, str] = {}
    buffers = {"": ""}

    def size(value: int) -> int:
        return int(rebind(value, dims))

    def plain(value: Value) -> Value:
        if isinstance(value, tuple):
            return tuple(map(plain, value))
        if not isinstance(value, Tensor):
            return size(value) if isinstance(value, Dim) else value
        name = names.setdefault(value.name, f"t{len(names)}")
        buffer = buffers.setdefault(value.buffer, f"b{len(buffers)}")
        shape = tuple(map(size, value.shape))
        strides = None if value.strides is None else tuple(map(size, value.strides))
        return Tensor(name, value.dtype, shape, buffer, strides, size(value.offset), value.device)

    operands = tuple(map(plain, op.operands))
    attributes = {name: plain(value) for name, value in op.attributes.items()}
    written = frozenset(names[name] for name in op.written if name in names)
    call = Op(op.name, operands, (), attributes, written)
    return call, {placeholder: buffer for buffer, placeholder in buffers.items()}


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
    call, buffers = _plain_call(op, dims)
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
    return map_value(cached, lambda tensor: replace(tensor, buffer=buffers[tensor.buffer]))


def _run(op: Op, schema: Schema, device: str) -> tuple[Result, ...]:
    """Return the results of a call of plain numbers that is not cached."""
    call = _Call(op, {t: _meta(t) for t in op.inputs}, _device(op, device))
    returned = call.run(schema)
    values = returned if isinstance(returned, tuple) else (returned,)
    pairs = zip(values, schema.returns, strict=False)
    return tuple(
        call.result(v) for v, declared in pairs if declared.is_tensor and not declared.written
    )


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
        pairs = bind(schema, self.op)
        keywords = {
            argument.name: self._torch_argument(argument, value) for argument, value in pairs
        }
        if any(argument.name == "device" for argument in schema.arguments):
            keywords.setdefault("device", "meta")
        positional = []
        for argument in schema.arguments:
            if argument.keyword or argument.name not in keywords:
                break
            positional.append(keywords.pop(argument.name))
        try:
            with torch.no_grad():
                return with_cudnn_layout(
                    schema.name.replace(".", "::"), positional, operator(*positional, **keywords)
                )
        except Exception as error:
            first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
            refused = type(error) in (RuntimeError, ValueError, IndexError)
            raise ShapeError(f"torch refuses it: {first_line}", refused=refused) from None

    def _torch_argument(self, argument: Argument, value: Value) -> Any:  # noqa: ANN401  (an argument of torch)
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
        aliased = (t for t, meta in self.metas.items() if torch._C._is_alias_of(value, meta))
        base = next(aliased, None)
        if base is not None and base.device != self.device and self.names_device:
            base = None  # on meta, a copy to another device is the operand itself
        dtype = _names().get(str(value.dtype))
        if dtype is None:
            raise ShapeError(f"it returns elements of the unknown type {value.dtype}")
        shape, strides = tuple(map(int, value.shape)), tuple(map(int, value.stride()))
        start = int(value.storage_offset()) * value.element_size()
        return Tensor(
            "",
            dtype,
            shape,
            base.buffer if base is not None else "",
            None if strides == row_major(shape) else strides,
            base.offset + start if base is not None else 0,
            base.device if base is not None else self.device,
        )


@cache
def _names() -> Mapping[str, str]:
    """Return element types by torch's names; unsigned types as signed ones of the same size."""
    unsigned = {f"torch.uint{bits}": f"i{bits}" for bits in (16, 32, 64)}
    return {**unsigned, **{f"torch.{torch_name}": name for torch_name, name in FROM_TORCH.items()}}


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
    return next((tensor.device for tensor in op.inputs), default)


def _dims_of(op: Op) -> Iterator[Dim]:
    """Yield the sizes in an op's operands and attributes that depend on dimensions."""
    for tensor in op.inputs:
        sizes = (*tensor.shape, *(tensor.strides or ()), tensor.offset)
        yield from (size for size in sizes if isinstance(size, Dim))
    yield from _in_values(tuple(op.attributes.values()))


def _in_values(values: tuple[Value, ...]) -> Iterator[Dim]:
    for value in values:
        if isinstance(value, tuple):
            yield from _in_values(value)
        elif isinstance(value, Dim):
            yield value


class _Sizes(Struct, frozen=True):
    """Finder of expressions that evaluate to the size under two settings of the dimensions."""

    expressions: Sequence[Dim]
    dims: Mapping[str, int]
    probe: Mapping[str, int]

    def result(self, actual: Result, probed: Result) -> Result:
        if isinstance(actual, tuple) and isinstance(probed, tuple):
            pairs = zip(actual, probed, strict=True)
            return tuple(tensors_in(self.result(a, b) for a, b in pairs))
        if not isinstance(actual, Tensor) or not isinstance(probed, Tensor):
            return actual
        shape = tuple(map(self.size, actual.shape, probed.shape))
        strides = None
        if actual.strides is not None and probed.strides is not None:
            strides = tuple(map(self.size, actual.strides, probed.strides))
        return replace(actual, shape=shape, strides=strides)

    def size(self, actual: int, probed: int) -> int:
        """Return an expression that is ``actual`` under ``dims`` and ``probed`` under ``probe``."""
        if actual == probed:
            return actual
        for expression in self.expressions:
            probed_value = evaluate(expression.terms, self.probe)
            for factor, rest in ((1, actual - expression), (actual // max(expression, 1), 0)):
                if factor * expression + rest == actual and factor * probed_value + rest == probed:
                    terms = [(names, factor * count) for names, count in expression.terms]
                    return make([*terms, ((), rest)], self.dims)
        return self._product(actual, probed)

    def _product(self, actual: int, probed: int) -> int:
        for a in self.expressions:
            for b in self.expressions:
                terms = [(x + y, m * n) for x, m in a.terms for y, n in b.terms]
                product, probed_product = (
                    evaluate(tuple(terms), self.dims),
                    evaluate(tuple(terms), self.probe),
                )
                factor = actual // max(product, 1)
                if factor * product == actual and factor * probed_product == probed:
                    return make([(names, factor * n) for names, n in terms], self.dims)
        raise ShapeError(f"the size {actual} is no plain expression over the dimensions")
