"""Mapping of a derived step's tensors to a graph: their names, and their bytes in buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from irgraph.ir.edit import free_name, map_tensors
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.refusal import RefusedError


class AdjacentCallError(RefusedError):
    """A replacement is only possible together with the calls next to it.

    Attributes:
        tensor: the tensor that these calls use or, if it is about its ``gradient``, return.
    """

    def __init__(self, reason: str, tensor: Tensor, *, gradient: bool = False) -> None:
        super().__init__(reason)
        self.tensor = tensor
        self.gradient = gradient


class LayoutError(AdjacentCallError):
    """A tensor, or the gradient of one, would have another layout in memory."""


class SharedGradientError(AdjacentCallError):
    """A gradient belongs to other tensors as well, and its users are ambiguous."""


@dataclass
class NameAllocator:
    """Used names, and names added to them without changing the original container."""

    used: Container[str]
    added: set[str] = field(default_factory=set)

    def __contains__(self, name: object) -> bool:
        return name in self.added or name in self.used

    def free(self, name: str) -> str:
        """Return an unused name and mark it as used."""
        free = free_name(name, self)
        self.added.add(free)
        return free


@dataclass
class TensorMapping:
    """Mapping of the tensors of a derived step to tensors of a graph.

    Attributes:
        tensor_names: names of the graph's tensors.
        buffer_names: names of the graph's buffers.
        preferred_names: preferred names of new tensors, by the derived tensor's name.
        names: the graph's tensor for each mapped derived tensor, by name.
        buffers: for each derived buffer, the graph's buffer, and the offset in bytes there.
    """

    tensor_names: NameAllocator
    buffer_names: NameAllocator
    preferred_names: dict[str, str] = field(default_factory=dict)
    names: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, tuple[str, int]] = field(default_factory=dict)

    def bind_inputs(self, derived: Iterable[Tensor], tensors: Iterable[Tensor]) -> None:
        """Map derived tensors to existing tensors of the graph."""
        for a, b in zip(derived, tensors, strict=True):
            self.names[a.name] = b
            self.buffers[a.buffer] = (b.buffer, b.offset - a.offset)

    def bind_result(self, derived: Tensor, result: Tensor) -> None:
        """Map a derived result to a tensor of the graph of the same type.

        Raises ``LayoutError`` if its strides differ.
        """
        if derived.strides != result.strides:
            before, after = _strides_text(result.strides), _strides_text(derived.strides)
            raise LayoutError(f"%{result.name} would have strides {after}, not {before}", result)
        location = (result.buffer, result.offset - derived.offset)
        if self.buffers.setdefault(derived.buffer, location) != location:
            raise RefusedError(f"%{result.name} would share its bytes with others, as it did not")
        self.names[derived.name] = result

    def is_own(self, derived: Tensor) -> bool:
        """Return whether a derived tensor is in a buffer without a mapping."""
        return derived.buffer not in self.buffers

    def tensor(self, derived: Tensor) -> Tensor:
        """Return the graph's tensor for a derived tensor, a new one if it has no mapping."""
        if derived.name not in self.names:
            name = self.tensor_names.free(self.preferred_names.get(derived.name, derived.name))
            if derived.buffer not in self.buffers:
                self.buffers[derived.buffer] = (self.buffer_names.free(name), 0)
            buffer, shift = self.buffers[derived.buffer]
            offset = derived.offset + shift if shift else derived.offset
            self.names[derived.name] = replace(derived, name=name, buffer=buffer, offset=offset)
        return self.names[derived.name]

    def ops(
        self, derived: Sequence[Op], template: Op, module: Callable[[Op], str]
    ) -> tuple[Op, ...]:
        """Return derived ops as ops of the graph with the thread, stream and phase of an op."""
        return tuple(
            _run_like(map_tensors(op, self.tensor), template, module(op)) for op in derived
        )


def _run_like(op: Op, template: Op, module: str) -> Op:
    body = tuple(_run_like(child, template, module) for child in op.body)
    return replace(
        op,
        body=body,
        thread=template.thread,
        stream=template.stream,
        phase=template.phase,
        module=module,
        origin="",
        identity=object(),  # derived ops are cached, and become ops of several places
    )


def shared_module(ops: Collection[Op]) -> str:
    """Return the innermost module that called all of some ops."""
    paths = [op.module.split(".") for op in ops]
    common: list[str] = []
    for steps in zip(*paths, strict=False):
        if len(set(steps)) > 1:
            break
        common.append(steps[0])
    return ".".join(common)


def _strides_text(value: object) -> str:
    if value is None:
        return "those of a contiguous tensor"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
