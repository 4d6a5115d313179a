"""``cast``: ops compute in another type; casts of operands and of results surround them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import Edit, free_name, map_tensors
from irgraph.ir.effects import effects, is_view, written_by
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import DType, Tensor, overlap
from irgraph.ops.book import signature
from irgraph.ops.inference import ShapeError, infer
from irgraph.verbs.insert import outermost_call
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.tf32 import check_tf32, from_tf32, is_in_tf32, to_tf32

FLOATS = ("f64", "f32", "f16", "bf16")
"""Types of tensors that ops may be cast between."""

TYPES = ("f64", "f32", "tf32", "f16", "bf16")
"""Types that ops may be cast to; ``tf32`` is a mode of matrix units, see ``irgraph.ir.tf32``."""

CAST = "aten._to_copy"


class Casting(Struct, frozen=True):
    """Result of a cast: the graph, the ops in their new type, and the number of casts around them.

    ``unneeded_casts`` counts casts that were not needed: back and forth, or already in the graph.
    ``unread`` are the original views that keep their type, because no op reads them in the new one.
    """

    graph: Graph
    ops: tuple[Op, ...]
    casts: int
    unneeded_casts: int
    unread: tuple[Op, ...] = ()


def cast(graph: Graph, ops: Sequence[Op], dtype: str) -> Casting:
    """Cast ops to the type ``dtype``, one of ``TYPES``.

    Ops that a composite op called are cast together with it. Adjacent casts cancel: a result in the
    new type is used directly, and one cast of an operand serves until its bytes are written. To
    ``tf32``, and from there to ``f32``, only products change: there are no casts. Check each op
    with ``check_cast`` first.
    """
    if dtype == "tf32":
        return Casting(*to_tf32(graph, ops), 0, 0)
    graph, f32_ops, ops = from_tf32(graph, ops)
    if not ops:
        return Casting(graph, f32_ops, 0, 0)
    units = {unit: unit for unit in (outermost_call(graph, op) for op in ops)}
    rewrite = _CastRewrite(graph, dtype, units)
    for unit in graph.walk():
        if unit in units:
            rewrite.cast_unit(unit)
        elif not unit.body:
            rewrite.visit_leaf(unit)
    casting = rewrite.finish()
    return replace(casting, ops=(*f32_ops, *casting.ops))


def check_cast(graph: Graph, op: Op, dtype: str) -> None:
    """Refuse an op that writes in place, or that would not have all its results in the new type."""
    if dtype == "tf32":
        check_tf32(graph, op)
        return
    unit = outermost_call(graph, op)
    if is_in_tf32(graph, unit, dtype):
        return
    for leaf in unit.leaves():
        if is_view(leaf) and not all(t.dense for t in leaf.inputs):
            raise RefusedError("it takes a view of a tensor with gaps", [(leaf, "")])
        writes = written_by(leaf)
        if writes:
            name = writes[0].name
            notes = [(leaf, f"{leaf.name} writes %{name}")]
            raise RefusedError(f"it writes %{name} in place, which fixes its type", notes)
        if not is_view(leaf):
            _check_leaf(graph, leaf, dtype)


def _check_leaf(graph: Graph, leaf: Op, dtype: str) -> None:
    expected = [dtype if t.dtype in FLOATS else t.dtype for t in leaf.outputs]
    if not leaf.outputs or dtype not in expected:
        raise RefusedError("it has no floating-point result", [(leaf, "")])
    if _result_types(graph, leaf, dtype) != expected:
        supported = [
            t
            for t in FLOATS
            if _result_types(graph, leaf, t)
            == [t if out.dtype in FLOATS else out.dtype for out in leaf.outputs]
        ]
        supported_text = ", ".join(supported) or "no other type than it has"
        reason = f"{leaf.name} does not compute in {dtype}; it takes {supported_text}"
        raise RefusedError(reason, [(leaf, "")])


def _result_types(graph: Graph, leaf: Op, dtype: str) -> list[str] | None:
    """Return the types of an op's results with operands of a type, ``None`` if torch refuses."""
    # torch is queried once for each kind of call: a model of 50,000 ops has some tens of them.
    types_by_call, key = _type_cache(graph), (dtype, signature(leaf))
    if key not in types_by_call:
        narrow = map_tensors(leaf, lambda t: replace(t, dtype=dtype) if t.dtype in FLOATS else t)
        try:
            results = infer(narrow, graph.schemas, graph.dims, graph.device)
        except (ShapeError, ImportError) as error:
            message = f"its result types in {dtype} are unknown: {error}"
            raise RefusedError(message, [(leaf, "")]) from None
        types_by_call[key] = [t.dtype for result in results for t in _tensors(result)]
    return types_by_call[key]


