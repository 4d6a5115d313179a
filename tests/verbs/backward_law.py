"""The law of rewrites with backward: each equals a capture of the rewritten program.

A program calls one of torch's own sample calls (``OpInfo``) on sines of its parameters. The rewrite
calls it on twice negated values, or negates its result twice: either changes the backward, too.
"""

from __future__ import annotations

import sys
import unittest
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from irgraph.capture.live import capture
from irgraph.diagnostics import IrgraphError
from irgraph.execute import compare
from irgraph.ir.edit import map_tensors
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.verify import verify
from irgraph.verbs import RefusedError
from irgraph.verbs.autograd.replacements import ReplacementBatch

NEEDS: Mapping[str, Callable[[int], bool]] = {
    "all": lambda _: True,
    "first": lambda position: position == 0,
    "others": lambda position: position > 0,
}
"""Operands that require a gradient, by their position among those of floating types."""

SIDES = ("operand", "result")
"""Where the rewrite negates twice."""


class Claim(Struct, frozen=True):
    """The outcome of one rewrite.

    Attributes:
        verdict: ``equal``, ``refused``, ``wrong``, or ``unavailable`` if torch or the check cannot
            run the call itself.
        text: the rewrite, and the reason.
    """

    verdict: str
    text: str


def op_infos() -> list[Any]:
    """Return torch's list of differentiable ops with sample calls, in f32."""
    # torch's tests import a package that they do not need here, and forbid setting flags
    stub = ModuleType("expecttest")
    stub.TestCase = unittest.TestCase  # type: ignore[attr-defined]
    sys.modules.setdefault("expecttest", stub)
    disable, torch.backends.disable_global_flags = torch.backends.disable_global_flags, list
    try:
        from torch.testing._internal.common_methods_invocations import op_db
    finally:
        torch.backends.disable_global_flags = disable
    return [op for op in op_db if op.supports_autograd and torch.float32 in op.dtypes]


def name_of(op: Any) -> str:
    """Return the name of an ``OpInfo`` with its variant."""
    return ".".join(filter(None, (op.name, op.variant_test_name)))


class Operand(Struct, frozen=True):
    """A tensor of the model among a call's arguments."""

    name: str


class Program:
    """A training step that calls an op once."""

    def __init__(self, op: Any, sample: Any, needs: Callable[[int], bool]) -> None:
        self.op, self.side = op, ""
        self.model = nn.Module()
        values, self.structure = tree_flatten((sample.input, sample.args, sample.kwargs))
        self.floats: list[str] = []
        self.values = [self._argument(value, needs) for value in values]
        self.results = self.call()

    def _argument(self, value: Any, needs: Callable[[int], bool]) -> Any:
        """Return a value, or the name of the model's tensor if it is a tensor."""
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
            return value
        name, tensor = f"x{len(self.model.state_dict())}", value.detach().to("meta")
        is_float = value.dtype.is_floating_point
        if is_float:
            self.floats.append(name)
        if is_float and needs(len(self.floats) - 1):
            self.model.register_parameter(name, nn.Parameter(tensor))
        else:
            self.model.register_buffer(name, tensor)
        return Operand(name)

    def _operand(self, operand: Operand) -> Any:
        tensor = getattr(self.model, operand.name)
        if operand.name not in self.floats:
            return tensor
        is_changed = self.side == "operand" and operand.name == self.floats[0]
        return (tensor.neg().neg() if is_changed else tensor).sin()

    def call(self) -> list[Any]:
        """Return the results that have a gradient."""
        values = [self._operand(v) if isinstance(v, Operand) else v for v in self.values]
        first, args, keywords = tree_unflatten(values, self.structure)
        results = tree_flatten(self.op(first, *args, **keywords))[0]
        tensors = [value for value in results if isinstance(value, torch.Tensor)]
        return [t for t in tensors if t.requires_grad and t.dtype.is_floating_point]

    def __call__(self) -> list[Any]:
        """Run the step; return the loss and the gradients."""
        results = self.call()
        if self.side == "result":
            results[0] = results[0].neg().neg()
        loss = torch.stack([value.cos().float().sum() for value in results]).sum()
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = [parameter.grad for parameter in self.model.parameters()]
        self.model.zero_grad()
        return [loss, *(gradient for gradient in gradients if gradient is not None)]

    def graph(self, side: str = "") -> Graph:
        """Return the captured step, with its operand or its result negated twice."""
        self.side = side
        return capture(self, device="meta").graph


