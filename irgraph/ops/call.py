"""A call as declarations read it: its tensors, and its arguments by the schema's names."""

from __future__ import annotations

from functools import cached_property
from typing import TypeGuard

from irgraph.ir.effects import written_by
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.schema import Schema, bind, resolve, schemas_of
from irgraph.ir.tensor import Shape, Tensor


class InvalidCallError(Exception):
    """An argument that torch refuses, such as an axis that its operand lacks."""


class Call:
    """A leaf op.

    Attributes:
        op: the op.
        inputs: its tensors, lists flattened.
        outputs: its new tensors, lists flattened.
        is_gradient: whether it computes the gradient of another op.
    """

    def __init__(self, op: Op) -> None:
        self.op = op
        self.inputs = op.inputs
        self.outputs = op.outputs
        self.is_gradient = op.name.endswith("_backward")

    @cached_property
    def arguments(self) -> dict[str, Value]:
        """The arguments by name; those of a recorded call that no overload accepts, by position."""
        schema = resolve(self.op) or self._similar_schema()
        if schema is None:
            return {}
        pairs = bind(schema, self.op)
        return {argument.name: value for argument, value in pairs}

    def _similar_schema(self) -> Schema | None:
        """Return the first overload whose tensors are where the call has tensors."""
        operands = self.op.operands
        tensors = [isinstance(value, Tensor) for value in operands]
        for schema in schemas_of(self.op.name):
            pairs = zip(schema.arguments, tensors, strict=False)
            if all(argument.is_tensor for argument, is_tensor in pairs if is_tensor):
                return schema
        return None

    @cached_property
    def written(self) -> tuple[Tensor, ...]:
        """The operands that the call writes."""
        return written_by(self.op)

    def tensor(self, name: str) -> Tensor | None:
        """Return the tensor that an argument is, ``None`` if it is absent or no tensor."""
        value = self.arguments.get(name)
        return value if isinstance(value, Tensor) else None

    @cached_property
    def spans(self) -> dict[str, range]:
        """The positions of each argument's tensors among the inputs, by the argument's name."""
        operands = zip(self.arguments, self.op.operands, strict=False)
        spans: dict[str, range] = {}
        start = 0
        for name, value in (*operands, *self.op.attributes.items()):
            end = start + len(list(tensors_in([value])))
            if end > start:
                spans[name] = range(start, end)
            start = end
        return spans

    def positions(self, *names: str) -> frozenset[int]:
        """Return the positions of the tensors of some arguments among the inputs."""
        spans = (self.spans.get(name, ()) for name in names)
        return frozenset[int]().union(*spans)

    def shape(self, name: str) -> Shape:
        """Return the shape of an argument. Raises ``InvalidCallError`` if it is no tensor."""
        tensor = self.tensor(name)
        if tensor is None:
            raise InvalidCallError(f"{name} is not recorded")
        return tensor.shape

    def number(self, name: str, default: int) -> int:
        """Return an argument that is an integer."""
        value = self.arguments.get(name, default)
        return value if isinstance(value, int) else default

    def flag(self, name: str) -> bool:
        """Return an argument that is true or false, which is false by default."""
        return self.arguments.get(name) is True

    def numbers(self, name: str) -> Shape:
        """Return an argument that is one integer or a list of them; empty if it is absent."""
        value = self.arguments.get(name)
        items = value if isinstance(value, tuple) else (value,)
        return tuple(filter(_is_integer, items))

    def axis(self, name: str, rank: int, default: int = 0) -> int:
        """Return an argument that is the index of an axis, counted from 0."""
        return _counted(self.number(name, default), rank)

    def axes(self, name: str, rank: int) -> Shape:
        """Return an argument that is a list of axes, counted from 0; all of them if it is empty."""
        chosen = [_counted(index, rank) for index in self.numbers(name)]
        if len(set(chosen)) < len(chosen):
            raise InvalidCallError(f"{name} names an axis twice")
        if rank and chosen:
            return tuple(chosen)
        return tuple(range(rank))


def _is_integer(value: Value) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _counted(index: int, rank: int) -> int:
    """Return the index of an axis, counted from 0; a number has one axis, for that matter."""
    limit = max(rank, 1)
    if not -limit <= index < limit:
        raise InvalidCallError(f"there is no axis {index} of {rank}")
    return index % rank if rank else 0
