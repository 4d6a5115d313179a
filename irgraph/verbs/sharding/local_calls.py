"""Calls on a rank's tensors: their arguments, and the types of their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from irgraph.ir.dim import same
from irgraph.ir.edit import map_value, without_times
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.loading import LOAD
from irgraph.ir.op import Op, Value, tensors_in
from irgraph.ir.tensor import Tensor, canonical_strides
from irgraph.ops.book import meaning_of, names_with
from irgraph.ops.inference import ShapeError, infer
from irgraph.ops.local import letters_of_arguments, local_call
from irgraph.ops.operator import Trait
from irgraph.ops.places import OWN, SAME, Place
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.sharding.choices.candidates import positions
from irgraph.verbs.sharding.shares import Shares
from irgraph.verbs.sharding.writer import Writer


def equal_shapes(a: Sequence[int], b: Sequence[int]) -> bool:
    """Return whether two shapes agree in values and in expressions."""
    return len(a) == len(b) and all(map(same, a, b))


def present_types(results: Value, inferred: Value) -> Iterator[Tensor]:
    """Yield the inferred types of the results that a call has; gradients may be left out."""
    if isinstance(results, Tensor) and isinstance(inferred, Tensor):
        yield inferred
    elif isinstance(results, tuple) and isinstance(inferred, tuple):
        for result, item in zip(results, inferred, strict=False):
            yield from present_types(result, item)


class LocalCalls:
    """Builder of the calls of a rank, from the calls of the whole step."""

    def __init__(self, graph: Graph, shares: Shares, write: Writer) -> None:
        self.graph, self.shares, self.write = graph, shares, write
        self.contiguous_names = names_with(Trait.CONTIGUOUS)

    def expected_shape(self, tensor: Tensor, place: Place) -> tuple[int, ...]:
        """Return the shape of a rank's tensor in a place."""
        if place.kind == "split":
            return self.shares.split_shape(tensor, place.axis)
        return self.shares.whole_tensor(tensor).shape

    def with_numbers(self, op: Op, letter: str) -> Op:
        """Return a call with a rank's numbers: sizes along a split letter are its share.

        All other numbers stay: ranks divide by the whole batch. A rank loads its samples alone.
        """
        if op.name == LOAD:
            return replace(
                op, attributes={n: self._share_of(value) for n, value in op.attributes.items()}
            )
        meaning = meaning_of(op) if letter else None
        has_sizes = meaning is not None and letter in letters_of_arguments(meaning)
        if not has_sizes and not self._depends((*op.operands, *op.attributes.values())):
            return op
        return local_call(op, meaning, letter, self._share, self.shares.whole_size)

    def _depends(self, value: Value) -> bool:
        if isinstance(value, tuple):
            return any(map(self._depends, value))
        return self.shares.depends(value)

    def _share_of(self, value: Value) -> Value:
        """Return a rank's part of a number of the whole batch; others are unchanged."""
        return self._share(value) if isinstance(value, int) and self._depends(value) else value

    def _share(self, size: int) -> int:
        share = self.shares.share(size)
        assert share is not None
        return share

    def on_local(
        self, op: Op, numbers: Op, operands: Mapping[str, Tensor], results: Mapping[str, Place]
    ) -> Op:
        """Return a call on a rank's tensors, with results of the types that torch infers.

        Args:
            op: the call of the whole step.
            numbers: the call with the rank's numbers.
            operands: the rank's tensors, by name in the whole step.
            results: the places of new tensors, by name.
        """
        call = replace(
            numbers,
            operands=map_value(numbers.operands, lambda t: operands[t.name]),
            attributes={
                name: map_value(value, lambda t: operands[t.name])
                for name, value in numbers.attributes.items()
            },
            written=frozenset(operands[name].name for name in op.written if name in operands),
            notes=without_times(op.notes),
        )
        if op.base.startswith("_fused_"):
            call = self._align_gradients(op, call)
        elif op.name in self.contiguous_names:
            call = self._in_one_order(call)
        elif op.base.endswith("_backward"):
            call = self._with_order(op, call)
        call, types = self._infer_call(op, call)
        inferred = iter(types)
        return replace(
            call,
            results=map_value(
                op.results, lambda t: self._local_tensor(op, t, next(inferred), results[t.name])
            ),
        )

    def write_view(self, op: Op, source: Tensor) -> Tensor:
        """Write a view of a complete tensor; return it under a new name."""
        (old,) = op.inputs
        (result,) = op.outputs
        call = self.on_local(op, self.with_numbers(op, ""), {old.name: source}, {result.name: SAME})
        name = self.write.fresh(result.name, result.dtype, ()).name
        (local,) = call.outputs
        view = replace(local, name=name)
        self.write.ops.append(replace(call, results=(view,)))
        return view

    def _infer_call(self, op: Op, call: Op) -> tuple[Op, Sequence[Tensor]]:
        """Return a call and torch's types of its results; a view may need a copy before."""
        try:
            return call, self._result_types(op, call)
        except ShapeError as error:
            if op.written or all(tensor.contiguous for tensor in call.inputs):
                raise op_refusal(op, f"cannot run on parts of its operands: {error}") from None
        written = {tensor.name for tensor in written_by(call)}
        strided = [t for t in call.inputs if not t.contiguous and t.name not in written]
        call = self._with_contiguous(call, strided)
        try:
            return call, self._result_types(op, call)
        except ShapeError as error:
            raise op_refusal(op, f"cannot run on parts of its operands: {error}") from None

    def _result_types(self, op: Op, call: Op) -> Sequence[Tensor]:
        if not op.outputs:
            return []
        graph = self.graph
        inferred = infer(call, graph.schemas, self.shares.dims, op.outputs[0].device)
        types = list(tensors_in(inferred))
        if len(types) != len(op.outputs):
            types = list(present_types(op.results, inferred))
        if len(types) != len(op.outputs):
            raise ShapeError(f"torch makes {len(types)} tensors, and {len(op.outputs)} are known")
        return types

    def _local_tensor(self, op: Op, tensor: Tensor, inferred: Tensor, place: Place) -> Tensor:
        """Return a rank's tensor, with the full step's name and the type inferred by torch."""
        shape = inferred.shape if place == OWN else self.expected_shape(tensor, place)
        if not equal_shapes(inferred.shape, shape):
            raise op_refusal(op, f"makes %{tensor.name} in another form on a rank")
        if inferred.buffer:
            buffer, offset = inferred.buffer, inferred.offset
        elif any(tensor.buffer == operand.buffer for operand in op.inputs):
            # a view of the whole step that is a copy here
            buffer, offset = self.write.fresh(tensor.name, tensor.dtype, ()).buffer, 0
        else:
            buffer, offset = tensor.buffer, self.shares.whole_size(tensor.offset)
        return replace(tensor, shape=shape, strides=inferred.strides, buffer=buffer, offset=offset)

    def _in_one_order(self, call: Op) -> Op:
        """Return a call of contiguous tensors, if one of them is a block with gaps."""
        if all(tensor.dense for tensor in call.inputs):
            return call
        return self._with_contiguous(call, [t for t in call.inputs if not t.contiguous])

    def _with_order(self, op: Op, call: Op) -> Op:
        """Return a gradient's call on contiguous blocks of contiguous tensors.

        Its kernels traverse saved statistics in memory order, regardless of strides, and copy
        other tensors. Kernels by element do neither.
        """
        meaning = meaning_of(op)
        if (
            meaning is not None
            and len({*meaning.operands, *(r.axes for r in meaning.results)}) == 1
        ):
            return call
        pairs = zip(op.inputs, call.inputs, strict=True)
        blocks = [local for whole, local in pairs if whole.contiguous and not local.contiguous]
        return self._with_contiguous(call, [t for t in blocks if t.name not in call.written])

    def _align_gradients(self, op: Op, call: Op) -> Op:
        """Return a fused update whose gradients have their parameters' layouts in memory.

        Its kernels traverse the memory of both in one order, regardless of strides. Raises
        ``RefusedError`` if a copy cannot give a gradient the layout of its parameter.
        """
        misaligned: list[Tensor] = []
        written = {tensor.name for tensor in written_by(call)}
        for position in positions(call):
            parameter, *others = position.inputs
            steps = canonical_strides(parameter.shape, parameter.strides)
            same_shape = (tensor for tensor in others if tensor.shape == parameter.shape)
            differing = [
                tensor
                for tensor in same_shape
                if canonical_strides(tensor.shape, tensor.strides) != steps
            ]
            if differing and (
                not parameter.contiguous or any(t.name in written for t in differing)
            ):
                raise op_refusal(
                    op, f"updates %{parameter.name} with tensors that lie otherwise in memory"
                )
            misaligned += differing
        return self._with_contiguous(call, misaligned)

    def _with_contiguous(self, call: Op, tensors: Iterable[Tensor]) -> Op:
        """Return a call on contiguous copies of some of its operands."""
        copies = {tensor.name: self.write.contiguous(tensor) for tensor in tensors}

        def copy_of(tensor: Tensor) -> Tensor:
            return copies.get(tensor.name, tensor)

        return replace(
            call,
            operands=map_value(call.operands, copy_of),
            attributes={n: map_value(value, copy_of) for n, value in call.attributes.items()},
            written=frozenset(copies[n].name if n in copies else n for n in call.written),
        )
