"""Element-wise ops: each element of a result depends on the operands' elements in its position."""

from __future__ import annotations

from msgspec.structs import replace

from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import Meaning, Result
from irgraph.ops.operator import Operator, Trait, no_meaning, operators
from irgraph.ops.patterns import linear_sets
from irgraph.ops.shapes import aligned, broadcast_shape, letters

UNARY = "neg detach_ zero_ copy"
"""Ops that are linear in ``self``."""

JOINT = "add sub"
"""Ops that are linear in ``self`` and ``other`` together, if both are tensors."""

ROUNDING = (
    "acos asin atan atan2 cos cosh erf erfc exp exp2 expm1 gelu log1p mish pow reciprocal sigmoid "
    "silu sin sinh tan tanh"
)
"""Functions by element whose results are rarely exact."""

ROOTS_AND_LOGARITHMS = "log log10 log2 rsqrt sqrt"

LINEAR_IN_FIRST_GRADIENT = (
    "threshold_backward sigmoid_backward tanh_backward gelu_backward silu_backward elu_backward "
    "hardtanh_backward leaky_relu_backward hardswish_backward hardsigmoid_backward "
    "native_dropout_backward mish_backward softplus_backward logit_backward "
    "_prelu_kernel_backward hardshrink_backward softshrink_backward log_sigmoid_backward "
    "rrelu_with_noise_backward"
)
"""Gradients by element: linear in ``grad_output``."""

UNTAGGED = (
    "hardswish hardswish_ rsub "
    "copy_ fill_ ones_like zeros_like empty_like full_like rand_like bernoulli bernoulli_ normal_ "
    "uniform_ dropout dropout_ native_dropout broadcast_tensors expand_as lerp_ masked_fill "
    "masked_fill_ where _prelu_kernel addcmul addcmul_ addcdiv addcdiv_ mul_ div_ add_ sub_ "
    "randn_like"
)
"""Ops by element beside those that torch tags as pointwise."""


def by_element(call: Call, *linear: str) -> Meaning | None:
    """Return the meaning of a call whose tensors broadcast, linear in sets of arguments."""
    tensors = (*call.inputs, *call.outputs)
    if not tensors:
        return None
    shape = broadcast_shape(call.inputs or tensors)
    operands = tuple(aligned(tensor, shape) for tensor in call.inputs)
    count = len(call.outputs) + len(call.written)
    return Meaning(
        operands=operands,
        results=(Result(letters(len(shape)), _reads(call)),) * count,
        linear=linear_sets(call, linear),
    )


def _reads(call: Call) -> frozenset[int] | None:
    """Return the operands whose elements results depend on, ``None`` for all."""
    base = call.op.base
    if base in ("zero_", "fill_", "normal_", "uniform_", "bernoulli_") or base.endswith("_like"):
        return frozenset()
    if base == "copy_":
        return frozenset(call.spans.get("src", ()))
    return None


def _plain(call: Call) -> Meaning | None:
    return by_element(call)


def _unary(call: Call) -> Meaning | None:
    types = {tensor.dtype for tensor in (*call.inputs[:1], *call.outputs[:1])}
    if len(types) > 1 and not _are_floats(call.inputs[0], call.outputs[0]):
        return by_element(call)
    return by_element(call, "self")


def _copied(call: Call) -> Meaning | None:
    meaning = _unary(call)
    return meaning and replace(meaning, rearranges=bool(meaning.linear))


def _are_floats(*tensors: Tensor) -> bool:
    return all(tensor.dtype.startswith(("f", "bf", "c")) for tensor in tensors)


def _copy(call: Call) -> Meaning | None:
    return by_element(call, "src") if _are_floats(*call.inputs) else by_element(call)


def _joint(call: Call) -> Meaning | None:
    # a number that is added would be added on every rank
    return by_element(call, "self other") if call.tensor("other") is not None else by_element(call)


def _product(call: Call) -> Meaning | None:
    if call.tensor("other") is None:
        return by_element(call, "self")
    return by_element(call, "self", "other")


def _quotient(call: Call) -> Meaning | None:
    # a rounded quotient is not linear
    return by_element(call) if call.arguments.get("rounding_mode") else by_element(call, "self")


