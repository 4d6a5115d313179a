"""FlexAttention as one op and its gradient, with its two functions as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.custom_ops import DifferentiatedCall
from irgraph.ir.torch_schemas.score_functions import lookups
from irgraph.ops.call import Call
from irgraph.ops.custom import custom_operator, deferred
from irgraph.ops.kinds.attention import attention_flops
from irgraph.ops.meaning import OPAQUE, Axes, Axis, Meaning, Result, Slope
from irgraph.ops.patterns import linear_sets

INDICES = "bhqk"
"""Letters of samples, heads, queries and keys: a score's indices in its functions."""


def _gradients(call: DifferentiatedCall) -> Mapping[str, Any]:
    """Return the gradients of query, key, value and of the buffers that need one."""
    import torch

    out, sums, _ = call.results
    grad, grad_sums, grad_maxima = call.grads
    if grad_maxima is not None:
        raise NotImplementedError("maxima of scores have no gradient")
    arguments = {n: v for n, v in call.arguments.items() if n != "max_scores"}
    tensors = [arguments.pop(name) for name in ("query", "key", "value")]
    learned = list(call.needs.get("buffers", ()))
    grad = torch.zeros_like(out) if grad is None else grad
    compute = torch.ops.irgraph.flex_attention_backward
    *gradients, of_buffers = compute(
        grad, *tensors, out, sums, grad_sums, learned=learned, **arguments
    )
    by_index = dict(zip(learned, of_buffers, strict=True))
    buffers = [by_index.get(i) for i in range(len(arguments["buffers"]))]
    return {**dict(zip(("query", "key", "value"), gradients, strict=True)), "buffers": buffers}


class _Axes:
    """Axes of a call's tensors, and the constraints on tables that its functions look up."""

    def __init__(self, call: Call, q: Tensor, k: Tensor, v: Tensor) -> None:
        self.call = call
        heads = "h" if k.shape[1] == q.shape[1] else "g"
        samples = "b" if k.shape[0] == q.shape[0] else "s"
        width = "d" if v.shape[3] == q.shape[3] else "e"
        self.slopes: list[Slope] = []
        self.by_name: dict[str, Axes] = {
            "query": ("b", "h", "q", "d"),
            "key": (samples, heads, "k", "d"),
            "value": (samples, heads, "k", width),
            "out": ("b", "h", "q", width),
        }
        self.by_name["grad_out"] = self.by_name["out"]
        self.by_name["logsumexp"] = self.by_name["grad_logsumexp"] = ("b", "h", "q")
        self.sizes = dict(zip(INDICES, (*q.shape[:3], k.shape[2]), strict=True))
        self.text = " ".join(str(call.arguments.get(name, "")) for name in ("score", "mask"))
        self.entries = [
            entry
            for name in ("score", "mask")
            for entry in lookups(str(call.arguments.get(name, "")))
        ]
        self.buffers = [
            self._buffer(f"b{i}", call.inputs[position])
            for i, position in enumerate(call.spans.get("buffers", ()))
        ]

    def _buffer(self, name: str, table: Tensor) -> Axes:
        axes: list[Axis] = [OPAQUE] * table.rank
        for source, index, letter in self.entries:
            if source != name or letter not in self.sizes or index >= table.rank:
                continue
            if table.shape[index] == self.sizes[letter]:
                axes[index] = letter
            else:
                # a table may be longer than the sequence; it grows with it
                axes[index] = f"{name}_{index}"
                self.slopes.append(Slope(letter, f"{name}_{index}", Fraction(1)))
        return tuple(axes)

    def operands(self) -> tuple[Axes, ...]:
        """Return the axes of the operands, in order."""
        axes: list[Axes] = []
        for name, span in self.call.spans.items():
            axes += self.buffers if name == "buffers" else [self.by_name[name]] * len(span)
        return tuple(axes)

    def mixed(self) -> frozenset[str]:
        """Return the letters along which no rank can compute a part alone."""
        numbers = {letter for letter in "bh" if re.search(rf"\b{letter}\b", self.text)}
        grouped = {"h", "g"} if self.by_name["key"][1] == "g" else set()
        tables = {str(axis) for axes in self.buffers for axis in axes} - {"b", "h", OPAQUE}
        return frozenset({"q", "k", "d", "e"} | numbers | grouped | tables)

    def fixed(self) -> frozenset[str]:
        """Return the letters whose sizes the text's numbers may depend on."""
        is_computed = any(not letter for _, _, letter in self.entries)
        return frozenset("qk") if is_computed else frozenset()


def _attention(call: Call) -> Meaning | None:
    """Return the meaning of attention with score functions, or of its gradients."""
    q, k, v = (call.tensor(name) for name in ("query", "key", "value"))
    if q is None or k is None or v is None or any(t.rank != 4 for t in (q, k, v)):
        return None
    axes = _Axes(call, q, k, v)
    is_gradient = call.op.base.endswith("_backward")
    if is_gradient:
        learned = [axes.buffers[i] for i in call.numbers("learned")]
        outputs = [*(axes.by_name[name] for name in ("query", "key", "value")), *learned]
        results = [Result(output) for output in outputs]
    else:
        scores = {i for n in ("query", "key", "buffers") for i in call.spans.get(n, ())}
        sums, maxima = (
            axes.by_name["logsumexp"] if t.rank == 3 else (OPAQUE,) for t in call.outputs[1:]
        )
        reads = frozenset(scores)
        results = [Result(axes.by_name["out"]), Result(sums, reads), Result(maxima, reads)]
    if len(results) != len(call.outputs):
        return None
    return Meaning(
        operands=axes.operands(),
        results=tuple(results),
        mixed=axes.mixed(),
        linear=linear_sets(call, ("grad_out grad_logsumexp",) if is_gradient else ("value",)),
        slopes=tuple(axes.slopes),
        fixed=axes.fixed(),
    )


OPERATORS = {
    **custom_operator(
        "irgraph::flex_attention(Tensor query, Tensor key, Tensor value, *, Tensor[] buffers,"
        " str score='', str mask='', float scale, float density=1.0, bool max_scores=False)"
        " -> (Tensor, Tensor, Tensor)",
        _attention,
        deferred("flex", "flex_attention"),
        backward=_gradients,
        types=deferred("flex", "attention_types"),
        text="b h q! d!, b h k! d!, b h k! e! -> b h q! e!, b h q!, _",
        flops=attention_flops,
    ),
    **custom_operator(
        "irgraph::flex_attention_backward(Tensor grad_out, Tensor query, Tensor key, Tensor value,"
        " Tensor out, Tensor logsumexp, Tensor? grad_logsumexp=None, *, Tensor[] buffers,"
        " str score='', str mask='', float scale, float density=1.0, int[] learned=[])"
        " -> (Tensor, Tensor, Tensor, Tensor[])",
        _attention,
        deferred("flex", "flex_attention_backward"),
        types=deferred("flex", "gradient_types"),
        text="b h q! e!, b h q! d!, b h k! d!, b h k! e!, b h q! e!, b h q! ->"
        " b h q! d!, b h k! d!, b h k! e!",
        flops=attention_flops,
    ),
}
