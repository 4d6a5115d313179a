"""A call as declarations read it: its tensors, and its arguments by the schema's names."""

from __future__ import annotations

from functools import cached_property

from irgraph.ir.effects import written_by
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.schema import Schema, bind, resolve, schemas_of
from irgraph.ir.tensor import Tensor


class InvalidCallError(Exception):
    """An argument that torch refuses, such as an axis that its operand lacks."""


class Call:
    """A leaf op.

    Attributes:
        op: the op.
        inputs: its tensors, lists flattened.
        outputs: its new tensors, lists flattened.
    """

    def __init__(self, op: Op) -> None:
        self.op = op
        self.inputs = op.inputs
        self.outputs = op.outputs

    @cached_property
    def arguments(self) -> dict[str, Value]:
        """The arguments by name; those of a recorded call that no overload accepts, by position."""
        schema = resolve(self.op) or self._similar_schema()
        return {a.name: value for a, value in bind(schema, self.op)} if schema else {}

    def _similar_schema(self) -> Schema | None:
        """Return the first overload whose tensors are where the call has tensors."""
        for schema in schemas_of(self.op.name):
            pairs = zip(schema.arguments, self.op.operands, strict=False)
            if all(a.is_tensor for a, value in pairs if isinstance(value, Tensor)):
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
        names = list(self.arguments)
        spans: dict[str, range] = {}
        start = 0
        for name, value in (
            *zip(names, self.op.operands, strict=False),
            *self.op.attributes.items(),
        ):
            count = len(list(tensors_in([value])))
            if count:
                spans[name] = range(start, start + count)
            start += count
        return spans

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of an argument. Raises ``InvalidCallError`` if it is no tensor."""
        tensor = self.tensor(name)
        if tensor is None:
            raise InvalidCallError(f"{name} is not recorded")
        return tensor.shape

    def index(self, name: str) -> int | None:
        """Return the position of an argument among the inputs, ``None`` if it is no tensor."""
        span = self.spans.get(name)
        return span[0] if span else None

    def number(self, name: str, default: int) -> int:
        """Return an argument that is an integer."""
        value = self.arguments.get(name, default)
        return value if isinstance(value, int) else default

    def flag(self, name: str, default: bool = False) -> bool:
        """Return an argument that is true or false."""
        return self.arguments.get(name, default) is True

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return an argument that is one integer or a list of them; empty if it is absent."""
        value = self.arguments.get(name)
        items = value if isinstance(value, tuple) else (value,)
        return tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool))

    def axis(self, name: str, rank: int, default: int = 0) -> int:
        """Return an argument that is the index of an axis, counted from 0."""
        return _counted(self.number(name, default), rank)

    def axes(self, name: str, rank: int) -> tuple[int, ...]:
        """Return an argument that is a list of axes, counted from 0; all of them if it is empty."""
        chosen = [_counted(index, rank) for index in self.numbers(name)]
        if len(set(chosen)) < len(chosen):
            raise InvalidCallError(f"{name} names an axis twice")
        return tuple(chosen if rank else ()) or tuple(range(rank))


def _counted(index: int, rank: int) -> int:
    """Return the index of an axis, counted from 0; a number has one axis, for that matter."""
    if not -max(rank, 1) <= index < max(rank, 1):
        raise InvalidCallError(f"there is no axis {index} of {rank}")
    return index % rank if rank else 0