def _selection(call: Call) -> Meaning | None:
    has_tensors = call.tensor("self") is not None and call.tensor("other") is not None
    return by_element(call, "self other") if has_tensors else by_element(call)


def _masked(call: Call) -> Meaning | None:
    # masked elements of a partial sum stay partial only if they are zero
    return by_element(call, "self") if call.arguments.get("value") == 0 else by_element(call)


def _gradient(call: Call) -> Meaning | None:
    return by_element(call, "grad_output", "grad")


def _added_product(call: Call) -> Meaning | None:
    return by_element(call, "self tensor1", "self tensor2")


def _added_quotient(call: Call) -> Meaning | None:
    return by_element(call, "self tensor1")


def _interpolation(call: Call) -> Meaning | None:
    return by_element(call, "self end")


def _random(call: Call) -> Meaning | None:
    is_dropout = call.op.base.rstrip("_") in ("dropout", "native_dropout")
    if is_dropout and (call.arguments.get("p") == 0 or call.arguments.get("train") is False):
        return by_element(call, "input")
    meaning = by_element(call)
    return meaning and Meaning(meaning.operands, meaning.results, random=True)


def is_tagged(name: str) -> bool:
    """Return whether torch tags every overload of an op without ``out`` as pointwise."""
    schemas = [schema for schema in schemas_of(name) if not schema.has_out]
    return bool(schemas) and all(schema.pointwise for schema in schemas)


def tagged(name: str) -> Operator | None:
    """Return the declaration of an op that torch tags as pointwise, ``None`` for others."""
    return Operator(name, _plain) if is_tagged(name) else None


LINEAR_SETS = {
    "add": ("self other", "self tensors1"),
    "sub": ("self other",),
    "mul": ("self", "other"),
    "div": ("self",),
    "neg": ("self",),
    "addcmul": ("self tensor1", "self tensor2"),
    "addcdiv": ("self tensor1",),
    "lerp": ("self tensors1",),
    "copy": ("src",),
}
"""Sets of arguments in which ops over lists are linear, by the op that each position runs."""


OPERATORS = {
    **operators(_plain, UNTAGGED),
    **operators(_unary, UNARY, in_place=True),
    **operators(_copied, "lift_fresh_copy", traits=[Trait.DUPLICATE]),
    **operators(_copied, "clone", traits=[Trait.DUPLICATE, Trait.COPY_KERNEL]),
    **operators(
        _copied,
        "to",
        traits=[Trait.COPY, Trait.DUPLICATE, Trait.COPY_KERNEL, Trait.VIEW_OR_COPY],
    ),
    **operators(_copied, "_to_copy", traits=[Trait.COPY, Trait.DUPLICATE, Trait.COPY_KERNEL]),
    **operators(
        _copied,
        "contiguous",
        traits=[Trait.DUPLICATE, Trait.COPY_KERNEL, Trait.VIEW_OR_COPY],
    ),
    **operators(_plain, ROUNDING, in_place=True, traits=[Trait.ROUNDING]),
    **operators(_plain, "softplus", traits=[Trait.ROUNDING]),
    **operators(
        _plain,
        ROOTS_AND_LOGARITHMS,
        in_place=True,
        traits=[Trait.ROUNDING, Trait.NONNEGATIVE],
    ),
    **operators(no_meaning, "log_sigmoid_forward", traits=[Trait.ROUNDING]),
    **operators(_copied, "pin_memory _pin_memory", traits=[Trait.DATA]),
    **operators(_copy, "copy_", traits=[Trait.COPY_KERNEL]),
    **operators(_joint, JOINT, in_place=True),
    **operators(_product, "mul", in_place=True),
    **operators(_quotient, "div", in_place=True, traits=[Trait.ROUNDING]),
    **operators(_selection, "where"),
    **operators(_masked, "masked_fill", in_place=True),
    **operators(_gradient, LINEAR_IN_FIRST_GRADIENT),
    **operators(_added_product, "addcmul", in_place=True),
    **operators(_added_quotient, "addcdiv", in_place=True),
    **operators(_interpolation, "lerp", in_place=True),
    **operators(_random, "bernoulli", in_place=True, traits=[Trait.NONNEGATIVE]),
    **operators(
        _random,
        "dropout native_dropout rand_like randn_like normal uniform",
        in_place=True,
    ),
}
