"""Linear layers that become products of narrow types, their rows rounded as they come."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.ops import (
    DEQUANTIZE,
    LAYER_FORMATS,
    MAX_VALUES,
    PRODUCT,
    QUANTIZE,
    SCALED,
    STATIC,
    UNSCALED,
    LayerFormat,
    round_up,
)
from irgraph.ir.narrow.prepared import SCALES, WEIGHT, layer_shapes
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DType, Tensor, row_major
from irgraph.verbs.quantizing.bags import arguments
from irgraph.verbs.quantizing.rewriter import QuantizeRewrite
from irgraph.verbs.refusal import RefusedError, op_refusal

LAYERS = ("aten.linear", "aten.addmm", "aten.mm", "aten.matmul")
"""What a linear layer may be called as; ``matmul`` where it multiplies with one matrix."""

Known = Mapping[str, Value]


class LayerQuantization(Struct, frozen=True):
    """A format, and the largest element that static quantisation reckons with; 0 for dynamic."""

    to: str
    range: float = 0.0

    def __str__(self) -> str:
        """Return what is the same for all layers that may share rounded rows."""
        return f"{LAYER_FORMATS[self.to].rows} {LAYER_FORMATS[self.to].deep} {self.range!r}"

    @property
    def scale(self) -> float:
        """What one step of a statically quantised row stands for."""
        return self.range / MAX_VALUES[self.to]


class Rounded(Struct, frozen=True):
    """Rows that were rounded: of which tensor, to what, and the scale of each that has its own."""

    data: Tensor
    rows: Tensor
    scales: Tensor | None


def is_layer(op: Op) -> bool:
    """Return whether an op is a linear layer, or a product that could be one."""
    if op.name == "aten.matmul":
        second = op.operands[1] if len(op.operands) > 1 else None
        return isinstance(second, Tensor) and second.rank == 2
    return op.name in LAYERS


def check_layer(graph: Graph, op: Op, to: str) -> Tensor:
    """Return the weight of a layer that can be one of integers, as it is used; refuse others."""
    if to not in LAYER_FORMATS:
        known = ", ".join(LAYER_FORMATS)
        raise RefusedError(f"a linear layer can be quantised to {known}, not to {to!r}")
    given = arguments(graph, op)
    data, weight, bias = _parts(op, given)
    if data.dtype != "f32" or weight.dtype != "f32" or data.rank < 2 or weight.rank != 2:
        raise op_refusal(op, "is not a product of rows in f32 with a matrix in f32")
    if any(given.get(name, 1) != 1 for name in ("alpha", "beta")):
        raise op_refusal(op, "scales its product (alpha, beta)")
    if bias is not None and bias.rank != 1:
        raise op_refusal(op, f"adds %{bias.name}, which is not a bias of its columns")
    rows = data.numel // max(int(data.shape[-1]), 1)
    takes = LAYER_FORMATS[to]
    if rows < takes.min_rows:
        what = f"{takes.product.replace('.', '::')} takes more than {takes.min_rows - 1} on devices"
        raise op_refusal(op, f"has {rows} rows, and {what}")
    if _inputs(weight, 1 - (op.name == "aten.linear")) is None:
        raise op_refusal(op, f"multiplies with %{weight.name} row by row, as no linear layer does")
    return weight


def span_of(op: Op, whole: Tensor, used: Tensor) -> tuple[int, int] | None:
    """Return the rows of a weight [outputs, inputs] that a layer uses; none if it uses no rows."""
    columns = int(whole.shape[1])
    if _inputs(used, 1 - (op.name == "aten.linear")) != columns:
        return None
    first, rest = divmod(used.offset - whole.offset, columns * whole.itemsize)
    last = first + used.numel // columns
    return None if rest or first < 0 or last > whole.shape[0] else (first, last)


def _inputs(weight: Tensor, outputs: int) -> int | None:
    """Return the inputs of a weight whose outputs lie along an axis, one dense row each.

    Nothing where rows are not dense, or lie along the other axis.
    """
    count, inputs = int(weight.shape[outputs]), int(weight.shape[1 - outputs])
    steps = weight.strides or row_major(weight.shape)
    fits = (steps[1 - outputs] == 1 or inputs == 1) and (steps[outputs] == inputs or count == 1)
    return inputs if fits and inputs and count else None


def _parts(op: Op, given: Known) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return what a product multiplies, and its bias."""
    names = {
        "aten.linear": ("input", "weight", "bias"),
        "aten.addmm": ("mat1", "mat2", "self"),
        "aten.mm": ("self", "mat2", ""),
        "aten.matmul": ("self", "other", ""),
    }[op.name]
    data, weight, bias = (given.get(name) for name in names)
    if not isinstance(data, Tensor) or not isinstance(weight, Tensor):
        raise op_refusal(op, "multiplies no two tensors")
    return data, weight, bias if isinstance(bias, Tensor) else None


