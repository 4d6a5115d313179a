"""Goes through a step and writes what one rank runs of it."""

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
from irgraph.verbs.sharding.layers.placement import PART, SAME, Choice, LayerCall, LayerPlacement
from irgraph.verbs.sharding.layers.rules import choose, over_parts
from irgraph.verbs.sharding.rules import draws
from irgraph.verbs.sharding.tables import rows_of
from irgraph.verbs.sharding.writer import GROUP

ORIGIN = "shard"


class RankOps:
    """The ops of one rank, made from those of the whole step in launch order.

    Attributes:
        held: what the rank has of every tensor, at the end of what was gone through.
        made: new ops.
    """

    def __init__(
        self,
        graph: Graph,
        rank: int,
        ranks: int,
        places: Mapping[str, LayerPlacement],
        group: str = GROUP,
    ) -> None:
        """Begin a step; ``places`` say which declared tensors are split."""
        self.graph, self.ranks = graph, ranks
        self.held = LocalTensors(graph, rank, ranks, group)
        self.made = 0
        for declared in graph.tensors:
            tensor, place = declared.tensor, places.get(declared.tensor.name, SAME)
            self.held.learn(tensor, self._block(tensor, place), place)

    def _block(self, tensor: Tensor, place: LayerPlacement) -> Tensor:
        if place == SAME:
            return tensor
        shape = list(tensor.shape)
        shape[place.axis] //= self.ranks
        return replace(tensor, shape=tuple(shape), strides=None)

    def graph_of(self) -> Graph:
        """Return the rank's model.

        Raises:
            RefusedError: an op cannot run on parts, nor on what is put together of them.
        """
        ops = [new for op in self.graph.ops for new in self._ops(op)]
        for name in live_out(self.graph):
            if self.held.places[name] == PART:
                self.held.given(self.graph.by_name[name], SAME)
        ops += self._new(ops[-1]) if ops else []
        tensors = tuple(
            replace(d, tensor=self.held.local[d.tensor.name]) for d in self.graph.tensors
        )
        returned = map_value(self.graph.returned, self._local)
        return replace(self.graph, tensors=tensors, ops=tuple(ops), returned=returned)

    def _local(self, tensor: Tensor) -> Tensor:
        return self.held.local.get(tensor.name, tensor)

    def _ops(self, op: Op) -> list[Op]:
        """Return what a rank runs in place of an op."""
        if not op.body:
            return [self._renamed(op)] if is_label(op) else self._leaf(op)
        body = [new for child in op.body for new in self._ops(child)]
        if len(body) == len(op.body) and all(a is b for a, b in zip(body, op.body, strict=True)):
            return [op]
        if op.is_annotation or op.is_autograd:
            return [replace(self._renamed(op), body=tuple(body))]
        return self._composite(op, body)

    def _renamed(self, op: Op) -> Op:
        """Return an op with the rank's tensors."""
        if all(self._local(tensor) is tensor for tensor in (*op.inputs, *op.outputs)):
            return op
        results: tuple[Result, ...] = map_value(op.results, self._local)
        given = {name: map_value(value, self._local) for name, value in op.attributes.items()}
        return replace(
            op,
            operands=map_value(op.operands, self._local),
            results=results,
            attributes=given,
            notes=without_times(op.notes),
        )

    def _composite(self, op: Op, body: list[Op]) -> list[Op]:
        """Return a call with what it now calls, or that alone where it is another call."""
        same = [new.name for new in body] == [child.name for child in op.body]
        made = replace(self._renamed(op), body=tuple(body))
        inside = {tensor.name for new in body for tensor in new.outputs}
        taken = {tensor.name for new in body for tensor in new.inputs} - inside
        if not same or not taken <= {tensor.name for tensor in made.inputs}:
            return body
        made = replace(made, attributes={**made.attributes, **_sizes(op, body)})
        try:
            found = [
                t.shape
                for t in tensors_in(
                    infer(replace(made, body=()), self.graph.schemas, self.graph.dims)
                )
            ]
        except ShapeError:
            return body
        return [made] if found == [tensor.shape for tensor in made.outputs] else body

    def _leaf(self, op: Op) -> list[Op]:
        """Return an op on what the rank has, behind what that takes."""
        if draws(op):
            raise op_refusal(
                op, "draws random numbers: ranks would draw others than the whole step"
            )
        call = LayerCall(op, self.held.places, self.ranks, self.held.write.sizes)
        if over_parts(call):
            return self._with_bias(op)
        choice = choose(call)
        wants = {tensor.name: choice.wants.get(tensor.name, SAME) for tensor in op.inputs}
        for tensor in written_by(op):
            if self.held.places[tensor.name] not in (wants[tensor.name], PART):
                raise op_refusal(op, f"writes to %{tensor.name}, of which a rank has only a part")
        given = {tensor.name: self.held.given(tensor, wants[tensor.name]) for tensor in op.inputs}
        new = self._new(op)
        made = self._made(op, choice, given)
        return [*new, *self._new(op), made]

    def _with_bias(self, op: Op) -> list[Op]:
        """Return a product of what is split, its sum over ranks, and the bias on top."""
        bias, left, right = op.inputs
        (made,) = op.outputs
        tensor = self.held.write.fresh("product", made.dtype, made.shape)
        product = replace(
            op,
            name="aten.mm" + op.name[len("aten.addmm") :]
            if op.name.startswith("aten.")
            else "irgraph.mm_tf32",
            operands=(left, right),
            results=(tensor,),
        )
        added = replace(op, name="aten.add", operands=(tensor, bias), origin=ORIGIN)
        self.made += 1
        return [*self._leaf(product), *self._leaf(added)]

    def _made(self, op: Op, choice: Choice, given: Mapping[str, Tensor]) -> Op:
        """Return an op on a rank's tensors, and learn what it makes."""
        makes = choice.makes or (SAME,) * len(op.outputs)
        same = all(given[tensor.name] is tensor for tensor in op.inputs)
        if same and set(makes) <= {SAME}:
            for tensor in op.outputs:
                self.held.learn(tensor, tensor, SAME)
            made = op
        else:
            made = self._smaller(op, choice, given, makes)
        for tensor in written_by(op):
            self.held.wrote(tensor)
        return made

    def _smaller(
        self, op: Op, choice: Choice, given: Mapping[str, Tensor], makes: Sequence[LayerPlacement]
    ) -> Op:
        attributes = {**op.attributes, **choice.given}
        call = replace(
            op,
            operands=map_value(op.operands, lambda tensor: given[tensor.name]),
            attributes={n: map_value(v, lambda t: given[t.name]) for n, v in attributes.items()},
            written=frozenset(given[name].name for name in op.written if name in given),
            notes=without_times(op.notes),
        )
        if op.base.startswith("_fused_"):
            call = self._aligned(op, call)
        call, types = self._typed(op, call)
        made = iter(zip(types, makes, strict=True))

        def typed(whole: Tensor) -> Tensor:
            kind, place = next(made)
            local = self._as(op, whole, kind, place)
            self.held.learn(whole, local, place)
            return local

        return replace(call, results=map_value(op.results, typed))

    def _typed(self, op: Op, call: Op) -> tuple[Op, list[Tensor]]:
        """Return a call whose results torch can type, and these; a view may need a copy before."""
        try:
            return call, self._types(op, call)
        except ShapeError as error:
            if op.written or all(tensor.contiguous for tensor in call.inputs):
                raise op_refusal(op, f"cannot run on parts of its operands: {error}") from None
        kept = {tensor.name for tensor in written_by(call)}
        loose = [t for t in call.inputs if not t.contiguous and t.name not in kept]
        call = self._dense(call, loose)
        try:
            return call, self._types(op, call)
        except ShapeError as error:
            raise op_refusal(op, f"cannot run on parts of its operands: {error}") from None

    def _aligned(self, op: Op, call: Op) -> Op:
        """Return a fused update whose gradients lie in memory as their parameters do.

        Its kernels walk the memory of both in one order, whatever the strides. Raises
        ``RefusedError`` where a copy cannot give a gradient the layout of its parameter.
        """
        loose: list[Tensor] = []
        written = {tensor.name for tensor in written_by(call)}
        for parameter, *others in rows_of(call):
            steps = canonical_strides(parameter.shape, parameter.strides)
            alike = (tensor for tensor in others if tensor.shape == parameter.shape)
            odd = [
                tensor
                for tensor in alike
                if canonical_strides(tensor.shape, tensor.strides) != steps
            ]
            if odd and (not parameter.contiguous or any(t.name in written for t in odd)):
                raise op_refusal(
                    op, f"updates %{parameter.name} with tensors that lie otherwise in memory"
                )
            loose += odd
        return self._dense(call, loose)

    def _dense(self, call: Op, loose: Iterable[Tensor]) -> Op:
        """Return a call on contiguous copies of some of what it reads."""
        whole = {tensor.name: self.held.write.whole(tensor) for tensor in loose}
        return replace(
            call,
            operands=map_value(call.operands, lambda tensor: whole.get(tensor.name, tensor)),
            written=frozenset(whole[n].name if n in whole else n for n in call.written),
        )

    def _types(self, op: Op, call: Op) -> list[Tensor]:
        if not op.outputs:
            return []
        found = infer(call, self.graph.schemas, self.graph.dims, op.outputs[0].device)
        types = list(tensors_in(found))
        if len(types) != len(op.outputs):
            raise ShapeError(f"torch makes {len(types)} tensors, and {len(op.outputs)} are known")
        return types

    def _as(self, op: Op, whole: Tensor, kind: Tensor, place: LayerPlacement) -> Tensor:
        """Return a rank's tensor: by name that of the whole step, by form what torch makes."""
        shape = list(whole.shape)
        if place.kind == "split":
            shape[place.axis] //= self.ranks
        if list(map(int, kind.shape)) != list(map(int, shape)):
            raise op_refusal(op, f"makes %{whole.name} in another form on a rank")
        # Fresh memory keeps its buffer's name; a view lies where its operand now lies.
        where = (kind.buffer, kind.offset) if kind.buffer else (whole.buffer, whole.offset)
        return replace(
            whole, shape=tuple(shape), strides=kind.strides, buffer=where[0], offset=where[1]
        )

    def _new(self, at: Op) -> list[Op]:
        """Return the ops that were written, run where and when an op is."""
        found = self.held.taken()
        self.made += len(found)
        return [
            replace(
                new,
                thread=at.thread,
                stream=at.stream,
                module=at.module,
                phase=at.phase,
                origin=ORIGIN,
            )
            for new in found
        ]


def _sizes(op: Op, body: Sequence[Op]) -> dict[str, Value]:
    """Return the sizes that a call names, as the call in it that names them has them now."""
    found = {}
    for old, new in zip(op.body, body, strict=True):
        named = {str(value): new.attributes[name] for name, value in old.attributes.items()}
        found.update({n: named[str(v)] for n, v in op.attributes.items() if str(v) in named})
    return {name: value for name, value in found.items() if isinstance(value, tuple)}
