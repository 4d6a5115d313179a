"""Gives the tensors of a derived step their places in a graph: names, and bytes of buffers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from irgraph.ir.edit import free_name, map_tensors
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.verbs.refusal import RefusedError


class LayoutError(RefusedError):
    """A tensor, or the gradient of one, would lie in memory in another way."""

    def __init__(self, reason: str, tensor: Tensor, *, gradient: bool = False) -> None:
        super().__init__(reason)
        self.tensor = tensor
        self.gradient = gradient


@dataclass
class NameAllocator:
    """Names that are taken, and some more that are added without touching those."""

    taken: Container[str]
    added: set[str] = field(default_factory=set)

    def __contains__(self, name: object) -> bool:
        return name in self.added or name in self.taken

    def free(self, name: str) -> str:
        """Return a name that is not taken, which then is."""
        found = free_name(name, self)
        self.added.add(found)
        return found


@dataclass
class TensorMapping:
    """From the tensors of a derived step to those of a graph.

    Attributes:
        taken: names of tensors that others bear.
        held: names of the graph's buffers.
        called: names that derived tensors should bear.
        names: the graph's tensor for each derived one that stands for it.
        buffers: for each derived buffer, the graph's, and by how many bytes it begins later there.
    """

    taken: NameAllocator
    held: NameAllocator
    called: dict[str, str] = field(default_factory=dict)
    names: dict[str, Tensor] = field(default_factory=dict)
    buffers: dict[str, tuple[str, int]] = field(default_factory=dict)

    def given(self, theirs: Iterable[Tensor], mine: Iterable[Tensor]) -> None:
        """Let derived tensors stand for tensors that the graph has anyway."""
        for a, b in zip(theirs, mine, strict=True):
            self.names[a.name] = b
            self.buffers[a.buffer] = (b.buffer, b.offset - a.offset)

    def made(self, theirs: Tensor, mine: Tensor) -> None:
        """Let a derived result be a tensor that the graph has now, of the same type."""
        if theirs.strides != mine.strides:
            before, after = _plain(mine.strides), _plain(theirs.strides)
            raise LayoutError(f"%{mine.name} would have strides {after}, not {before}", mine)
        here = (mine.buffer, mine.offset - theirs.offset)
        if self.buffers.setdefault(theirs.buffer, here) != here:
            raise RefusedError(f"%{mine.name} would share its bytes with others, as it did not")
        self.names[theirs.name] = mine

    def is_own(self, theirs: Tensor) -> bool:
        """Return whether a derived tensor lies in a buffer that has no place yet."""
        return theirs.buffer not in self.buffers

    def tensor(self, theirs: Tensor) -> Tensor:
        """Return the graph's tensor for a derived one, a new one where there is none."""
        if theirs.name not in self.names:
            name = self.taken.free(self.called.get(theirs.name, theirs.name))
            if theirs.buffer not in self.buffers:
                self.buffers[theirs.buffer] = (self.held.free(name), 0)
            buffer, shift = self.buffers[theirs.buffer]
            offset = theirs.offset + shift if shift else theirs.offset
            self.names[theirs.name] = replace(theirs, name=name, buffer=buffer, offset=offset)
        return self.names[theirs.name]

    def ops(self, derived: Sequence[Op], like: Op, module: Callable[[Op], str]) -> tuple[Op, ...]:
        """Return derived ops as ops of the graph that run where one of its ops does."""
        return tuple(_run_like(map_tensors(op, self.tensor), like, module(op)) for op in derived)


def _run_like(op: Op, like: Op, module: str) -> Op:
    body = tuple(_run_like(child, like, module) for child in op.body)
    return replace(
        op,
        body=body,
        thread=like.thread,
        stream=like.stream,
        phase=like.phase,
        module=module,
        origin="",
    )


def shared_module(ops: Collection[Op]) -> str:
    """Return the innermost module that called all of some ops."""
    paths = [op.module.split(".") for op in ops]
    shared: list[str] = []
    for steps in zip(*paths, strict=False):
        if len(set(steps)) > 1:
            break
        shared.append(steps[0])
    return ".".join(shared)


def _plain(value: object) -> str:
    if value is None:
        return "those of a contiguous tensor"
    return f"[{', '.join(map(str, value))}]" if isinstance(value, tuple) else str(value)