def factors(graph: Graph, op: Op) -> tuple[Tensor | None, Tensor | None]:
    """Return what a layer multiplies, and its weight; nothing where it is none."""
    try:
        return _parts(op, arguments(graph, op))[:2]
    except RefusedError:
        return None, None


def quantize_layer(
    work: QuantizeRewrite,
    op: Op,
    weight: Declared,
    how: LayerQuantization,
    ready: dict[str, Rounded],
) -> None:
    """Put rounding, product and scaling in the place of a layer.

    ``ready`` are tensors whose rows were rounded before and were not written since.
    """
    data, used, bias = _parts(op, arguments(work.graph, op))
    part = WeightSlice(weight, span_of(op, weight.tensor, used) or ())
    known = LAYER_FORMATS[how.to]
    key = f"{data.name} {how}"
    if key not in ready:
        ready[key] = _rounded(work, op, data, how)
    rounded = ready[key]
    if known.rows in UNSCALED:
        _in_short(work, op, rounded.rows, part, known, bias)
        return
    factor, scales = _weight(work, part, data, known.weight), _scales(work, part, known.weight)
    out, count = op.outputs[0], rounded.rows.shape[0]
    sums = work.tensor(f"{out.name}_{known.sums}", known.sums, (count, factor.shape[1]), data)
    if known.product == PRODUCT:
        work.put(op, PRODUCT, (rounded.rows, factor), sums)
    else:
        one = work.constant("one", "f32", 1.0, data)
        pair = (rounded.rows, factor, one, one)
        work.put(op, known.product, pair, sums, out_dtype=DType(known.sums))
    rows = work.result(out, count)
    more: dict[str, Value] = {} if bias is None else {"bias": bias}
    if rounded.scales is None:
        work.put(op, SCALED, (sums, scales), rows, scale=how.scale, **more)
    else:
        work.put(op, DEQUANTIZE, (sums, rounded.scales, scales), rows, **more)
    work.shaped(op, rows, out)


