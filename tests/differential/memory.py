"""Real memory for every buffer of a graph, and the views that its tensors are."""

from __future__ import annotations

import math
import zlib

import torch

from irgraph.ir.graph import Graph
from irgraph.ir.tensor import Tensor

TORCH = {
    "f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
    "i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8,
    "u8": torch.uint8, "bool": torch.bool, "c64": torch.complex64, "c128": torch.complex128,
}  # fmt: skip

FLOATS = ("f64", "f32", "f16", "bf16")


class UnsupportedError(Exception):
    """The interpreter cannot judge this graph."""


class Memory:
    """One storage for each buffer; with ``wide`` every floating-point type is f64."""

    def __init__(self, graph: Graph, wide: bool) -> None:
        self.wide = wide
        self.ends: dict[str, int] = {}
        self.scales: dict[str, int] = {}
        declared = [known.tensor for known in graph.tensors]
        made = [tensor for op in graph.walk() for tensor in op.outputs]
        for tensor in (*declared, *made):
            self._measure(tensor)
        self.storages: dict[str, torch.UntypedStorage] = {}
        for tensor in declared:
            self.allocate(tensor.buffer)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type in which elements of a type are kept."""
        if name not in TORCH:
            raise UnsupportedError(f"elements of type {name}")
        if self.wide and name in FLOATS:
            return torch.float64
        return torch.complex128 if self.wide and name == "c64" else TORCH[name]

    def _measure(self, tensor: Tensor) -> None:
        strides = steps(tensor)
        if tensor.buffer not in self.ends and tensor.numel > 1 and not any(strides):
            raise UnsupportedError(f"%{tensor.name} is sparse")
        ours, theirs = self.dtype(tensor.dtype).itemsize, TORCH[tensor.dtype].itemsize
        scale = ours // theirs
        if self.scales.setdefault(tensor.buffer, scale) != scale:
            raise UnsupportedError("types of different size in one buffer")
        last = sum((size - 1) * step for size, step in zip(tensor.shape, strides, strict=True))
        end = int(tensor.offset) * scale + (last + 1) * ours if tensor.numel else 0
        self.ends[tensor.buffer] = max(self.ends.get(tensor.buffer, 0), end)

    def allocate(self, buffer: str) -> None:
        """Give a buffer its memory, unless it has it."""
        if buffer not in self.storages:
            size = self.ends[buffer]
            self.storages[buffer] = torch.zeros(size, dtype=torch.uint8).untyped_storage()

    def view(self, tensor: Tensor) -> torch.Tensor:
        """Return a tensor's elements where they lie."""
        dtype = self.dtype(tensor.dtype)
        start = int(tensor.offset) * self.scales[tensor.buffer] // dtype.itemsize
        shape = tuple(map(int, tensor.shape))
        empty = torch.empty(0, dtype=dtype)
        return empty.set_(self.storages[tensor.buffer], start, shape, steps(tensor))


def steps(tensor: Tensor) -> tuple[int, ...]:
    """Return the strides of a tensor in elements."""
    if tensor.strides is not None:
        return tuple(map(int, tensor.strides))
    shape = [max(int(size), 1) for size in tensor.shape]
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def drawn(name: str, view: torch.Tensor, role: str, seed: int) -> torch.Tensor:
    """Return values for a tensor that exists before the step, by its name.

    Integers lie in 0..2, below the size of every table. State is positive, as square roots are
    taken of it; anything else may have either sign.
    """
    source = torch.Generator().manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    shape = tuple(view.shape)
    if view.dtype == torch.bool:
        return torch.randint(2, shape, generator=source).bool()
    if not (view.is_floating_point() or view.is_complex()):
        return torch.randint(3, shape, generator=source).to(view.dtype)
    values = torch.randn(shape, generator=source, dtype=torch.float64)
    values = values.abs() + 0.1 if role == "state" else values
    return values.to(view.dtype)
