"""A captured step: its dimensions, devices, tensors and operations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, wraps
from typing import TypeVar

from msgspec import Struct, field

from irgraph.diagnostics import describe, fail
from irgraph.facts import fact
from irgraph.ir.compare import same_op
from irgraph.ir.op import EMPTY, Op, Value, results_by_name
from irgraph.ir.tensor import Tensor

FORMAT = 2
"""Newest version of the text form; a newer one is refused with its number.

Format 2 may contain the results of the step and the values of constants. A graph with neither is
written in format 1.
"""

END = "step.return"
"""Name of the op that represents the end of a step in ``Graph.end``."""


DOUBLE = "double_backward"
"""Setting of a step that differentiates gradients: its backward pass has a backward pass."""

OPERANDS = "operands"
"""Setting of a model whose ops need not match their schemas. It describes the operands: ``by
shape`` if a trace does not identify tensors, ``as recorded`` if the trace's data are incomplete."""

V = TypeVar("V")


def cached_per_graph(compute: Callable[[Graph], V]) -> Callable[[Graph], V]:
    """Cache a function's result for each graph: graphs never change."""
    key = f"{compute.__module__}.{compute.__qualname__}"

    @wraps(compute)
    def cached(graph: Graph) -> V:
        return fact(graph, key, compute)

    return cached


DEFAULT_SHEET = "v100"
"""Device sheet of a model that names no other one."""


class Device(Struct, frozen=True):
    """A device that the step uses.

    Attributes:
        name: the model's name of the device, without ``@``.
        sheet: the card, by the name of a device sheet.
    """

    name: str
    sheet: str


class Stream(Struct, frozen=True):
    """A queue of a device other than its default queue.

    Attributes:
        name: the name that ops use.
        device: the name of its device.
    """

    name: str
    device: str


class Declared(Struct, frozen=True):
    """A tensor that exists before the step.

    Attributes:
        role: ``input``, ``param`` or ``state``.
        tensor: the tensor.
        label: the program's own name of it, such as a parameter's path; ``""`` if none.
        value: the elements of a constant in row-major order; ``None`` if unknown.
    """

    role: str
    tensor: Tensor
    label: str = ""
    value: tuple[Value, ...] | None = None