class WeightSlice(Struct, frozen=True):
    """The rows of a parameter that a layer multiplies with, all of them or some."""

    whole: Declared
    used: tuple[int, ...]

    @property
    def span(self) -> tuple[int, ...]:
        """The first of the rows and the one after the last; nothing where it is all of them."""
        return () if self.used == (0, self.whole.tensor.shape[0]) else self.used

    def name(self, kind: str) -> str:
        """Return what the part is called in a format."""
        return "_".join(map(str, (self.whole.tensor.name, *self.span, kind)))

    def shapes(self, kind: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the shapes of what is prepared of it: of the weight, and of its scales."""
        first, last = self.used
        return layer_shapes(kind, last - first, int(self.whole.tensor.shape[1]))


def _weight(work: QuantizeRewrite, part: WeightSlice, like: Tensor, kind: str) -> Tensor:
    """Return a layer's prepared weight."""
    shape, _ = part.shapes(kind)
    factor = work.tensor(part.name(kind), "u8" if kind == "i4" else kind, shape, like)
    if kind != "i4":
        factor = replace(factor, strides=(1, shape[0]))
    return work.parameter(factor, kind, WEIGHT, part.whole, part.span)


def _scales(work: QuantizeRewrite, part: WeightSlice, kind: str) -> Tensor:
    """Return the scales of a layer's prepared weight."""
    _, shape = part.shapes(kind)
    named, dtype = f"{part.name(kind)}_scales", "bf16" if kind == "i4" else "f32"
    made = work.tensor(named, dtype, shape, part.whole.tensor)
    return work.parameter(made, kind, SCALES, part.whole, part.span)


def _rounded(work: QuantizeRewrite, op: Op, data: Tensor, how: LayerQuantization) -> Rounded:
    """Put the rounding of rows before an op."""
    known = LAYER_FORMATS[how.to]
    flat = work.flat(op, _dense(work, op, data), int(data.shape[-1]))
    count, deep = flat.shape[0], round_up(data.shape[-1], known.deep)
    if known.rows in UNSCALED:
        return Rounded(data, _cast(work, op, flat, (known.rows, deep)), None)
    rows = work.tensor(f"{data.name}_{how.to}", known.rows, (count, deep), data)
    if how.range:
        work.put(op, STATIC, (flat,), rows, columns=deep, scale=how.scale)
        return Rounded(data, rows, None)
    scales = work.tensor(f"{data.name}_{how.to}_scale", "f32", (count,), data)
    more: dict[str, Value] = {} if known.rows == "i8" else {"dtype": DType(known.rows)}
    work.put(op, QUANTIZE, (flat,), rows, scales, columns=deep, **more)
    return Rounded(data, rows, scales)


def _dense(work: QuantizeRewrite, op: Op, data: Tensor) -> Tensor:
    """Return rows without gaps between them, copied before an op where they have some."""
    if data.contiguous:
        return data
    made = work.tensor(f"{data.name}_dense", data.dtype, data.shape, data)
    work.put(op, "aten.clone", (data,), made, memory_format="contiguous_format")
    return made


def _cast(work: QuantizeRewrite, op: Op, flat: Tensor, to: tuple[str, int]) -> Tensor:
    """Put the cast of rows before an op, and zeros up to so many columns where they are needed."""
    (kind, deep), (count, width) = to, flat.shape
    rows = work.tensor(f"{flat.name}_{kind}", kind, (count, width), flat)
    work.put(op, "aten._to_copy", (flat,), rows, dtype=DType(kind))
    if width == deep:
        return rows
    wide = work.tensor(f"{flat.name}_wide", kind, (count, deep), flat)
    work.put(op, "aten.constant_pad_nd", (rows, (0, deep - int(width))), wide)
    return wide


def _in_short(
    work: QuantizeRewrite,
    op: Op,
    rows: Tensor,
    part: WeightSlice,
    known: LayerFormat,
    bias: Tensor | None,
) -> None:
    """Put the product of rows in f16 or bf16 in the place of a layer, its bias added in f32."""
    out, count = op.outputs[0], rows.shape[0]
    outputs, kind = int(out.shape[-1]), known.weight
    scales = (_scales(work, part, kind),) if kind not in UNSCALED else ()
    factor = _weight(work, part, out, kind)
    wide = round_up(outputs, known.wide)
    made = work.tensor(f"{out.name}_{known.sums}", known.sums, (count, wide), out)
    work.put(op, known.product, (rows, factor, *scales), made)
    if wide != outputs:
        kept = work.view(f"{out.name}_kept", made, (count, outputs), (wide, 1))
        work.put(op, "aten.slice", (made, 1, 0, outputs), kept)
        made = kept
    found = work.result(out, count)
    if bias is None:
        work.put(op, "aten._to_copy", (made,), found, dtype=DType("f32"))
    else:
        work.put(op, "aten.add", (made, bias), found)
    work.shaped(op, found, out)
