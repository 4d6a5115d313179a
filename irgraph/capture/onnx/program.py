"""A model as a program of torch: what each node calls, constants folded on the way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch.autograd.profiler import record_function

from irgraph.capture.common.lowering import MODULE, ORIGIN
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.onnx.bind import Convert, UnsupportedError, bind
from irgraph.capture.onnx.bodies import body_of, branch_of
from irgraph.capture.onnx.loops import looped, scanned
from irgraph.capture.onnx.model import SMALL, Model, Node, in_ir
from irgraph.capture.onnx.opaque import OpaqueOp, stranger
from irgraph.capture.onnx.operators import OPERATORS, linear
from irgraph.capture.onnx.operators.recurrent import GATES
from irgraph.diagnostics import IrgraphError, SourceSpan, fail

Values = dict[str, Any]
"""Tensors, or lists of them, by their names in the model."""


class Step(Struct, frozen=True):
    """One call that the program makes: where its results go, and what it stands for."""

    call: Callable[[Callable[[str], Torch]], Any]
    outputs: tuple[str, ...]
    node: Node


@dataclass
class Program:
    """The calls of a model, found by running them on the meta device.

    Attributes:
        model: what is run.
        steps: what is left when constants are folded, in order.
        values: every tensor by name, on the meta device.
        known: values of constants, on the CPU.
        declared: names of what the step takes and its tensors, with their roles.
        strangers: what nothing in torch stands for, and why.
    """

    model: Model
    steps: list[Step] = field(default_factory=list)
    values: Values = field(default_factory=dict)
    known: Values = field(default_factory=dict)
    declared: dict[str, tuple[str, Torch]] = field(default_factory=dict)
    strangers: list[str] = field(default_factory=list)
    _users: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name, tensor in self.model.inputs.items():
            self.values[name] = tensor
            self.declared[name] = ("input", tensor)
        self.known.update(self.model.constants)
        for name, tensor in self.model.weights.items():
            self.values[name] = tensor
            self.declared[name] = ("param", tensor)
        self._users.update(name for node in self.model.nodes for name in node.inputs)
        self._users.update(self.model.outputs)
        with torch.no_grad():
            self.add(self.model.nodes)
            for name in self.model.outputs:
                self.tensor(name)

    def __call__(self) -> list[Torch]:
        """Run the program; return the model's outputs."""
        values = {name: tensor for name, (_, tensor) in self.declared.items()}
        with torch.no_grad():
            for step in self.steps:
                with _marked(step.node):
                    made = step.call(values.__getitem__)
                values.update(zip(step.outputs, _several(made), strict=False))
            found = [values[name] for name in self.model.outputs]
            given = {id(tensor) for _, tensor in self.declared.values()}
            return [torch.ops.aten.alias(t) if id(t) in given else t for t in found]

    def tensor(self, name: str) -> Torch:
        """Return the tensor of a value; a constant is declared at its first use as one."""
        if name not in self.values:
            if name not in self.known:
                raise UnsupportedError(f"it uses {name!r}, which nothing makes")
            self.values[name] = torch.empty_like(self.known[name], device="meta")
            self.declared[name] = ("param", self.values[name])
        return self.values[name]

    def add(self, nodes: Sequence[Node]) -> None:
        """Add the calls of nodes, in order."""
        merged: set[str] = set()
        for i, node in enumerate(nodes):
            if node.outputs[0] in merged:
                continue
            added = self._bias(node, nodes[i + 1 :])
            if added is not None:
                merged.add(added.outputs[0])
            else:
                self._add(node)

    def _add(self, node: Node) -> None:
        """Add a node by its converter, else by what onnx says it is made of, else as it is."""
        reasons = []
        for way in (self._converted, self._opened):
            try:
                way(node)
                return
            except UnsupportedError as error:
                reasons.append(str(error))
        self._estranged(node, reasons[node.op not in OPERATORS and bool(reasons[1])])

    def _converted(self, node: Node) -> None:
        convert = None if node.domain else OPERATORS.get(node.op)
        if convert is None:
            raise UnsupportedError("torch has no equivalent")
        self._call(self._reordered(node) if node.op in GATES else node, convert)

    def _reordered(self, node: Node) -> Node:
        """Let the weights of a recurrent layer have their gates in torch's order, if they can.

        Those have no values that the model holds, and no other use.
        """
        names = [name for name in node.inputs[1:4] if name]
        if any(name not in self.model.weights or self._users[name] != 1 for name in names):
            return node
        return replace(node, attributes={**node.attributes, "reordered": 1})

    def _call(self, node: Node, convert: Convert) -> None:
        call = bind(convert, node, self.known)
        if all(name in self.known for name in call.needs) and _folds(node):
            found = self._on("cpu", lambda: call(self._type), node)
            if all(value.numel() <= SMALL for value in found):
                self.known.update(zip(node.outputs, found, strict=False))
                return
        found = self._on("meta", lambda: call(self.tensor), node)
        self._note_statistics(node)
        on_host = [v.device.type == "cpu" for v in found if isinstance(v, torch.Tensor)]
        if on_host and all(on_host):
            self.known.update(zip(node.outputs, found, strict=False))
            return
        self.values.update(zip(node.outputs, found, strict=False))
        self.steps.append(Step(_on_meta(call), node.outputs, node))

    def _note_statistics(self, node: Node) -> None:
        """Let running statistics be state: unlike weights they are not drawn below zero."""
        for name in node.inputs[3:5] if node.op == "BatchNormalization" else ():
            if self.declared.get(name, ("",))[0] == "param":
                self.declared[name] = ("state", self.declared[name][1])

    def _on(self, device: str, run: Callable[[], Any], node: Node) -> list[Any]:
        try:
            with torch.device(device):
                found = _several(run())
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UnsupportedError(f"torch refuses it: {lines[0]}") from None
        for name in node.outputs[len(found) :]:
            if name:
                raise UnsupportedError(f"its output {name!r} is not supported")
        for value in found:
            _check_type(value)
        return found

    def _opened(self, node: Node) -> None:
        """Add what a node is made of: the branch it takes, or the body that onnx gives it."""
        undo = len(self.steps), len(self.strangers), set(self.declared)
        try:
            self.add(self._body(node))
        except IrgraphError as error:
            self._undo(*undo)
            reason = error.diagnostics[0].message.replace(" cannot be lowered", "")
            raise UnsupportedError(f"inside it, {reason}") from None
        if len(self.strangers) > undo[1]:
            reason = self.strangers[undo[1]]
            self._undo(*undo)
            raise UnsupportedError(f"inside it, {reason}")

    def _body(self, node: Node) -> list[Node]:
        if node.op == "Loop" and not node.domain:
            return looped(node, self.known, self.add)
        if node.op == "Scan" and self.model.opset < 9:
            raise UnsupportedError("Scan of opset 8 is not supported, only that of 9 and newer")
        body = branch_of(node, self.known) or scanned(node, self._type)
        body = body or body_of(node, self.model.native, self._type)
        if body is None:
            raise UnsupportedError("")
        return body

    def _undo(self, steps: int, strangers: int, declared: set[str]) -> None:
        del self.steps[steps:], self.strangers[strangers:]
        for name in set(self.declared) - declared:
            del self.declared[name], self.values[name]

    def _type(self, name: str) -> Torch:
        return self.known[name] if name in self.known else self.values[name]

    def _estranged(self, node: Node, reason: str) -> None:
        """Keep a node as an op that nothing knows; its results must have known types."""
        self.strangers.append(f"{node.op} ({node.name}): {reason}")
        try:
            made = stranger(node, self.model.native, self._type, self.known)
        except UnsupportedError as error:
            message = f"{node.op} ({node.name}) cannot be lowered: {reason}"
            hint = f"{error}; cut the model there"
            raise fail(message, SourceSpan(self.model.source), hint=hint) from None
        given = [name for name in node.inputs if name]
        call = _OpaqueCall(made, given)
        outputs = tuple(filter(None, node.outputs))
        self.values.update(zip(outputs, call(self.tensor), strict=True))
        self.steps.append(Step(call, outputs, node))

    def _bias(self, node: Node, after: Sequence[Node]) -> Node | None:
        """Add a ``MatMul`` by a weight and its bias as one layer; return the ``Add`` of that bias.

        So exporters write linear layers of more than two axes, and of other frameworks. The weight
        must have no other use: torch keeps it turned round.
        """
        if node.op != "MatMul" or node.domain or not self._is_weight(node.inputs[1]):
            return None
        made, weight = node.outputs[0], node.inputs[1]
        added = next(
            (n for n in after if n.op == "Add" and not n.domain and made in n.inputs), None
        )
        if added is None or self._users[made] != 1 or self._users[weight] != 1:
            return None
        bias = added.inputs[added.inputs[0] == made]
        rows, matrix = self.values.get(node.inputs[0]), self._type(weight)
        if rows is None or rows.ndim < 2 or matrix.ndim != 2 or not self._is_weight(bias):
            return None
        if tuple(self._type(bias).shape) != tuple(matrix.shape[1:]):
            return None
        self._turn(weight)
        inputs = (node.inputs[0], weight, bias)
        self._call(Node("Linear", "", node.name, inputs, added.outputs, {}, node.module), linear)
        return added

    def _is_weight(self, name: str) -> bool:
        return name in self.model.weights or name in self.model.constants

    def _turn(self, name: str) -> None:
        """Declare a matrix with its axes turned round, as torch keeps weights."""
        if name in self.known:
            self.known[name] = self.known[name].t().contiguous()
        else:
            turned = self.values[name].shape[::-1]
            self.values[name] = torch.empty(turned, dtype=self.values[name].dtype, device="meta")
            self.declared[name] = ("param", self.values[name])