@cached_per_graph
def _type_cache(graph: Graph) -> dict[Hashable, list[str]]:
    """Return the cache of result types of a graph's ops in other types, filled on demand."""
    return {}


def _tensors(result: object) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple):
        for item in result:
            yield from _tensors(item)


def check_operand(graph: Graph, op: Op, operand: Tensor, dtype: str) -> None:
    """Refuse an op whose results would change their type if one operand had another."""
    if dtype not in FLOATS or operand.dtype not in FLOATS:
        raise RefusedError(f"one operand is cast between {', '.join(FLOATS)}", [(op, "")])
    if op.body:
        raise RefusedError("it calls others: cast the operand of one of those", [(op, "")])
    if not any(schema.pointwise for schema in schemas_of(op.name)) or written_by(op):
        reason = "only element-wise ops that write nothing in place take mixed types"
        raise RefusedError(reason, [(op, "")])
    narrow = map_tensors(op, lambda t: replace(t, dtype=dtype) if t.name == operand.name else t)
    try:
        results = infer(narrow, graph.schemas, graph.dims, graph.device)
    except (ShapeError, ImportError) as error:
        reason = f"it does not take %{operand.name} in {dtype} beside the others: {error}"
        raise RefusedError(reason, [(op, "")]) from None
    types = [t.dtype for result in results for t in _tensors(result)]
    if types != [t.dtype for t in op.outputs]:
        reason = (
            f"with %{operand.name} in {dtype} its results would be {', '.join(types) or 'none'}"
        )
        raise RefusedError(reason, [(op, "")])


def cast_operand(graph: Graph, operands: Sequence[tuple[Op, Tensor]], dtype: str) -> Casting:
    """Cast one operand of each op to the type ``dtype``, its other operands and results unchanged.

    Adjacent casts cancel, and one cast of an operand serves until its bytes are written. Check each
    with ``check_operand`` first.
    """
    rewrite, operand_by_op = (
        _CastRewrite(graph, dtype, {}),
        dict(operands),
    )
    for op in graph.walk():
        if op in operand_by_op:
            rewrite.cast_operand(op, operand_by_op[op])
        if not op.body:
            rewrite.visit_leaf(op)
    return rewrite.finish()


@dataclass
class _Converted:
    """Tensors that also exist in the new type, by their names."""

    pairs: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    names_by_buffer: dict[str, set[str]] = field(default_factory=dict)

    def __setitem__(self, name: str, pair: tuple[Tensor, Tensor]) -> None:
        self.pairs[name] = pair
        for tensor in pair:
            self.names_by_buffer.setdefault(tensor.buffer, set()).add(name)

    def forget(self, written: Tensor) -> None:
        """Forget tensors with bytes that are written."""
        for name in list(self.names_by_buffer.get(written.buffer, ())):
            if any(overlap(tensor, written) for tensor in self.pairs.get(name, ())):
                del self.pairs[name]
                self.names_by_buffer[written.buffer].discard(name)

    def clear(self) -> None:
        self.pairs.clear()
        self.names_by_buffer.clear()


