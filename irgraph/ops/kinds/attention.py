"""Fused attention over queries, keys and values, forward and backward."""

from __future__ import annotations

from irgraph.ir.tensor import Tensor
from irgraph.ops.call import Call
from irgraph.ops.meaning import (
    ONE,
    OPAQUE,
    Arguments,
    Axes,
    Axis,
    Letters,
    Meaning,
    Result,
    growing_together,
)
from irgraph.ops.operator import operators
from irgraph.ops.patterns import linear_sets
from irgraph.ops.shapes import opaque

QUERY_ROUNDING = 32
"""Multiple to which memory-efficient attention rounds the number of queries up, for its sums."""

ROUNDED_QUERIES = growing_together("q", "rounded")

OPERANDS = ("query", "key", "value")

GRADIENTS = ("grad_out", "grad_out_")
"""Names of the gradient of the result among the arguments of gradients."""

BIASES = ("attn_bias", "attn_mask")
"""Names of arguments that are added to the scores."""

FORMS = (
    "flash_attention",
    "efficient_attention",
    "flash_attention_for_cpu",
    "cudnn_attention",
    "fused_attention_overrideable",
)


def operand_axes(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Axes]:
    """Return the axes of queries, keys, values and the result, by name.

    Keys may have fewer samples (``s``) and heads (``g``) than queries, and values other features
    (``e``).
    """
    samples = "b" if k.shape[0] == q.shape[0] else "s"
    heads = "h" if k.shape[1] == q.shape[1] else "g"
    width = "d" if v.shape[3] == q.shape[3] else "e"
    return {
        "query": ("b", "h", "q", "d"),
        "key": (samples, heads, "k", "d"),
        "value": (samples, heads, "k", width),
        "out": ("b", "h", "q", width),
    }


