"""Names, new tensors and new ops of one quantising rewrite."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from irgraph.ir.edit import Edit, free_name, names_of
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.prepared import SCALE, SCALES, Prepared
from irgraph.ir.op import Op, Result, Value
from irgraph.ir.tensor import Tensor
from irgraph.ops.inference import infer


class QuantizeRewrite:
    """One rewrite: ops that replace others, and parameters that replace others."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.edit = Edit(graph)
        self.prepared: dict[str, tuple[Declared, Prepared]] = {}
        self.constants: dict[str, Declared] = {}
        self.new_ops: list[Op] = []
        self._used_names = names_of(graph)

    def tensor(self, name: str, dtype: str, shape: Sequence[int], template: Tensor) -> Tensor:
        """Return a new tensor in its own buffer, on the device of another."""
        unique_name = free_name(name, self._used_names)
        self._used_names.add(unique_name)
        return Tensor(unique_name, dtype, tuple(shape), unique_name, device=template.device)

    def parameter(
        self, tensor: Tensor, kind: str, part: str, source: Declared, span: tuple[int, ...] = ()
    ) -> Tensor:
        """Return a parameter that is prepared from another, or from a span of its rows.

        Equal ones are made once.
        """
        prepared = Prepared(tensor.name, kind, part, source.tensor, span)
        key = f"{kind} {part} {source.tensor.name} {span}"
        if key not in self.prepared:
            span_text = "[{}:{}]".format(*span) if span else ""
            suffix = f".{part}" if part in (SCALE, SCALES) else ""
            label = source.label and source.label + span_text + suffix
            self.prepared[key] = (Declared("param", tensor, label), prepared)
        return self.prepared[key][0].tensor

    def constant(self, name: str, dtype: str, value: float, template: Tensor) -> Tensor:
        """Return a parameter of one known element; equal ones are made once."""
        key = f"{dtype} {value!r} {template.device}"
        if key not in self.constants:
            tensor = self.tensor(name, dtype, (), template)
            self.constants[key] = Declared("param", tensor, value=(value,))
        return self.constants[key].tensor

    def view(self, name: str, base: Tensor, shape: Sequence[int], strides: Sequence[int]) -> Tensor:
        """Return a new tensor in the memory of another."""
        unique_name = free_name(name, self._used_names)
        self._used_names.add(unique_name)
        return replace(base, name=unique_name, shape=tuple(shape), strides=tuple(strides))

    def insert(
        self, unit: Op, name: str, operands: Sequence[Value], *results: Result, **attributes: Value
    ) -> Op:
        """Insert a new op before another, in its context; return it."""
        op = Op(
            name,
            tuple(operands),
            results,
            attributes,
            thread=unit.thread,
            stream=unit.stream,
            module=unit.module,
            phase=unit.phase,
            origin=f"quantize: {unit.name}",
        )
        self.edit.insert(op, before=unit)
        self.new_ops.append(op)
        return op

    def as_matrix(self, unit: Op, tensor: Tensor, columns: int) -> Tensor:
        """Return a tensor as a matrix of ``columns`` columns: a view, unless it is one already."""
        if tensor.rank == 2 and int(tensor.shape[1]) == columns:
            return tensor
        size: tuple[Value, ...] = (-1, columns)
        call = Op("aten.view", (tensor,), (), {"size": size})
        (shape_only,) = infer(call, self.graph.schemas, self.graph.dims, self.graph.device)
        assert isinstance(shape_only, Tensor)
        name = free_name(f"{tensor.name}_rows", self._used_names)
        self._used_names.add(name)
        view = replace(shape_only, name=name)
        self.insert(unit, "aten.view", (tensor,), view, size=size)
        return view

    def row_result(self, out: Tensor, rows: int) -> Tensor:
        """Return the matrix of an op's rows: the result itself, or a matrix in its buffer."""
        if out.rank == 2:
            return out
        name = free_name(f"{out.name}_rows", self._used_names)
        self._used_names.add(name)
        return Tensor(name, out.dtype, (rows, out.shape[-1]), out.buffer, device=out.device)

    def reshape(self, unit: Op, rows: Tensor, out: Tensor) -> None:
        """Insert the view that has the shape of the result, unless rows are the result."""
        if rows is not out:
            self.insert(unit, "aten.view", (rows,), out, size=tuple(out.shape))
