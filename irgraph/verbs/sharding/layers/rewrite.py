"""Rewriting of a step to the model of one rank, op by op."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from irgraph.ir.edit import map_value, without_times
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.live_out import is_label, live_out
from irgraph.ir.op import Op, Result, Value, tensors_in
from irgraph.ir.tensor import Tensor, canonical_strides
from irgraph.shapes import ShapeError, infer
from irgraph.verbs.refusal import op_refusal
from irgraph.verbs.sharding.layers.exchange import LocalTensors
from irgraph.verbs.sharding.layers.placement import (
    PART,
    SAME,
    CallPlacement,
    LayerCall,
    LayerPlacement,
)
from irgraph.verbs.sharding.layers.rules import choose, needs_late_bias
from irgraph.verbs.sharding.rules import draws_random
from irgraph.verbs.sharding.tables import rows_of
from irgraph.verbs.sharding.writer import GROUP

ORIGIN = "shard"


class RankOps:
    """The ops of one rank, rewritten from the ops of the full step in launch order.

    Attributes:
        tensors: the rank's tensors after the ops that have been rewritten.
        new_op_count: number of new ops.
    """

    def __init__(
        self,
        graph: Graph,
        rank: int,
        ranks: int,
        placements: Mapping[str, LayerPlacement],
        group: str = GROUP,
    ) -> None:
        """Start a step; ``placements`` has the declared tensors that are split."""
        self.graph, self.ranks = graph, ranks
        self.tensors = LocalTensors(graph, rank, ranks, group)
        self.new_op_count = 0
        for declared in graph.tensors:
            tensor, placement = declared.tensor, placements.get(declared.tensor.name, SAME)
            self.tensors.record(tensor, self._block(tensor, placement), placement)

    def _block(self, tensor: Tensor, placement: LayerPlacement) -> Tensor:
        if placement == SAME:
            return tensor
        shape = list(tensor.shape)
        shape[placement.axis] //= self.ranks
        return replace(tensor, shape=tuple(shape), strides=None)

    def build_graph(self) -> Graph:
        """Return the rank's model.

        Raises:
            RefusedError: an op can run neither on parts nor on tensors assembled from parts.
        """
        ops = [new for op in self.graph.ops for new in self._rewrite(op)]
        for name in live_out(self.graph):
            if self.tensors.placements[name] == PART:
                self.tensors.materialize(self.graph.by_name[name], SAME)
        ops += self._drain_ops(ops[-1]) if ops else []
        tensors = tuple(
            replace(d, tensor=self.tensors.local[d.tensor.name]) for d in self.graph.tensors
        )
        returned = map_value(self.graph.returned, self._local)
        return replace(self.graph, tensors=tensors, ops=tuple(ops), returned=returned)

    def _local(self, tensor: Tensor) -> Tensor:
        return self.tensors.local.get(tensor.name, tensor)

    def _rewrite(self, op: Op) -> list[Op]:
        """Return the ops of a rank that replace an op."""
        if not op.body:
            return [self._with_local_tensors(op)] if is_label(op) else self._leaf(op)
        body = [new for child in op.body for new in self._rewrite(child)]
        if len(body) == len(op.body) and all(a is b for a, b in zip(body, op.body, strict=True)):
            return [op]
        if op.is_annotation or op.is_autograd:
            return [replace(self._with_local_tensors(op), body=tuple(body))]
        return self._composite(op, body)

    def _with_local_tensors(self, op: Op) -> Op:
        """Return an op with the rank's tensors."""
        if all(self._local(tensor) is tensor for tensor in (*op.inputs, *op.outputs)):
            return op
        results: tuple[Result, ...] = map_value(op.results, self._local)
        attributes = {name: map_value(value, self._local) for name, value in op.attributes.items()}
        return replace(
            op,
            operands=map_value(op.operands, self._local),
            results=results,
            attributes=attributes,
            notes=without_times(op.notes),
        )

    def _composite(self, op: Op, body: list[Op]) -> list[Op]:
        """Return a call with its rewritten body, or the body only if it is no longer this call."""
        has_same_ops = [new.name for new in body] == [child.name for child in op.body]
        call = replace(self._with_local_tensors(op), body=tuple(body))
        inside = {tensor.name for new in body for tensor in new.outputs}
        operands = {tensor.name for new in body for tensor in new.inputs} - inside
        if not has_same_ops or not operands <= {tensor.name for tensor in call.inputs}:
            return body
        call = replace(call, attributes={**call.attributes, **_sizes(op, body)})
        try:
            shapes = [
                t.shape
                for t in tensors_in(
                    infer(replace(call, body=()), self.graph.schemas, self.graph.dims)
                )
            ]
        except ShapeError:
            return body
        return [call] if shapes == [tensor.shape for tensor in call.outputs] else body

    def _leaf(self, op: Op) -> list[Op]:
        """Return an op on the rank's tensors, after the ops that convert its operands."""
        if draws_random(op):
            raise op_refusal(
                op, "draws random numbers: ranks would draw others than the whole step"
            )
        call = LayerCall(op, self.tensors.placements, self.ranks, self.tensors.write.sizes)
        if needs_late_bias(call):
            return self._with_bias(op)
        choice = choose(call)
        placements = {tensor.name: choice.operands.get(tensor.name, SAME) for tensor in op.inputs}
        for tensor in written_by(op):
            if self.tensors.placements[tensor.name] not in (placements[tensor.name], PART):
                raise op_refusal(op, f"writes to %{tensor.name}, of which a rank has only a part")
        local = {
            tensor.name: self.tensors.materialize(tensor, placements[tensor.name])
            for tensor in op.inputs
        }
        new = self._drain_ops(op)
        rewritten = self._localize(op, choice, local)
        return [*new, *self._drain_ops(op), rewritten]

    def _with_bias(self, op: Op) -> list[Op]:
        """Return a product of split factors, its sum over ranks, and the addition of the bias."""
        bias, left, right = op.inputs
        (result,) = op.outputs
        tensor = self.tensors.write.fresh("product", result.dtype, result.shape)
        product = replace(
            op,
            name="aten.mm" + op.name[len("aten.addmm") :]
            if op.name.startswith("aten.")
            else "irgraph.mm_tf32",
            operands=(left, right),
            results=(tensor,),
        )
        sum_op = replace(op, name="aten.add", operands=(tensor, bias), origin=ORIGIN)
        self.new_op_count += 1
        return [*self._leaf(product), *self._leaf(sum_op)]

    def _localize(self, op: Op, choice: CallPlacement, local: Mapping[str, Tensor]) -> Op:
        """Return an op on a rank's tensors, and record its results."""
        results = choice.results or (SAME,) * len(op.outputs)
        is_unchanged = all(local[tensor.name] is tensor for tensor in op.inputs)
        if is_unchanged and set(results) <= {SAME}:
            for tensor in op.outputs:
                self.tensors.record(tensor, tensor, SAME)
            rewritten = op
        else:
            rewritten = self._on_blocks(op, choice, local, results)
        for tensor in written_by(op):
            self.tensors.invalidate_copies(tensor)
        return rewritten

    def _on_blocks(
        self,
        op: Op,
        choice: CallPlacement,
        operands: Mapping[str, Tensor],
        results: Sequence[LayerPlacement],
    ) -> Op:
        attributes = {**op.attributes, **choice.arguments}
        call = replace(
            op,
            operands=map_value(op.operands, lambda tensor: operands[tensor.name]),
            attributes={n: map_value(v, lambda t: operands[t.name]) for n, v in attributes.items()},
            written=frozenset(operands[name].name for name in op.written if name in operands),
            notes=without_times(op.notes),
        )
        if op.base.startswith("_fused_"):
            call = self._align_gradients(op, call)
        call, types = self._infer_call(op, call)
        typed_results = iter(zip(types, results, strict=True))

        def local_result(tensor: Tensor) -> Tensor:
            kind, placement = next(typed_results)
            result = self._local_tensor(op, tensor, kind, placement)
            self.tensors.record(tensor, result, placement)
            return result

        return replace(call, results=map_value(op.results, local_result))

    def _infer_call(self, op: Op, call: Op) -> tuple[Op, list[Tensor]]:
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

    def _align_gradients(self, op: Op, call: Op) -> Op:
        """Return a fused update whose gradients have their parameters' layouts in memory.

        Its kernels traverse the memory of both in one order, regardless of strides. Raises
        ``RefusedError`` if a copy cannot give a gradient the layout of its parameter.
        """
        misaligned: list[Tensor] = []
        written = {tensor.name for tensor in written_by(call)}
        for parameter, *others in rows_of(call):
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
        copies = {tensor.name: self.tensors.write.contiguous(tensor) for tensor in tensors}
        return replace(
            call,
            operands=map_value(call.operands, lambda tensor: copies.get(tensor.name, tensor)),
            written=frozenset(copies[n].name if n in copies else n for n in call.written),
        )

    def _result_types(self, op: Op, call: Op) -> list[Tensor]:
        if not op.outputs:
            return []
        inferred = infer(call, self.graph.schemas, self.graph.dims, op.outputs[0].device)
        types = list(tensors_in(inferred))
        if len(types) != len(op.outputs):
            raise ShapeError(f"torch makes {len(types)} tensors, and {len(op.outputs)} are known")
        return types

    def _local_tensor(
        self, op: Op, tensor: Tensor, inferred: Tensor, placement: LayerPlacement
    ) -> Tensor:
        """Return a rank's tensor, with the full step's name and the shape inferred by torch."""
        shape = list(tensor.shape)
        if placement.kind == "split":
            shape[placement.axis] //= self.ranks
        if list(map(int, inferred.shape)) != list(map(int, shape)):
            raise op_refusal(op, f"makes %{tensor.name} in another form on a rank")
        # Fresh memory has the original buffer's name; a view is in its operand's new buffer.
        location = (
            (inferred.buffer, inferred.offset)
            if inferred.buffer
            else (tensor.buffer, tensor.offset)
        )
        return replace(
            tensor,
            shape=tuple(shape),
            strides=inferred.strides,
            buffer=location[0],
            offset=location[1],
        )

    def _drain_ops(self, op: Op) -> list[Op]:
        """Return the newly written ops, with the thread, stream, module and phase of an op."""
        new_ops = self.tensors.drain_ops()
        self.new_op_count += len(new_ops)
        return [
            replace(
                new,
                thread=op.thread,
                stream=op.stream,
                module=op.module,
                phase=op.phase,
                origin=ORIGIN,
            )
            for new in new_ops
        ]


def _sizes(op: Op, body: Sequence[Op]) -> dict[str, Value]:
    """Return the sizes in a call's arguments, with the new values from its inner call."""
    sizes = {}
    for old, new in zip(op.body, body, strict=True):
        new_by_old = {str(value): new.attributes[name] for name, value in old.attributes.items()}
        sizes.update(
            {n: new_by_old[str(v)] for n, v in op.attributes.items() if str(v) in new_by_old}
        )
    return {name: value for name, value in sizes.items() if isinstance(value, tuple)}
