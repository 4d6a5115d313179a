"""Fused attention over queries, keys and values, forward and backward."""

from __future__ import annotations

from fractions import Fraction

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import ONE, OPAQUE, ArgumentKey, Axes, Axis, Meaning, Result, Slope
from irgraph.ops.operator import operators
from irgraph.ops.patterns import linear_sets

QUERY_ROUNDING = 32
"""Multiple to which memory-efficient attention rounds the number of queries up, for its sums."""

ROUNDED_QUERIES = (Slope("q", "rounded", Fraction(1)), Slope("rounded", "q", Fraction(1)))

GRADIENTS = ("grad_out", "grad_out_")
"""Names of the gradient of the result among the arguments of gradients."""

FORMS = ("flash_attention", "efficient_attention", "flash_attention_for_cpu", "cudnn_attention")


def _attention(call: Call) -> Meaning | None:
    """Return the meaning of attention: keys and features of a head are mixed.

    Queries are independent unless the mask is causal, which depends on their positions. Heads of
    keys and values may be fewer than those of queries.
    """
    q, k, v = (call.tensor(name) for name in ("query", "key", "value"))
    if q is None or k is None or v is None or any(t.rank != 4 for t in (q, k, v)):
        return None
    heads = "h" if k.shape[1] == q.shape[1] else "g"
    queries: Axes = ("b", "h", "q", "d")
    keys: Axes = ("b", heads, "k", "d")
    values: Axes = ("b", heads, "k", "d" if v.shape[3] == q.shape[3] else "e")
    result: Axes = (*queries[:3], values[3])
    sums: set[str] = set()

    def of(tensor: Tensor, name: str) -> Axes:
        declared = {"query": queries, "key": keys, "value": values, "out": result}
        if name in GRADIENTS:
            return result
        if name in declared:
            return declared[name]
        if tensor.rank == 4 and name in ("attn_bias", "attn_mask"):
            return _bias_axes(tensor, q, k)
        if tensor.rank in (3, 4) and tensor.shape[:2] == q.shape[:2]:
            if not tensor.numel:
                # sums that were not computed have no elements
                return ("b", "h", *(OPAQUE,) * (tensor.rank - 2))
            is_exact = tensor.shape[2] == q.shape[2]
            sums.add("q" if is_exact else "rounded")
            return ("b", "h", "q" if is_exact else "rounded", *(ONE,) * (tensor.rank - 3))
        return (OPAQUE,) * tensor.rank

    names = {i: name for name, span in call.spans.items() for i in span}
    operands = tuple(of(tensor, names.get(i, "")) for i, tensor in enumerate(call.inputs))
    is_gradient = call.op.base.endswith("_backward")
    outputs = _gradients(call, queries, keys, values) if is_gradient else [result]
    results = list(map(Result, outputs))
    for tensor in call.outputs[len(outputs) :]:
        is_bias = is_gradient and tensor.rank == 4
        axes = _bias_axes(tensor, q, k) if is_bias else of(tensor, "")
        # states of the random generator, and sizes that the host gave
        is_state = set(axes) <= {OPAQUE}
        scores = [i for name in ("query", "key") for i in call.spans[name]]
        is_sum = "rounded" in axes
        results.append(Result(axes, frozenset(() if is_state else scores), is_workspace=is_sum))
    arguments: dict[ArgumentKey, Axis] = {}
    for name, tensor, letter in (("max_q", q, "q"), ("max_k", k, "k")):
        if call.arguments.get(name) == tensor.shape[2]:
            arguments[name, -1] = letter
    # some numbers of queries are multiples by chance
    is_rounding = "rounded" in sums or (bool(sums) and "efficient" in call.op.base)
    mixed = {"k", "d", "e", "rounded", *({"h", "g"} if heads == "g" else ())}
    if call.flag("is_causal"):
        mixed.add("q")
    return Meaning(
        operands=operands,
        results=tuple(results),
        mixed=frozenset(mixed),
        workspaces=frozenset(i for i, axes in enumerate(operands) if "rounded" in axes),
        linear=linear_sets(call, GRADIENTS if is_gradient else ("value",)),
        arguments=arguments,
        slopes=ROUNDED_QUERIES if "rounded" in sums else (),
        steps=(("q", QUERY_ROUNDING),) if is_rounding else (),
        # queries share heads of keys: neither number may change alone
        fixed=frozenset({"h", "g"}) if heads == "g" else frozenset(),
        random=bool(call.arguments.get("dropout_p")),
    )


def _bias_axes(tensor: Tensor, q: Tensor, k: Tensor) -> Axes:
    """Return the axes of a mask that broadcasts to the scores."""
    sizes = (*q.shape[:3], k.shape[2])
    pairs = zip("bhqk", sizes, tensor.shape, strict=True)
    return tuple(
        letter if size == full else ONE if size == 1 else OPAQUE for letter, full, size in pairs
    )


def _gradients(call: Call, queries: Axes, keys: Axes, values: Axes) -> list[Axes]:
    """Return the axes of the gradients that are computed."""
    declared = [queries, keys, values]
    results = call.op.results[:3]
    return [a for a, result in zip(declared, results, strict=False) if isinstance(result, Tensor)]


def attention_flops(call: Call) -> int:
    """Return the operations of two products for each pair of a query and a key, or of five."""
    queries, keys, values = (call.shape(name) for name in ("query", "key", "value"))
    pairs = int(queries[0]) * int(queries[1]) * int(queries[2]) * int(keys[2])
    widths = int(queries[3]), int(values[3])
    if call.op.base.endswith("_backward"):
        return 2 * pairs * (3 * widths[0] + 2 * widths[1])
    return 2 * pairs * sum(widths)


OPERATORS = {
    **operators(
        _attention,
        " ".join(
            f"_scaled_dot_product_{form}{suffix}" for form in FORMS for suffix in ("", "_backward")
        ),
        text="b h q! d!, b h k! d!, b h k! d! -> b h q! d!",
        flops=attention_flops,
    ),
    **operators(
        _attention,
        "scaled_dot_product_attention _scaled_dot_product_fused_attention_overrideable "
        "_scaled_dot_product_fused_attention_overrideable_backward",
        text="b h q! d!, b h k! d!, b h k! d! -> b h q! d!",
        flops=attention_flops,
    ),
}
