"""A model as a program of torch calls, with constants folded."""

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
from irgraph.capture.onnx.loops import unroll_loop, unroll_scan
from irgraph.capture.onnx.model import MAX_CONSTANT_ELEMENTS, Model, OnnxNode, is_ir_dtype
from irgraph.capture.onnx.opaque import OpaqueOp, opaque_op
from irgraph.capture.onnx.operators import OPERATORS, linear
from irgraph.capture.onnx.operators.recurrent import GATES
from irgraph.diagnostics import IrgraphError, SourceSpan, fail

Values = dict[str, Any]
"""Tensors, or lists of them, by their names in the model."""


class ProgramStep(Struct, frozen=True):
    """One call of the program: the call, the names of its results, and the node it implements."""

    call: Callable[[Callable[[str], Torch]], Any]
    outputs: tuple[str, ...]
    node: OnnxNode


@dataclass
class OnnxProgram:
    """The calls of a model, found by running them on the meta device.

    Attributes:
        model: the model.
        steps: remaining calls after constants are folded, in order.
        values: every tensor by name, on the meta device.
        constant_values: values of constants by name, on the CPU.
        declared: role and tensor of each input and weight of the step, by name.
        opaque_reasons: nodes without equivalent in torch, with the reasons.
    """

    model: Model
    steps: list[ProgramStep] = field(default_factory=list)
    values: Values = field(default_factory=dict)
    constant_values: Values = field(default_factory=dict)
    declared: dict[str, tuple[str, Torch]] = field(default_factory=dict)
    opaque_reasons: list[str] = field(default_factory=list)
    _users: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for name, tensor in self.model.inputs.items():
            self.values[name] = tensor
            self.declared[name] = ("input", tensor)
        self.constant_values.update(self.model.constants)
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
                with _label_calls(step.node):
                    outputs = step.call(values.__getitem__)
                values.update(zip(step.outputs, _as_list(outputs), strict=False))
            results = [values[name] for name in self.model.outputs]
            declared = {tensor for _, tensor in self.declared.values()}
            return [torch.ops.aten.alias(t) if t in declared else t for t in results]

    def tensor(self, name: str) -> Torch:
        """Return the tensor of a value; a constant is declared when first used as a tensor."""
        if name not in self.values:
            if name not in self.constant_values:
                raise UnsupportedError(f"it uses {name!r}, which nothing makes")
            self.values[name] = torch.empty_like(self.constant_values[name], device="meta")
            self.declared[name] = ("param", self.values[name])
        return self.values[name]

    def add(self, nodes: Sequence[OnnxNode]) -> None:
        """Add the calls of nodes in order."""
        merged: set[str] = set()
        for i, node in enumerate(nodes):
            if node.outputs[0] in merged:
                continue
            bias_add = self._add_linear(node, nodes[i + 1 :])
            if bias_add is not None:
                merged.add(bias_add.outputs[0])
            else:
                self._add(node)

    def _add(self, node: OnnxNode) -> None:
        """Add a node by its converter, else by onnx's definition of it, else as an opaque op."""
        reasons = []
        for add in (self._add_converted, self._add_expanded):
            try:
                add(node)
                return
            except UnsupportedError as error:
                reasons.append(str(error))
        self._add_opaque(node, reasons[node.op not in OPERATORS and bool(reasons[1])])

    def _add_converted(self, node: OnnxNode) -> None:
        convert = None if node.domain else OPERATORS.get(node.op)
        if convert is None:
            raise UnsupportedError("torch has no equivalent")
        self._add_call(self._mark_reordered(node) if node.op in GATES else node, convert)

    def _mark_reordered(self, node: OnnxNode) -> OnnxNode:
        """Mark a recurrent layer's weights as having their gates in torch's order, if possible.

        This requires weights without values in the model and without other uses.
        """
        names = [name for name in node.inputs[1:4] if name]
        if any(name not in self.model.weights or self._users[name] != 1 for name in names):
            return node
        return replace(node, attributes={**node.attributes, "reordered": 1})

    def _add_call(self, node: OnnxNode, convert: Convert) -> None:
        call = bind(convert, node, self.constant_values)
        if all(name in self.constant_values for name in call.needed_inputs) and _is_foldable(node):
            results = self._run_on("cpu", lambda: call(self._type), node)
            if all(value.numel() <= MAX_CONSTANT_ELEMENTS for value in results):
                self.constant_values.update(zip(node.outputs, results, strict=False))
                return
        results = self._run_on("meta", lambda: call(self.tensor), node)
        self._declare_statistics(node)
        on_host = [v.device.type == "cpu" for v in results if isinstance(v, torch.Tensor)]
        if on_host and all(on_host):
            self.constant_values.update(zip(node.outputs, results, strict=False))
            return
        self.values.update(zip(node.outputs, results, strict=False))
        self.steps.append(ProgramStep(_on_meta(call), node.outputs, node))

    def _declare_statistics(self, node: OnnxNode) -> None:
        """Declare running statistics as state: unlike weights, they are never sampled below 0."""
        for name in node.inputs[3:5] if node.op == "BatchNormalization" else ():
            if self.declared.get(name, ("",))[0] == "param":
                self.declared[name] = ("state", self.declared[name][1])

    def _run_on(self, device: str, run: Callable[[], Any], node: OnnxNode) -> list[Any]:
        try:
            with torch.device(device):
                results = _as_list(run())
        except (RuntimeError, NotImplementedError, TypeError, ValueError, IndexError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UnsupportedError(f"torch refuses it: {lines[0]}") from None
        for name in node.outputs[len(results) :]:
            if name:
                raise UnsupportedError(f"its output {name!r} is not supported")
        for value in results:
            _check_type(value)
        return results

    def _add_expanded(self, node: OnnxNode) -> None:
        """Add the nodes that a node expands to: its selected branch, or onnx's definition."""
        undo = len(self.steps), len(self.opaque_reasons), set(self.declared)
        try:
            self.add(self._body(node))
        except IrgraphError as error:
            self._undo(*undo)
            reason = error.diagnostics[0].message.replace(" cannot be lowered", "")
            raise UnsupportedError(f"inside it, {reason}") from None
        if len(self.opaque_reasons) > undo[1]:
            reason = self.opaque_reasons[undo[1]]
            self._undo(*undo)
            raise UnsupportedError(f"inside it, {reason}")

    def _body(self, node: OnnxNode) -> list[OnnxNode]:
        if node.op == "Loop" and not node.domain:
            return unroll_loop(node, self.constant_values, self.add)
        if node.op == "Scan" and self.model.opset < 9:
            raise UnsupportedError("Scan of opset 8 is not supported, only that of 9 and newer")
        body = branch_of(node, self.constant_values) or unroll_scan(node, self._type)
        body = body or body_of(node, self.model.native_opset, self._type)
        if body is None:
            raise UnsupportedError("")
        return body

    def _undo(self, steps: int, strangers: int, declared: set[str]) -> None:
        del self.steps[steps:], self.opaque_reasons[strangers:]
        for name in set(self.declared) - declared:
            del self.declared[name], self.values[name]

    def _type(self, name: str) -> Torch:
        return self.constant_values[name] if name in self.constant_values else self.values[name]

    def _add_opaque(self, node: OnnxNode, reason: str) -> None:
        """Add a node as an opaque op; the types of its results must be known."""
        self.opaque_reasons.append(f"{node.op} ({node.name}): {reason}")
        try:
            op = opaque_op(node, self.model.native_opset, self._type, self.constant_values)
        except UnsupportedError as error:
            message = f"{node.op} ({node.name}) cannot be lowered: {reason}"
            hint = f"{error}; cut the model there"
            raise fail(message, SourceSpan(self.model.source), hint=hint) from None
        input_names = [name for name in node.inputs if name]
        call = _OpaqueCall(op, input_names)
        outputs = tuple(filter(None, node.outputs))
        self.values.update(zip(outputs, call(self.tensor), strict=True))
        self.steps.append(ProgramStep(call, outputs, node))

    def _add_linear(self, node: OnnxNode, after: Sequence[OnnxNode]) -> OnnxNode | None:
        """Add a ``MatMul`` by a weight and its bias as one layer; return the ``Add`` of that bias.

        Exporters write linear layers of more than two axes, and of other frameworks, in this form.
        The weight must have no other use, as torch stores it transposed.
        """
        if node.op != "MatMul" or node.domain or not self._is_weight(node.inputs[1]):
            return None
        product, weight = node.outputs[0], node.inputs[1]
        bias_add = next(
            (n for n in after if n.op == "Add" and not n.domain and product in n.inputs), None
        )
        if bias_add is None or self._users[product] != 1 or self._users[weight] != 1:
            return None
        bias = bias_add.inputs[bias_add.inputs[0] == product]
        rows, matrix = self.values.get(node.inputs[0]), self._type(weight)
        if rows is None or rows.ndim < 2 or matrix.ndim != 2 or not self._is_weight(bias):
            return None
        if tuple(self._type(bias).shape) != tuple(matrix.shape[1:]):
            return None
        self._transpose_weight(weight)
        inputs = (node.inputs[0], weight, bias)
        self._add_call(
            OnnxNode("Linear", "", node.name, inputs, bias_add.outputs, {}, node.module), linear
        )
        return bias_add

    def _is_weight(self, name: str) -> bool:
        return name in self.model.weights or name in self.model.constants

    def _transpose_weight(self, name: str) -> None:
        """Declare a matrix with its axes swapped, as torch stores weights."""
        if name in self.constant_values:
            self.constant_values[name] = self.constant_values[name].t().contiguous()
        else:
            shape = self.values[name].shape[::-1]
            self.values[name] = torch.empty(shape, dtype=self.values[name].dtype, device="meta")
            self.declared[name] = ("param", self.values[name])


class _OpaqueCall(Struct, frozen=True):
    """Calls the opaque op of a node without equivalent in torch."""

    op: OpaqueOp
    input_names: list[str]

    def __call__(self, lookup: Callable[[str], Torch]) -> tuple[Torch, ...]:
        return tuple(self.op([lookup(name) for name in self.input_names]))


def _on_meta(call: Callable[..., Any]) -> Callable[..., Any]:
    def run(lookup: Callable[[str], Torch]) -> Any:  # noqa: ANN401
        with torch.device("meta"):
            return call(lookup)

    return run


def _label_calls(node: OnnxNode) -> ExitStack:
    """Return a context that labels torch's calls with a node's module and name."""
    stack = ExitStack()
    stack.enter_context(record_function(MODULE + node.module))
    stack.enter_context(record_function(f"{ORIGIN}onnx#{node.name}"))
    return stack


def _as_list(outputs: Any) -> list[Any]:  # noqa: ANN401
    return list(outputs) if isinstance(outputs, tuple) else [outputs]


def _is_foldable(node: OnnxNode) -> bool:
    return not node.op.startswith(("Random", "Bernoulli", "Multinomial"))


def _check_type(value: Any) -> None:  # noqa: ANN401
    if isinstance(value, torch.Tensor) and not is_ir_dtype(value.dtype):
        word = str(value.dtype).removeprefix("torch.")
        raise UnsupportedError(f"its result has type {word}, which is not supported")