class _Axes:
    """Axes of the tensors of a call.

    Attributes:
        by_name: axes by the names of arguments.
        sums: the letters of the queries in sums over keys: ``q``, or ``rounded``.
    """

    def __init__(
        self,
        call: Call,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> None:
        self._q = q
        self._k = k
        self.by_name = operand_axes(q, k, v)
        self.heads = self.by_name["key"][1]
        self.result = self.by_name["out"]
        self.by_name |= dict.fromkeys(GRADIENTS, self.result)
        self.sums: set[str] = set()

    def of(self, tensor: Tensor, name: str = "") -> Axes:
        """Return the axes of an operand, or of a result without a name."""
        if name in self.by_name:
            return self.by_name[name]
        if tensor.rank == 4 and name in BIASES:
            return self.of_bias(tensor)
        is_sum = tensor.shape[:2] == self._q.shape[:2]
        if is_sum and tensor.rank in (3, 4):
            return self._of_sums(tensor)
        return opaque(tensor)

    def _of_sums(self, tensor: Tensor) -> Axes:
        if not tensor.numel:
            # sums that were not computed have no elements
            return ("b", "h", *(OPAQUE,) * (tensor.rank - 2))
        is_exact = tensor.shape[2] == self._q.shape[2]
        queries = "q" if is_exact else "rounded"
        self.sums.add(queries)
        return ("b", "h", queries, *(ONE,) * (tensor.rank - 3))

    def of_bias(self, tensor: Tensor) -> Axes:
        """Return the axes of a mask that broadcasts to the scores."""
        samples, heads, queries, _ = self._q.shape
        full_sizes = (samples, heads, queries, self._k.shape[2])
        axes: list[Axis] = []
        for letter, full_size, size in zip("bhqk", full_sizes, tensor.shape, strict=True):
            if size == full_size:
                axes.append(letter)
            else:
                axes.append(ONE if size == 1 else OPAQUE)
        return tuple(axes)

    def arguments(self, call: Call) -> Arguments:
        """Return the axes that arguments state."""
        arguments: Arguments = {}
        if call.arguments.get("max_q") == self._q.shape[2]:
            arguments["max_q", -1] = "q"
        if call.arguments.get("max_k") == self._k.shape[2]:
            arguments["max_k", -1] = "k"
        return arguments

    def mixed(self, call: Call) -> Letters:
        """Return the letters along which elements depend on each other."""
        mixed = {"k", "d", "e", "rounded"}
        if call.flag("is_causal"):
            mixed.add("q")
        return frozenset(mixed) | self.shared_heads

    @property
    def shared_heads(self) -> Letters:
        """The letters of heads of keys that queries share."""
        return frozenset({"h", "g"} if self.heads == "g" else ())


def _attention(call: Call) -> Meaning | None:
    """Return the meaning of attention: keys and features of a head are mixed.

    Queries are independent unless the mask is causal, which depends on their positions. Heads of
    keys and values may be fewer than those of queries.
    """
    q, k, v = map(call.tensor, OPERANDS)
    if q is None or k is None or v is None:
        return None
    if {q.rank, k.rank, v.rank} != {4}:
        return None
    axes = _Axes(call, q, k, v)
    operands: list[Axes] = []
    for name, span in call.spans.items():
        operands += [axes.of(call.inputs[index], name) for index in span]
    results = _gradients(call, axes) if call.is_gradient else _results(call, axes)
    is_rounded = "rounded" in axes.sums
    # some numbers of queries are multiples by chance
    is_rounding = is_rounded or (bool(axes.sums) and "efficient" in call.op.base)
    workspaces = [index for index, names in enumerate(operands) if "rounded" in names]
    return Meaning(
        operands=tuple(operands),
        results=tuple(results),
        mixed=axes.mixed(call),
        workspaces=frozenset(workspaces),
        linear=linear_sets(call, GRADIENTS if call.is_gradient else ("value",)),
        arguments=axes.arguments(call),
        slopes=ROUNDED_QUERIES if is_rounded else (),
        steps=(("q", QUERY_ROUNDING),) if is_rounding else (),
        # queries share heads of keys: neither number may change alone
        fixed=axes.shared_heads,
        random=bool(call.arguments.get("dropout_p")),
    )


def _results(call: Call, axes: _Axes) -> list[Result]:
    results = [Result(axes.result)]
    for tensor in call.outputs[1:]:
        results.append(_auxiliary(call, axes.of(tensor)))
    return results


def _gradients(call: Call, axes: _Axes) -> list[Result]:
    """Return the gradients that are computed."""
    results: list[Result] = []
    for name, result in zip(OPERANDS, call.op.results, strict=False):
        if isinstance(result, Tensor):
            results.append(Result(axes.by_name[name]))
    for tensor in call.outputs[len(results) :]:
        is_bias = tensor.rank == 4
        of_tensor = axes.of_bias(tensor) if is_bias else axes.of(tensor)
        results.append(_auxiliary(call, of_tensor))
    return results


def _auxiliary(call: Call, axes: Axes) -> Result:
    """Return a result that depends on the scores, if it has their axes."""
    # states of the random generator, and sizes that the host gave
    is_state = set(axes) <= {OPAQUE}
    scores = frozenset() if is_state else call.positions("query", "key")
    return Result(axes, scores, is_workspace="rounded" in axes)


def attention_flops(call: Call) -> int:
    """Return the operations of two products for each pair of a query and a key, or of five."""
    samples, heads, queries, width = map(int, call.shape("query"))
    keys = int(call.shape("key")[2])
    value_width = int(call.shape("value")[3])
    pairs = samples * heads * queries * keys
    if call.is_gradient:
        return 2 * pairs * (3 * width + 2 * value_width)
    return 2 * pairs * (width + value_width)


FORWARD = [f"_scaled_dot_product_{form}" for form in FORMS]
NAMES = " ".join(f"{name} {name}_backward" for name in FORWARD)

OPERATORS = operators(
    _attention,
    f"{NAMES} scaled_dot_product_attention",
    text="b h q! d!, b h k! d!, b h k! d! -> b h q! d!",
    flops=attention_flops,
)