def claims(op: Any, samples: int, needs: Sequence[str] = tuple(NEEDS)) -> Iterator[Claim]:
    """Yield the claims about the first and the last of an op's sample calls."""
    torch.manual_seed(0)
    calls = list(op.sample_inputs("cpu", torch.float32, requires_grad=True))
    for sample in [calls[0], *calls[1:][-1:]][:samples]:
        for name in needs:
            for side in SIDES:
                verdict, reason = _verdict(op, sample, NEEDS[name], side)
                yield Claim(verdict, f"{name_of(op)}, {name} by {side}: {reason}")


def _verdict(op: Any, sample: Any, needs: Callable[[int], bool], side: str) -> tuple[str, str]:
    try:
        program = Program(op.op, sample, needs)
        if not program.results or not all(map(torch.Tensor.numel, program.model.parameters())):
            return "unavailable", "no element has a gradient"
        before, meant = program.graph(), program.graph(side)
    except (IrgraphError, NotImplementedError, RuntimeError) as error:
        return "unavailable", str(error)
    members = _members(before, program)
    if not members:
        return "unavailable", "it calls nothing"
    if any(map(_is_random, members)):
        return "unavailable", "random numbers follow the names of results"
    try:
        after = _rewritten(before, members, side)
    except RefusedError as error:
        return "refused", error.reason
    return _comparison(after, meant)


def _comparison(after: Graph, meant: Graph) -> tuple[str, str]:
    """Compare a rewrite with the capture of the rewritten program, in kinds of ops and values."""
    findings = verify(after)
    if findings:
        return "wrong", findings[0].message
    extra, missing = _kinds(after) - _kinds(meant), _kinds(meant) - _kinds(after)
    if extra or missing:
        return "wrong", f"{dict(extra)} instead of {dict(missing)}"
    try:
        result = compare(after, meant, draws=2)
    except IrgraphError as error:
        return "unavailable", str(error)
    return ("equal", "") if result.same else ("wrong", str(result))


def _is_random(op: Op) -> bool:
    return any(schema.random for leaf in op.leaves() for schema in schemas_of(leaf.name))


def _kinds(graph: Graph) -> Counter[str]:
    """Return the number of ops of each name; a number behind a node's name is an overload."""
    leaves = graph.leaves()
    return Counter(op.name.rstrip("0123456789") if op.is_autograd else op.name for op in leaves)


def _members(graph: Graph, program: Program) -> list[Op]:
    """Return the ops between the sines of the operands and the cosines of the results."""
    forward = [op for op in graph.top_level() if op.phase != "backward"]
    sines = [i for i, op in enumerate(forward) if op.name == "aten.sin"]
    stop = [i for i, op in enumerate(forward) if op.name == "aten.cos"][-len(program.results)]
    first = sines[len(program.floats) - 1] + 1
    return [forward[sines[0]], *forward[first:stop], forward[stop]] if stop > first else []


def _rewritten(graph: Graph, members: Sequence[Op], side: str) -> Graph:
    """Return a graph in which the first operand, or the first result, is negated twice."""
    sine, *called, cosine = members
    if side == "operand":
        negations, tensor = _negations(sine.inputs[0])
        old, new = [sine, *called], [*negations, replace(sine, operands=(tensor,)), *called]
    else:
        value = cosine.inputs[0]
        negations, tensor = _negations(replace(value, name="value", buffer="value", offset=0))
        last = replace(negations[1], results=(value,))
        renamed = [_with_tensor(op, value, negations[0].inputs[0]) for op in called]
        old, new = called, [*renamed, negations[0], last]
    batch = ReplacementBatch(graph)
    assert batch.replace(old, new, caller="law") is not None
    return batch.commit()


def _negations(tensor: Tensor) -> tuple[list[Op], Tensor]:
    first, second = (replace(tensor, name=n, buffer=n, offset=0) for n in ("first", "second"))
    ops = [Op("aten.neg", (tensor,), (first,)), Op("aten.neg", (first,), (second,))]
    return ops, second


def _with_tensor(op: Op, old: Tensor, new: Tensor) -> Op:
    return map_tensors(op, lambda tensor: new if tensor.name == old.name else tensor)