class Graph(Struct, frozen=True, eq=False, dict=True):
    """One training or inference step. Immutable: a change returns another graph.

    Attributes:
        name: the model's name.
        dims: symbolic sizes and their present values, such as ``{"B": 2048}``.
        settings: facts about the capture (source, tool versions), as literals.
        schemas: schemas, in torch's notation, of ops outside the shipped list.
        devices: declared devices; the first one is the default device of tensors.
        streams: streams other than the default ones.
        tensors: tensors that exist before the step.
        ops: top-level operations in launch order.
        returned: the tensors that the step returns, in order; ``None`` if unknown, as in most
            traces: then any tensor that no op uses may be returned.
        rarer: other steps of the program that are rarer (``irgraph.ir.rarer_steps``).
        source: the file from which it was read, for messages.
    """

    name: str
    dims: Mapping[str, int] = field(default_factory=dict)
    settings: Mapping[str, Value] = field(default_factory=lambda: EMPTY)
    schemas: tuple[str, ...] = ()
    devices: tuple[Device, ...] = (Device("gpu0", DEFAULT_SHEET),)
    streams: tuple[Stream, ...] = ()
    tensors: tuple[Declared, ...] = ()
    ops: tuple[Op, ...] = ()
    source: str = ""
    returned: tuple[Tensor, ...] | None = None
    rarer: tuple[Graph, ...] = ()

    def __repr__(self) -> str:
        """Return name, number of operations and sizes in one line; ``print_graph`` has the text."""
        sizes = "".join(f", {name} = {size}" for name, size in self.dims.items())
        return f"<Graph {self.name!r}: {len(self.ops)} top-level ops{sizes}>"

    def _repr_html_(self) -> str:
        """Return a summary of the step as HTML, for notebooks."""
        from irgraph.html.fragments import table_html

        counts = Counter(op.name for op in self.walk() if not op.is_annotation)
        dims = ", ".join(f"{name} = {size}" for name, size in self.dims.items())
        rows = [
            ("sizes", dims),
            ("devices", ", ".join(d.sheet for d in self.devices)),
            ("operations", f"{len(self.ops)} at the top, {sum(counts.values())} in all"),
            *((name, f"{count}") for name, count in counts.most_common(10)),
        ]
        return table_html(self.name, [row for row in rows if row[1]])

    @property
    def device(self) -> str:
        """Name of the default device of tensors."""
        return self.devices[0].name if self.devices else "gpu0"

    def walk(self) -> Iterator[Op]:
        """Yield every op, outer before inner, in launch order."""
        return iter(self._all_ops)

    @cached_property
    def _all_ops(self) -> tuple[Op, ...]:
        ordered: list[Op] = []

        def visit(ops: tuple[Op, ...]) -> None:
            for op in ops:
                ordered.append(op)
                if op.body:
                    visit(op.body)

        visit(self.ops)
        return tuple(ordered)

    def leaves(self) -> Iterator[Op]:
        """Yield every op that called nothing further, in launch order."""
        for op in self.ops:
            yield from op.leaves()

    def top_level(self) -> Iterator[Op]:
        """Yield the outermost ops that are not annotations: those that pay host overheads."""
        for op in self.ops:
            yield from outermost(op)

    @cached_property
    def by_identity(self) -> Mapping[object, tuple[Op, ...]]:
        """The ops of each identity, in launch order: several only if an edit split an op."""
        ops_by_identity: dict[object, tuple[Op, ...]] = {}
        for op in self.walk():
            ops_by_identity[op.identity] = (*ops_by_identity.get(op.identity, ()), op)
        return ops_by_identity

    def became(self, op: Op) -> tuple[Op, ...]:
        """Return the ops of this graph that an op of an earlier graph became by any edits.

        Usually there is one: none if an edit removed or replaced the op, several if it was split.
        """
        return self.by_identity.get(op.identity, ())

    @cached_property
    def by_name(self) -> Mapping[str, Tensor]:
        """Every tensor of the graph by its name."""
        tensors = {d.tensor.name: d.tensor for d in self.tensors}
        for outer in self.ops:
            for op in outermost(outer):
                tensors.update(results_by_name(op))
        return tensors

    @cached_property
    def by_buffer(self) -> Mapping[str, tuple[Tensor, ...]]:
        """Every tensor of the graph by its buffer."""
        tensors_by_buffer: dict[str, list[Tensor]] = {}
        for tensor in self.by_name.values():
            tensors_by_buffer.setdefault(tensor.buffer, []).append(tensor)
        return {buffer: tuple(tensors) for buffer, tensors in tensors_by_buffer.items()}

    @cached_property
    def paths(self) -> Mapping[Op, tuple[int, ...]]:
        """Path of each op: positions from the outermost body to its own."""
        path_by_op: dict[Op, tuple[int, ...]] = {}

        def visit(ops: tuple[Op, ...], path: tuple[int, ...]) -> None:
            for i, op in enumerate(ops):
                path_by_op[op] = op_path = (*path, i)
                if op.body:
                    visit(op.body, op_path)

        visit(self.ops, ())
        return path_by_op

    @cached_property
    def places(self) -> Mapping[Op, int]:
        """Position of each leaf among all leaves in launch order."""
        return {leaf: i for i, leaf in enumerate(self.leaves())}

    @cached_property
    def end(self) -> Op | None:
        """An op that represents the end of the step and reads its results, ``None`` without any.

        It is not one of ``ops``, but ``touching`` contains it as a use of the results.
        """
        return Op(END, self.returned) if self.returned else None

    @cached_property
    def lasting(self) -> Mapping[str, str]:
        """Role of each tensor that exists before the step and outlives it, by buffer."""
        return {declared.tensor.buffer: declared.role for declared in self.tensors}

    @cached_property
    def touching(self) -> Mapping[str, tuple[tuple[int, Op], ...]]:
        """Leaves that use or define a tensor of a buffer, with their positions, by buffer.

        The leaves are in launch order; the end of the step is the last user of the step's results.
        """
        leaves_by_buffer: dict[str, list[tuple[int, Op]]] = {}
        ends = () if self.end is None else (self.end,)
        for i, leaf in enumerate((*self.leaves(), *ends)):
            for buffer in {tensor.buffer for tensor in (*leaf.inputs, *leaf.outputs)}:
                leaves_by_buffer.setdefault(buffer, []).append((i, leaf))
        return {buffer: tuple(leaves) for buffer, leaves in leaves_by_buffer.items()}

    def __eq__(self, other: object) -> bool:
        """Compare structure: notes, origins and source lines do not count."""
        if not isinstance(other, Graph):
            return NotImplemented
        own_header = (self.name, dict(self.dims), dict(self.settings), self.schemas, self.devices)
        other_header = (
            other.name,
            dict(other.dims),
            dict(other.settings),
            other.schemas,
            other.devices,
        )
        return (
            own_header == other_header
            and self.streams == other.streams
            and self.tensors == other.tensors
            and self.returned == other.returned
            and self.rarer == other.rarer
            and len(self.ops) == len(other.ops)
            and all(map(same_op, self.ops, other.ops))
        )

    def __ne__(self, other: object) -> bool:  # a struct's default would not call __eq__
        return not self == other

    __hash__ = None  # type: ignore[assignment]


def outermost(op: Op) -> Iterator[Op]:
    """Yield the operations of a label that pay overheads, or the operation itself."""
    if not op.is_annotation:
        yield op
        return
    for child in op.body:
        yield from outermost(child)


def check_graph(*values: object) -> None:
    """Raise ``IrgraphError`` (exit code 2) if a value is not a graph, such as a path."""
    for value in values:
        if not isinstance(value, Graph):
            hint = "irgraph.load reads one from a file"
            raise fail(f"graph: give a graph, not {describe(value)}", hint=hint, exit_code=2)