@dataclass
class _CastRewrite:
    """One cast of several units, in launch order.

    ``converted_tensors`` are tensors that also exist in the new type, by their names; ``rewrites``
    pairs of a unit and the op that replaces it; ``cast_ops`` the casts that were added;
    ``candidates`` ops to remove if no op reads their results.
    """

    graph: Graph
    target: str
    units: Mapping[Op, Op]
    converted_tensors: _Converted = field(default_factory=_Converted)
    rewrites: list[tuple[Op, Op]] = field(default_factory=list)
    cast_ops: set[Op] = field(default_factory=set)
    candidates: list[Op] = field(default_factory=list)
    unneeded_casts: int = 0

    def __post_init__(self) -> None:
        self.edit = Edit(self.graph)
        self.names = set(self.graph.by_name)
        self.buffers = {t.buffer for t in self.graph.by_name.values()}
        self.declared = declared(self.graph)
        self.inside = {o for unit in self.units.values() for o in unit.walk()}
        self.uses = _uses(self.graph)

    def visit_leaf(self, leaf: Op) -> None:
        """Forget casts of tensors that an op writes."""
        if leaf in self.inside:
            return
        if effects(leaf, self.declared).barrier:
            self.converted_tensors.clear()
        for tensor in written_by(leaf):
            self.converted_tensors.forget(tensor)
        self._note_existing_cast(leaf)

    def _note_existing_cast(self, leaf: Op) -> None:
        """Record an existing cast: its operand exists in both types."""
        if leaf.name != CAST or not leaf.inputs or not leaf.outputs:
            return
        source, result = leaf.inputs[0], leaf.outputs[0]
        has_same_layout = result.device == source.device and result.strides == source.strides
        if not has_same_layout or not {source.dtype, result.dtype} <= set(FLOATS):
            return
        # Only a cast that widened can be undone without loss: its narrow source replaces the cast
        # of its wide result. One that narrowed has rounded already.
        if source.dtype == self.target and result.itemsize > source.itemsize:
            self.converted_tensors[result.name] = (result, source)
            self.candidates.append(leaf)
        elif result.dtype == self.target:
            self.converted_tensors[source.name] = self.converted_tensors.pairs.get(
                source.name, (source, result)
            )

    def cast_unit(self, unit: Op) -> None:
        """Cast the operands of a unit, the unit, and its results."""
        names = {t.name: self._converted_operand(t, unit) for t in self._outside_inputs(unit)}
        for leaf in unit.leaves():
            base = leaf.inputs[0] if is_view(leaf) else None
            for tensor in (t for t in leaf.outputs if t.dtype in FLOATS):
                names.setdefault(tensor.name, self._converted_result(tensor, base, names))
        new = map_tensors(unit, lambda t: names.get(t.name, t))
        self.rewrites.append((unit, new))
        if _only_views(unit):
            self.candidates.append(new)
        self.edit.insert(new, before=unit)
        self.edit.remove(unit)
        outside_names = self._names_outside(unit)
        for leaf in unit.leaves():
            self._restore_results(leaf, unit, names, outside_names)

    def cast_operand(self, op: Op, tensor: Tensor) -> None:
        """Cast one operand of an op to the new type."""
        converted = self._converted_operand(tensor, op)
        new = map_tensors(op, lambda t: converted if t.name == tensor.name else t)
        self.rewrites.append((op, new))
        self.edit.insert(new, before=op)
        self.edit.remove(op)

    def _outside_inputs(self, unit: Op) -> list[Tensor]:
        own_names = {t.name for leaf in unit.leaves() for t in leaf.outputs}
        inputs = {t.name: t for leaf in unit.leaves() for t in leaf.inputs}
        return [t for t in inputs.values() if t.name not in own_names and t.dtype in FLOATS]

    def _names_outside(self, unit: Op) -> set[str]:
        """Return the names of a unit's results, and of inner results that other ops use too."""
        inner_uses = Counter(t.name for leaf in unit.leaves() for t in leaf.inputs)
        own_names = dict.fromkeys(t.name for leaf in unit.leaves() for t in leaf.outputs)
        result_names = {t.name for t in unit.outputs}
        return result_names | {name for name in own_names if self.uses[name] > inner_uses[name]}

    def _converted_operand(self, tensor: Tensor, unit: Op) -> Tensor:
        if tensor.dtype == self.target:
            return tensor
        if tensor.name in self.converted_tensors.pairs:
            self.unneeded_casts += 1
            return self.converted_tensors.pairs[tensor.name][1]
        converted = self._narrow(tensor, offset=0)
        if not tensor.dense:
            converted = replace(converted, strides=self._copy_strides(tensor, converted, unit))
        self.converted_tensors[tensor.name] = (tensor, converted)
        self.edit.insert(self._new_cast(tensor, converted, self.target, unit), before=unit)
        return converted

    def _copy_strides(self, tensor: Tensor, converted: Tensor, unit: Op) -> tuple[int, ...] | None:
        """Return the strides of torch's copy of a tensor with gaps: in its order of axes."""
        cast = _cast(tensor, converted, self.target, unit)
        (result,) = infer(cast, self.graph.schemas, self.graph.dims, self.graph.device)
        assert isinstance(result, Tensor)
        return result.strides

    def _new_cast(self, old: Tensor, new: Tensor, dtype: str, unit: Op) -> Op:
        new_cast = _cast(old, new, dtype, unit)
        self.cast_ops.add(new_cast)
        self.candidates.append(new_cast)
        return new_cast

    def _converted_result(
        self, tensor: Tensor, base: Tensor | None, names: Mapping[str, Tensor]
    ) -> Tensor:
        """Return an op's result in the new type: a view of its converted operand, or new."""
        if tensor.dtype == self.target and (base is None or names.get(base.name, base) == base):
            return tensor
        if base is None:
            return self._narrow(tensor, offset=0)
        new = names.get(base.name, base)
        # Offsets count bytes: a view is as many elements into the narrow tensor as into the wide
        # one.
        step = (tensor.offset - base.offset) * new.itemsize // base.itemsize
        return replace(self._narrow(tensor, offset=new.offset + step), buffer=new.buffer)

    def _narrow(self, tensor: Tensor, offset: int) -> Tensor:
        """Return the tensor in the new type, in its own buffer."""
        name = free_name(f"{tensor.name}_{self.target}", self.names)
        buffer = free_name(f"{tensor.buffer}_{self.target}", self.buffers)
        self.names.add(name)
        self.buffers.add(buffer)
        return replace(tensor, name=name, dtype=self.target, buffer=buffer, offset=offset)

    def _restore_results(
        self, leaf: Op, unit: Op, names: Mapping[str, Tensor], outside_names: Collection[str]
    ) -> None:
        """Restore a unit's results in their old type for their other users.

        A view of a tensor that also exists in the old type is made again; any other result is cast
        back.
        """
        # A composite's inner results are the unit's own, unless the backward saved them by name.
        converted_results = [
            t for t in leaf.outputs if names.get(t.name, t) != t and t.name in outside_names
        ]
        own_names = {t.name for inner in unit.leaves() for t in inner.outputs} - set(outside_names)
        has_old_inputs = all(t.name not in own_names for t in leaf.inputs)
        if converted_results and is_view(leaf) and has_old_inputs:
            for tensor in converted_results:
                self.converted_tensors[tensor.name] = (tensor, names[tensor.name])
            self.edit.insert(leaf, after=unit)
            self.candidates.append(leaf)
            return
        for tensor in converted_results:
            converted = names[tensor.name]
            self.converted_tensors[tensor.name] = (tensor, converted)
            self.edit.insert(self._new_cast(converted, tensor, tensor.dtype, unit), after=unit)

    def finish(self) -> Casting:
        """Return the graph, without casts and views that no op reads any more."""
        graph = self.edit.commit()
        removable = self._unread_ops(graph)
        edit = Edit(graph)
        for op in removable:
            edit.remove(op)
        removed_ops = set(removable)
        original_names = {t.name for leaf in self.graph.leaves() for t in leaf.outputs}
        casts = [op for op in removable if op.name == CAST]
        self.unneeded_casts += sum(t.name in original_names for op in casts for t in op.outputs)
        ops = tuple(new for _, new in self.rewrites if new not in removed_ops)
        unread = tuple(unit for unit, new in self.rewrites if new in removed_ops)
        return Casting(
            edit.commit(), ops, len(self.cast_ops - removed_ops), self.unneeded_casts, unread
        )

    def _unread_ops(self, graph: Graph) -> list[Op]:
        """Return candidates that no op reads, though their results were read before or are new."""
        original_names = self.graph.by_name.keys()
        use_counts, present_ops = _uses(graph), set(graph.walk())
        makers: dict[str, list[Op]] = {}
        for op in self.candidates:
            for tensor in op.outputs:
                makers.setdefault(tensor.name, []).append(op)
        removed: dict[Op, Op] = {}
        queue = list(self.candidates)
        while queue:
            op = queue.pop()
            names = [t.name for t in op.outputs]
            is_unread = not any(use_counts[name] for name in names)
            # A result that no op read before the cast either (an unused output of the program) was
            # not made needless by it, and is kept.
            if (
                op in removed
                or not is_unread
                or any(n in original_names and not self.uses[n] for n in names)
            ):
                continue
            removed[op] = op
            inputs = (t for leaf in op.leaves() for t in leaf.inputs)
            for tensor in inputs if op in present_ops else ():
                use_counts[tensor.name] -= 1
                queue += () if use_counts[tensor.name] else makers.get(tensor.name, ())
        return list(removed.values())


def _uses(graph: Graph) -> Counter[str]:
    """Return the number of uses of each tensor by leaves and by the step's results."""
    counts = Counter(t.name for leaf in graph.leaves() for t in leaf.inputs)
    counts.update(t.name for t in graph.returned or ())
    return counts


def _only_views(unit: Op) -> bool:
    return all(map(is_view, unit.leaves()))


def _cast(old: Tensor, new: Tensor, dtype: str, unit: Op) -> Op:
    return Op(
        CAST,
        (old,),
        (new,),
        {"dtype": DType(dtype)},
        thread=unit.thread,
        stream=unit.stream,
        module=unit.module,
        phase=unit.phase,
    )
