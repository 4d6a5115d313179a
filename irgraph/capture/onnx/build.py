"""Makes ops of the IR from the nodes of an ONNX model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from irgraph.capture.onnx.model import Model, Node
from irgraph.diagnostics import Place, fail
from irgraph.ir.dtypes import ITEMSIZE
from irgraph.ir.graph import Declared
from irgraph.ir.op import EMPTY, Op, Result, Value
from irgraph.ir.tensor import Tensor, row_major


@dataclass
class Builder:
    """Collects ops; knows the tensor behind every name of the model.

    ``declared`` holds what exists before the step, in order of first use.
    """

    model: Model
    ops: list[Op] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    declared: list[Declared] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)
    _buffers: int = 0

    def tensor(self, name: str) -> Tensor:
        """Return the tensor of a value that is there already, declared at its first use."""
        if name not in self.tensors:
            role = "input" if name in self.model.inputs else "param"
            self.tensors[name] = self.fresh(name, *self.typed(name))
            label = name if role == "param" else ""
            self.declared.append(Declared(role, self.tensors[name], label))
        return self.tensors[name]

    def weight(self, name: str) -> Tensor:
        """Declare a matrix with its axes turned round, as torch keeps weights; return it."""
        dtype, shape = self.typed(name)
        self.tensors[name] = self.fresh(name, dtype, shape[::-1])
        self.declared.append(Declared("param", self.tensors[name], name))
        return self.tensors[name]

    def typed(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return element type and shape of a value; raise ``IrgraphError`` if not known."""
        if name in self.model.values:
            array = self.model.values[name]
            known = self.model.types.get(name, ("f32", ()))
            return known[0], tuple(array.shape)
        dtype, shape = self.model.types.get(name, ("?", (-1,)))
        if -1 in shape or dtype not in ITEMSIZE:
            maker = next((n.op for n in self.model.nodes if name in n.outputs), "the caller")
            what = "shape" if -1 in shape else "element type"
            message = f"the {what} of {name!r}, which {maker} gives, is not known"
            hint = "shapes that depend on the data have no time; cut the model there"
            raise fail(message, Place(self.model.source), hint=hint)
        return dtype, shape

    def fresh(self, word: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """Return a new contiguous tensor in a buffer of its own."""
        self._buffers += 1
        return Tensor(self._free(word), dtype, tuple(shape), f"b{self._buffers}")

    def view(
        self, base: Tensor, word: str, shape: Sequence[int], strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> Tensor:  # fmt: skip
        """Return a view of a tensor's buffer; ``offset`` counts elements from its first."""
        steps = None if strides is None or tuple(strides) == row_major(tuple(shape)) else strides
        place = base.offset + offset * base.itemsize
        return Tensor(
            self._free(word), base.dtype, tuple(shape), base.buffer,
            None if steps is None else tuple(steps), place,
        )  # fmt: skip

    def _free(self, word: str) -> str:
        base = re.sub(r"\W", "_", word, flags=re.ASCII).strip("_") or "t"
        base = f"t_{base}" if base[0].isdigit() else base
        name, count = base, 1
        while name in self._taken:
            count += 1
            name = f"{base}_{count}"
        self._taken.add(name)
        return name


@dataclass
class Site:
    """One node on its way to ops: what it is given, and where its results go."""

    build: Builder
    node: Node

    def given(self, i: int) -> bool:
        """Return whether an input is there."""
        return i < len(self.node.inputs) and bool(self.node.inputs[i])

    def input(self, i: int) -> Tensor:
        """Return the tensor of an input."""
        return self.build.tensor(self.node.inputs[i])

    def optional(self, i: int) -> Tensor | None:
        """Return the tensor of an input, ``None`` where it is not there."""
        return self.input(i) if self.given(i) else None

    def value(self, i: int) -> Any:  # noqa: ANN401
        """Return an input's content as a numpy array; ``None`` if absent or not constant."""
        return self.build.model.values.get(self.node.inputs[i]) if self.given(i) else None

    def scalar(self, i: int) -> int | float | bool | None:
        """Return an input's content where it is a constant of one element."""
        value = self.value(i)
        if value is None or value.size != 1:
            return None
        found = value.reshape(()).item()
        return found if isinstance(found, (int, float, bool)) else None

    def list(self, i: int, name: str = "") -> tuple[int, ...] | None:
        """Return whole numbers from an attribute, or else from an input."""
        if name and name in self.node.attributes:
            found = self.node.attributes[name]
            return tuple(found) if isinstance(found, (list, tuple)) else (int(found),)
        value = self.value(i)
        return None if value is None else tuple(int(n) for n in value.reshape(-1))

    def attribute(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """Return an attribute, or a default."""
        return self.node.attributes.get(name, default)

    def shape(self, output: int = 0) -> tuple[int, ...]:
        """Return the shape of a result."""
        return self.build.typed(self.node.outputs[output])[1]

    def out(self, output: int = 0) -> Tensor:
        """Return a new tensor for a result."""
        name = self.node.outputs[output]
        made = self.build.fresh(name, *self.build.typed(name))
        self.build.tensors[name] = made
        return made

    def hand_on(self, tensor: Tensor, output: int = 0) -> None:
        """Let a result be a tensor that is there already."""
        self.build.tensors[self.node.outputs[output]] = tensor

    def view(
        self, base: Tensor, shape: Sequence[int], strides: Sequence[int] | None = None,
        offset: int = 0, output: int = 0,
    ) -> Tensor:  # fmt: skip
        """Return a view for a result."""
        made = self.build.view(base, self.node.outputs[output], shape, strides, offset)
        self.hand_on(made, output)
        return made

    def op(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[Result],
        attributes: Mapping[str, Value] = EMPTY,
        body: Sequence[Op] = (),
    ) -> Op:
        """Return an op that stands for this node."""
        return Op(
            f"aten.{name}",
            tuple(operands),
            tuple(results),
            dict(attributes) or EMPTY,
            body=tuple(body),
            module=self.node.module,
            origin=f"onnx#{self.node.name}",
        )

    def emit(
        self,
        name: str,
        operands: Sequence[Value],
        results: Sequence[Result],
        **attributes: Value,
    ) -> None:
        """Add an op that stands for this node."""
        self.build.ops.append(self.op(name, operands, results, attributes))
