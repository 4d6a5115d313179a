"""Writer of the ops that replace a lookup on a rank: slices, copies and collectives."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from irgraph.axes.algebra import Algebra
from irgraph.ir.edit import free_name, names_of
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import DeviceRef, DType, Tensor, canonical_strides, row_major

GROUP = "0"
"""Name of the process group of all ranks."""


class Writer:
    """A list of new ops in launch order, with names and buffers that are new in a graph."""

    def __init__(self, graph: Graph, device: str, group: str = GROUP) -> None:
        """Start an empty list; collectives use the process group ``group``."""
        self.group = group
        self.sizes = Algebra(graph.dims)
        self.device = device
        self.used_names = names_of(graph)
        self.ops: list[Op] = []

    def fresh(self, name: str, dtype: str, shape: Sequence[int]) -> Tensor:
        """Return a contiguous tensor with a new name and buffer."""
        free = free_name(name, self.used_names)
        self.used_names.add(free)
        return Tensor(free, dtype, tuple(shape), free, device=self.device)

    def call(
        self, name: str, operands: Sequence[Value], result: Tensor, **attributes: Value
    ) -> Tensor:
        """Add a call and return its one result."""
        self.ops.append(Op(name, tuple(operands), (result,), attributes))
        return result

    def cat(self, tensors: Sequence[Tensor], dim: int, name: str = "cat") -> Tensor:
        """Concatenate tensors; return a single tensor unchanged."""
        if len(tensors) == 1:
            return tensors[0]
        shape = list(tensors[0].shape)
        shape[dim] = self.sizes.plus(*(tensor.shape[dim] for tensor in tensors))
        result = self.fresh(name, tensors[0].dtype, shape)
        return self.call("aten.cat", [tuple(tensors)], result, dim=dim)

    def view(self, tensor: Tensor, *shape: int) -> Tensor:
        """Return a contiguous tensor in another shape."""
        name = self.fresh("view", tensor.dtype, ()).name
        view = replace(tensor, name=name, shape=shape, strides=None)
        return self.call("aten.view", [tensor], view, size=shape)

    def flat(self, tensor: Tensor) -> Tensor:
        """Return a tensor's elements along one axis, copied if it is not contiguous."""
        return self.view(self.contiguous(tensor), self.sizes.times(*tensor.shape))

    def contiguous(self, tensor: Tensor, name: str = "clone") -> Tensor:
        """Return a contiguous copy, or the tensor itself if it is one."""
        if tensor.contiguous:
            return tensor
        copy = self.fresh(name, tensor.dtype, tensor.shape)
        return self.call("aten.clone", [tensor], copy, memory_format="contiguous_format")

    def cut(self, tensor: Tensor, dim: int, start: int, size: int) -> Tensor:
        """Return a view of ``size`` positions along an axis."""
        if start == 0 and size == tensor.shape[dim]:
            return tensor
        steps = tensor.strides or row_major_of(self.sizes, tensor.shape)
        shape = (*tensor.shape[:dim], size, *tensor.shape[dim + 1 :])
        shift = self.sizes.times(start, steps[dim], tensor.itemsize)
        view = replace(
            tensor,
            name=self.fresh("slice", tensor.dtype, ()).name,
            shape=shape,
            strides=canonical_strides(shape, tuple(steps)),
            offset=self.sizes.plus(tensor.offset, shift),
        )
        end = self.sizes.plus(start, size)
        return self.call("aten.slice", [tensor], view, dim=dim, start=start, end=end)

    def permute(self, tensor: Tensor, order: Sequence[int]) -> Tensor:
        """Return a view with axes in another order."""
        if list(order) == sorted(order):
            return tensor
        steps = tensor.strides or row_major_of(self.sizes, tensor.shape)
        shape = tuple(tensor.shape[axis] for axis in order)
        view = replace(
            tensor,
            name=self.fresh("permute", tensor.dtype, ()).name,
            shape=shape,
            strides=canonical_strides(shape, tuple(steps[axis] for axis in order)),
        )
        return self.call("aten.permute", [tensor], view, dims=tuple(order))

    def scale(self, tensor: Tensor, factor: float) -> Tensor:
        """Return a tensor times a number."""
        product = self.fresh("scaled", tensor.dtype, tensor.shape)
        product = replace(product, strides=tensor.strides if tensor.dense else None)
        return self.call("aten.mul", [tensor, factor], product)

    def power(self, tensor: Tensor, exponent: float) -> Tensor:
        """Return a power of each element."""
        result = self.fresh("power", tensor.dtype, tensor.shape)
        return self.call("aten.pow", [tensor, exponent], result)

    def zeros_like(self, tensor: Tensor) -> Tensor:
        """Return zeros of a tensor's type."""
        zeros = self.fresh("zeros", tensor.dtype, tensor.shape)
        zeros = replace(zeros, strides=tensor.strides if tensor.dense else None)
        return self.call("aten.zeros_like", [tensor], zeros)

    def exchange(self, sent: Tensor, parts: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send some rows of a tensor to each rank; return the received rows in order of ranks."""
        shape = [self.sizes.plus(*received), *sent.shape[1:]]
        result = self.fresh("all_to_all", sent.dtype, shape)
        self.call(
            "_c10d_functional.all_to_all_single",
            [sent],
            result,
            output_split_sizes=tuple(received),
            input_split_sizes=tuple(parts),
            group_name=self.group,
        )
        return self.wait(result)

    def reduce_scatter(
        self, matrix: Tensor, ranks: int, rows: int, reduction: str = "sum"
    ) -> Tensor:
        """Sum (``avg``: average) a matrix over all ranks; return this rank's block of rows."""
        result = self.fresh("reduce_scatter", matrix.dtype, [rows, *matrix.shape[1:]])
        self.call(
            "_c10d_functional.reduce_scatter_tensor",
            [matrix],
            result,
            reduce_op=reduction,
            group_size=ranks,
            group_name=self.group,
        )
        return self.wait(result)

    def all_gather(self, matrix: Tensor, ranks: int) -> Tensor:
        """Return the matrices of all ranks, concatenated along the rows."""
        rows = self.sizes.times(matrix.shape[0], ranks)
        result = self.fresh("all_gather", matrix.dtype, [rows, *matrix.shape[1:]])
        self.call(
            "_c10d_functional.all_gather_into_tensor",
            [matrix],
            result,
            group_size=ranks,
            group_name=self.group,
        )
        return self.wait(result)

    def all_reduce(self, tensors: Sequence[Tensor], reduction: str) -> None:
        """Replace tensors in place by their sums (``sum``) or means (``avg``) over all ranks."""
        written = frozenset(tensor.name for tensor in tensors)
        attributes = {"reduce_op": reduction, "group_name": self.group}
        name, operand = "_c10d_functional.all_reduce_", tensors[0]
        if len(tensors) > 1:
            self.ops.append(
                Op(f"{name[:-1]}_coalesced_", (tuple(tensors),), (), attributes, written)
            )
        else:
            self.ops.append(Op(name, (operand,), (), attributes, written))
        for tensor in tensors:
            self.wait(tensor)

    def wait(self, tensor: Tensor) -> Tensor:
        """Add a wait for a collective; return its tensor."""
        self.ops.append(Op("_c10d_functional.wait_tensor", (tensor,)))
        return tensor

    def zeros(self, dtype: str, size: int) -> Tensor:
        """Return a vector of zeros."""
        result = self.fresh("zeros", dtype, [size])
        attributes: dict[str, Value] = {"size": (size,), "dtype": DType(dtype)}
        return self.call("aten.zeros", [], result, **attributes, device=DeviceRef(self.device))

    def arange(self, dtype: str, end: int) -> Tensor:
        """Return the numbers from 0 to below ``end``."""
        result = self.fresh("arange", dtype, [end])
        attributes: dict[str, Value] = {"end": end, "dtype": DType(dtype)}
        return self.call("aten.arange", [], result, **attributes, device=DeviceRef(self.device))


def row_major_of(sizes: Algebra, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a contiguous tensor as expressions."""
    if not any(type(size) is not int for size in shape):
        return row_major(tuple(shape))
    return tuple(sizes.times(1, *shape[axis + 1 :]) for axis in range(len(shape)))