class _OpaqueCall(Struct, frozen=True):
    """Calls a node that torch has no counterpart of."""

    stranger: OpaqueOp
    given: list[str]

    def __call__(self, lookup: Callable[[str], Torch]) -> tuple[Torch, ...]:
        return tuple(self.stranger([lookup(name) for name in self.given]))


def _on_meta(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(lookup: Callable[[str], Torch]) -> Any:  # noqa: ANN401
        with torch.device("meta"):
            return call(lookup)

    return run


def _marked(node: Node) -> ExitStack:
    """Let what is called meanwhile bear a node's module and name."""
    stack = ExitStack()
    stack.enter_context(record_function(MODULE + node.module))
    stack.enter_context(record_function(f"{ORIGIN}onnx#{node.name}"))
    return stack


def _several(made: Any) -> list[Any]:  # noqa: ANN401
    return list(made) if isinstance(made, tuple) else [made]


def _folds(node: Node) -> bool:
    return not node.op.startswith(("Random", "Bernoulli", "Multinomial"))


def _check_type(value: Any) -> None:  # noqa: ANN401
    if isinstance(value, torch.Tensor) and not in_ir(value.dtype):
        word = str(value.dtype).removeprefix("torch.")
        raise UnsupportedError(f"its result has type {word}, which is not supported")
