"""Rewriting of a step to the model of one rank, op by op in launch order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from irgraph.ir.edit import map_tensors, map_value, without_times
from irgraph.ir.effects import is_view, written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.resize import with_dims
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import meaning_of
from irgraph.ops.inference import ShapeError, infer
from irgraph.ops.live_out import live_out
from irgraph.ops.places import ONCE, OWN, SAME
from irgraph.verbs.sharding.batch_norms import BatchNorms
from irgraph.verbs.sharding.call_properties import (
    ORIGIN,
    equal_numbers,
    in_context,
    inner_sizes,
    is_inert,
    is_written_before_use,
    is_zeroing,
    unread_tensors,
)
from irgraph.verbs.sharding.choices.candidates import positions
from irgraph.verbs.sharding.choices.choice import Choice, Chooser, FutureCosts
from irgraph.verbs.sharding.choices.costs import GATHERED
from irgraph.verbs.sharding.embeddings.lookups import Lookups
from irgraph.verbs.sharding.fixed_places import BlockUpdates, FixedPlaces
from irgraph.verbs.sharding.local_calls import LocalCalls, equal_shapes
from irgraph.verbs.sharding.local_tensors import LocalTensors, SumBucket, reduction_of
from irgraph.verbs.sharding.optimizer import begin_updates, end_updates
from irgraph.verbs.sharding.rank_nodes import Level, RankNode
from irgraph.verbs.sharding.scans import Scans
from irgraph.verbs.sharding.shares import Shares
from irgraph.verbs.sharding.writer import GROUP, Writer


class RankOps:
    """The ops of one rank, rewritten from the ops of the whole step.

    Attributes:
        tensors: the rank's tensors after the ops that have been rewritten.
        new_op_count: number of new ops.
        sum_count: number of tensors that are summed in place.
    """

    def __init__(
        self,
        graph: Graph,
        layout: FixedPlaces,
        rank: int,
        group: str = GROUP,
        lookups: Lookups | None = None,
        future: FutureCosts | None = None,
    ) -> None:
        """Start a step.

        Args:
            graph: the whole step.
            layout: the places that the plan fixes.
            rank: index of the rank, from 0.
            group: the process group of the ranks.
            lookups: the lookups of tables, and the tensors that an exchange treats.
            future: costs of later calls by places, from an earlier pass.
        """
        self.graph, self.layout = graph, layout
        self.shares = Shares(graph.dims, layout.split_dims, layout.ranks)
        self.tensors = LocalTensors(graph, self.shares, rank, group)
        self.lookups = lookups or Lookups()
        self.calls = LocalCalls(graph, self.shares, self.tensors.write)
        self.tensors.write_view = self.calls.write_view
        self.chooser = Chooser(
            self.tensors,
            self.shares,
            layout.pins,
            dict(layout.origins),
            frozenset() if layout.sums_results else unread_tensors(graph),
            future,
        )
        self.late_pins = {name for name in layout.pins if is_written_before_use(graph, name)}
        norms = BatchNorms(self.tensors, is_local=layout.has_local_norms)
        self.rules = (norms.choice, Scans(self.tensors).choice)
        self.top: list[RankNode] = []
        self.stack: list[Level] = []
        self.buckets: list[SumBucket] = []
        self.last_access: dict[str, int] = {}
        self.position = 0
        self.phase = "forward"
        self.new_op_count = self.sum_count = 0

    def build_graph(self) -> Graph:
        """Return the rank's model.

        Raises:
            RefusedError: an op can run neither on parts nor on tensors assembled from parts.
        """
        layout = self.layout
        dims = {name: self.shares.dims[name] for name in layout.split_dims}
        small = with_dims(self.graph, dims) if dims else self.graph
        self._declare(small)
        for op, small_op in zip(self.graph.ops, small.ops, strict=True):
            if layout.updates is not None and op is layout.updates.scope:
                self._update_by_blocks(op, small_op, layout.updates)
            else:
                self._rewrite(op, small_op, self.top)
        self._finish()
        ops = tuple(op for node in self.top for op in self._ops_of(node))
        tensors = tuple(
            replace(d, tensor=self.tensors.local[d.tensor.name]) for d in self.graph.tensors
        )
        returned = map_value(self.graph.returned, self._local)
        swapped = self._swapped_names()
        if swapped:
            ops = tuple(map_tensors(op, swapped) for op in ops)
            returned = map_value(returned, swapped)
        return replace(
            self.graph, dims=self.shares.dims, tensors=tensors, ops=ops, returned=returned
        )

    def _update_by_blocks(self, scope: Op, small: Op, updates: BlockUpdates) -> None:
        """Rewrite an optimizer's step in which a rank updates its rows of complete parameters."""
        complete = {name: self.tensors.local[name] for name in updates.parameters}
        begin_updates(updates, self.graph, self.tensors)
        self.top += map(RankNode, self._drain_ops(scope))
        self._rewrite(scope, small, self.top)
        end_updates(updates, self.graph, self.tensors, complete)
        self.top += map(RankNode, self._drain_ops(scope))

    def _swapped_names(self) -> Callable[[Tensor], Tensor] | None:
        """Return a renaming that gives results of the step that were converted their names."""
        names: dict[str, str] = {}
        for name in live_out(self.graph):
            local = self.tensors.local.get(name)
            if local is not None and local.name != name:
                names |= {name: local.name, local.name: name}
        if not names:
            return None
        return lambda tensor: replace(tensor, name=names.get(tensor.name, tensor.name))

    def _declare(self, small: Graph) -> None:
        for declared, of_rank in zip(self.graph.tensors, small.tensors, strict=True):
            tensor = declared.tensor
            place = self.layout.places.get(tensor.name, SAME)
            local = of_rank.tensor
            shape = self.calls.expected_shape(tensor, place)
            if not equal_shapes(local.shape, shape):
                local = replace(self.shares.whole_tensor(tensor), shape=shape, strides=None)
            self.tensors.record(tensor, local, place)

    def _local(self, tensor: Tensor) -> Tensor:
        return self.tensors.local.get(tensor.name, tensor)

    def _rewrite(self, op: Op, small: Op, siblings: list[RankNode]) -> None:
        """Add the nodes that replace an op."""
        node = RankNode(small=small)
        siblings.append(node)
        self.stack.append(Level(op, self.position, node, siblings))
        if op.body:
            for child, small_child in zip(op.body, small.body, strict=True):
                self._rewrite(child, small_child, node.children)
            node.op = self._with_local_tensors(op, small)
        elif is_inert(op) and meaning_of(op) is None:
            node.op = self._with_local_tensors(op, small)
            self.position += 1
        else:
            self._enter_phase(op.phase)
            self._leaf(op, small, node)
            for tensor in (*op.inputs, *op.outputs):
                self.last_access[tensor.buffer] = self.position
            self.position += 1
        self.stack.pop()

    def _enter_phase(self, phase: str) -> None:
        """Free the parameters that were gathered in another phase."""
        if phase != self.phase:
            self.phase = phase
            self.tensors.drop_copies(
                {name for name, origin in self.chooser.origins.items() if origin == GATHERED}
            )

    def _with_local_tensors(self, op: Op, small: Op) -> Op:
        """Return a scope or a label with the rank's tensors."""
        pairs = zip((*op.inputs, *op.outputs), (*small.inputs, *small.outputs), strict=True)
        if all(self._local(tensor) is of_rank for tensor, of_rank in pairs):
            return small
        return replace(
            small,
            operands=map_value(op.operands, self._local),
            results=map_value(op.results, self._local),
            attributes={
                name: map_value(value, self._local) for name, value in small.attributes.items()
            },
            notes=without_times(op.notes),
        )

    def _leaf(self, op: Op, small: Op, node: RankNode) -> None:
        """Set the op of a node, and add the ops that convert its operands before it."""
        self._settle_pins([t for t in op.inputs if t.name in self.late_pins])
        choice = self._choose(op)
        for call in positions(op):
            self.chooser.follow_origin(call)
        local = {
            tensor.name: self.tensors.materialize(tensor, choice.operands[tensor.name])
            for tensor in op.inputs
        }
        self._schedule_sums()
        if choice.writer is not None:
            node.op = in_context(choice.writer(op, local), op)
            results = {t.name: t for new in (*self.tensors.write.ops, node.op) for t in new.outputs}
        else:
            node.op = self._on_local(op, small, choice, local)
            pairs = zip(op.outputs, node.op.outputs, strict=True)
            results = {tensor.name: new for tensor, new in pairs}
        before = self._drain_ops(op)
        self._record_results(op, results, choice)
        after = self._drain_ops(op)
        if before or after:
            siblings = self.stack[-1].siblings
            index = siblings.index(node)
            siblings[index:] = [*map(RankNode, before), node, *map(RankNode, after)]

    def _choose(self, op: Op) -> Choice:
        """Return the way to run an op: each position of an op over lists has its own."""
        choices = []
        for call in positions(op):
            fixed = self._rule_choice(call)
            choices.append(self.chooser.follow(call, fixed) if fixed else self.chooser.choose(call))
        if len(choices) == 1:
            return choices[0]
        operands = {name: place for choice in choices for name, place in choice.operands.items()}
        results = {name: place for choice in choices for name, place in choice.results.items()}
        return Choice(operands, results)

    def _rule_choice(self, call: Op) -> Choice | None:
        """Return the way that a rule gives a call of one position, ``None`` if there is none."""
        of_table = self.lookups.choice(call, self.tensors, self.shares)
        return of_table or next(filter(None, (rule(call) for rule in self.rules)), None)

    def _on_local(self, op: Op, small: Op, choice: Choice, local: Mapping[str, Tensor]) -> Op:
        """Return a call on a rank's tensors: if possible that with the rank's dimensions."""
        if choice.has_rank_sizes:
            return small
        numbers = self.calls.with_numbers(op, choice.letter)
        is_small = all(
            local[tensor.name] is of_rank
            for tensor, of_rank in zip(op.inputs, small.inputs, strict=True)
        )
        if is_small and equal_numbers(numbers, op, small) and self._has_shapes(op, small, choice):
            return small
        return self.calls.on_local(op, numbers, local, choice.results)

    def _has_shapes(self, op: Op, small: Op, choice: Choice) -> bool:
        """Return whether results with the rank's dimensions are in the places of a choice."""
        return all(
            choice.results[tensor.name] == OWN
            or equal_shapes(
                of_rank.shape, self.calls.expected_shape(tensor, choice.results[tensor.name])
            )
            for tensor, of_rank in zip(op.outputs, small.outputs, strict=True)
        )

    def _record_results(self, op: Op, results: Mapping[str, Tensor], choice: Choice) -> None:
        """Record new tensors and writes, and convert pinned ones."""
        inputs_are_zero = all(tensor.name in self.tensors.zeros for tensor in op.inputs)
        is_zero = is_zeroing(op) or (is_view(op) and inputs_are_zero)
        for tensor in op.outputs:
            local = results.get(tensor.name, tensor)
            self.tensors.record(tensor, local, choice.results[tensor.name])
            if is_zero:
                self.tensors.zeros.add(tensor.name)
            if is_view(op) and len(op.inputs) == len(op.outputs) == 1:
                self.tensors.view_ops[tensor.name] = op
        for tensor in written_by(op):
            place = choice.results[tensor.name]
            self.tensors.record_write(tensor, place, is_zero=is_zeroing(op))
        self._settle_pins([t for t in op.outputs if t.name not in self.late_pins])

    def _settle_pins(self, tensors: Sequence[Tensor]) -> None:
        """Convert pinned tensors, once each."""
        for tensor in tensors:
            pin = self.layout.pins.get(tensor.name)
            if pin is not None and pin != self.tensors.places[tensor.name]:
                self.chooser.charge(tensor, pin)
                self.tensors.settle(tensor, pin)
            self.late_pins.discard(tensor.name)

    def _schedule_sums(self) -> None:
        """Add the sums that operands need to buckets, after the last access to their memory."""
        for total, buffer, factor in self.tensors.drain_sums():
            self.sum_count += 1
            self._bucket(self.last_access.get(buffer, -1)).add(total, factor)

    def _bucket(self, last_access: int) -> SumBucket:
        """Return the last bucket if it follows an access, or else a new one.

        A new one is before the outermost op that begins after the access.
        """
        if self.buckets and self.buckets[-1].position > last_access:
            return self.buckets[-1]
        for level in self.stack:
            if level.position > last_access:
                bucket = SumBucket(level.position, level.op)
                index = level.siblings.index(level.node)
                level.siblings.insert(index, RankNode(bucket=bucket))
                break
        else:
            bucket = SumBucket(self.position, None)
            self.top.append(RankNode(bucket=bucket))
        self.buckets.append(bucket)
        return bucket

    def _finish(self) -> None:
        """Complete tensors that outlast the step, if they must not remain terms of a sum."""
        declared = {d.tensor.name for d in self.graph.tensors}
        for name in live_out(self.graph):
            place = self.tensors.places.get(name)
            if place is None:
                continue
            tensor = self.graph.by_name[name]
            self.tensors.check_fresh(tensor)
            must_sum = name in declared or self.layout.sums_results or place.factor > 1
            if place.power != 1.0:
                self.chooser.charge(tensor, SAME)
                self.tensors.settle(tensor, SAME)
            elif place.kind == "partial" and must_sum:
                self.chooser.charge(tensor, SAME)
                self.tensors.materialize(tensor, SAME)
            elif place.outer != ONCE or (place.kind != "partial" and place.factor):
                block = replace(place, factor=0, outer=ONCE)
                self.chooser.charge(tensor, block)
                self.tensors.settle(tensor, block)
        self._schedule_sums()
        last = self.graph.ops[-1] if self.graph.ops else None
        if last is not None:
            self.top += map(RankNode, self._drain_ops(last))

    def _drain_ops(self, op: Op) -> list[Op]:
        """Return the newly written ops, with the thread, stream, module and phase of an op."""
        ops = self.tensors.drain_ops()
        self.new_op_count += len(ops)
        return [in_context(new, op) for new in ops]

    def _ops_of(self, node: RankNode) -> Iterator[Op]:
        """Yield the ops of a node."""
        if node.bucket is not None:
            yield from self._sums(node.bucket)
            return
        assert node.op is not None
        if not node.children:
            yield node.op
            return
        body = [op for child in node.children for op in self._ops_of(child)]
        small = node.small
        assert small is not None
        is_unchanged = len(body) == len(small.body) and all(
            a is b for a, b in zip(body, small.body, strict=True)
        )
        if is_unchanged:
            yield small
        elif node.op.is_annotation or node.op.is_autograd:
            yield replace(node.op, body=tuple(body))
        else:
            yield from self._composite(node.op, small, body)

    def _sums(self, bucket: SumBucket) -> Iterator[Op]:
        """Yield the collectives of a bucket: one for each type and kind of sum."""
        write = Writer(self.graph, self.graph.device, self.tensors.write.group)
        for (_, factor), tensors in bucket.tensors.items():
            write.all_reduce(tensors, reduction_of(factor))
        self.new_op_count += len(write.ops)
        for op in write.ops:
            if bucket.context is None:
                yield replace(op, phase="backward", origin=ORIGIN)
            else:
                yield in_context(op, bucket.context)

    def _composite(self, call: Op, small: Op, body: Sequence[Op]) -> Sequence[Op]:
        """Return a call with its rewritten body, or the body only if it is no longer this call."""
        has_same_ops = [new.name for new in body] == [child.name for child in small.body]
        call = replace(call, body=tuple(body))
        inside = {tensor.name for new in body for tensor in new.outputs}
        operands = {tensor.name for new in body for tensor in new.inputs} - inside
        if not has_same_ops or not operands <= {tensor.name for tensor in call.inputs}:
            return body
        call = replace(call, attributes={**call.attributes, **inner_sizes(small, body)})
        try:
            inferred = infer(replace(call, body=()), self.graph.schemas, self.shares.dims)
        except ShapeError:
            return body
        shapes = [tensor.shape for tensor in tensors_in(inferred)]
        return [call] if shapes == [tensor.shape for tensor in call.outputs] else body
