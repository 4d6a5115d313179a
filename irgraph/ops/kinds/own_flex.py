"""FlexAttention as one op and its gradient, with its two functions as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from itertools import chain
from typing import Any

from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.custom_ops import DifferentiatedCall
from irgraph.ir.torch_schemas.score_functions import lookups
from irgraph.ops.call import Call
from irgraph.ops.custom import custom_operator, deferred
from irgraph.ops.kinds.attention import OPERANDS, attention_flops, operand_axes
from irgraph.ops.meaning import OPAQUE, Axes, Axis, Meaning, Result, Slope, axis_names
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
    arguments = dict(call.arguments)
    arguments.pop("max_scores", None)
    tensors = [arguments.pop(name) for name in OPERANDS]
    learned = list(call.needs.get("buffers", ()))
    if grad is None:
        grad = torch.zeros_like(out)
    *gradients, of_buffers = torch.ops.irgraph.flex_attention_backward(
        grad, *tensors, out, sums, grad_sums, learned=learned, **arguments
    )
    buffers: list[Any] = [None] * len(arguments["buffers"])
    for index, gradient in zip(learned, of_buffers, strict=True):
        buffers[index] = gradient
    by_name = dict(zip(OPERANDS, gradients, strict=True))
    return {**by_name, "buffers": buffers}


class _Axes:
    """Axes of a call's tensors, and the constraints on tables that its functions look up."""

    def __init__(
        self,
        call: Call,
        q: Tensor,
        k: Tensor,
        v: Tensor,
    ) -> None:
        self.call = call
        self.slopes: list[Slope] = []
        self.by_name = operand_axes(q, k, v)
        self.heads = self.by_name["key"][1]
        result = self.by_name["out"]
        self.by_name |= {
            "grad_out": result,
            "logsumexp": result[:3],
            "grad_logsumexp": result[:3],
        }
        sizes = (*q.shape[:3], k.shape[2])
        self.sizes = dict(zip(INDICES, sizes, strict=True))
        functions = [str(call.arguments.get(name, "")) for name in ("score", "mask")]
        self.text = " ".join(functions)
        self.entries = [entry for function in functions for entry in lookups(function)]
        tables = [call.inputs[index] for index in call.spans.get("buffers", ())]
        self.buffers = [self._buffer(f"b{i}", table) for i, table in enumerate(tables)]

    def _buffer(self, name: str, table: Tensor) -> Axes:
        axes: list[Axis] = [OPAQUE] * table.rank
        for source, index, letter in self.entries:
            if source != name or letter not in self.sizes or index >= table.rank:
                continue
            if table.shape[index] == self.sizes[letter]:
                axes[index] = letter
                continue
            # a table may be longer than the sequence; it grows with it
            longer = f"{name}_{index}"
            axes[index] = longer
            self.slopes.append(Slope(letter, longer, Fraction(1)))
        return tuple(axes)

    def operands(self) -> tuple[Axes, ...]:
        """Return the axes of the operands, in order."""
        axes: list[Axes] = []
        for name, span in self.call.spans.items():
            if name == "buffers":
                axes += self.buffers
            else:
                axes += [self.by_name[name]] * len(span)
        return tuple(axes)

    def mixed(self) -> frozenset[str]:
        """Return the letters along which no rank can compute a part alone."""
        mixed = {"q", "k", "d", "e"}
        for letter in ("b", "h"):
            if re.search(rf"\b{letter}\b", self.text):
                mixed.add(letter)
        if self.heads == "g":
            mixed |= {"h", "g"}
        tables = axis_names(chain(*self.buffers))
        return tables.difference("b", "h", OPAQUE).union(mixed)

    def fixed(self) -> frozenset[str]:
        """Return the letters whose sizes the text's numbers may depend on."""
        letters = [letter for _, _, letter in self.entries]
        return frozenset() if all(letters) else frozenset({"q", "k"})

    def gradients(self) -> list[Result]:
        """Return the gradients of the operands and of the learned buffers."""
        operands = [self.by_name[name] for name in OPERANDS]
        learned = [self.buffers[index] for index in self.call.numbers("learned")]
        return list(map(Result, [*operands, *learned]))

    def results(self) -> list[Result]:
        """Return the result, the sums of scores and their maxima, if there are any."""
        results = [Result(self.by_name["out"])]
        scores = self.call.positions("query", "key", "buffers")
        for tensor in self.call.outputs[1:]:
            is_computed = tensor.rank == 3
            axes: Axes = self.by_name["logsumexp"] if is_computed else (OPAQUE,)
            results.append(Result(axes, scores))
        return results


def _attention(call: Call) -> Meaning | None:
    """Return the meaning of attention with score functions, or of its gradients."""
    q, k, v = map(call.tensor, OPERANDS)
    if q is None or k is None or v is None:
        return None
    if {q.rank, k.rank, v.rank} != {4}:
        return None
    axes = _Axes(call, q, k, v)
    results = axes.gradients() if call.is_gradient else axes.results()
    if len(results) != len(call.outputs):
        return None
    linear = "grad_out grad_logsumexp" if call.is_gradient else "value"
    return Meaning(
        operands=axes.operands(),
        results=tuple(results),
        mixed=axes.mixed(),
        linear=linear_sets(call, [linear]),
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
