"""``cast``: ops compute in another type; operands are cast before them, results after them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import Edit, free_name, map_tensors
from irgraph.ir.effects import effects, is_view, written_by
from irgraph.ir.graph import Graph, cached_per_graph
from irgraph.ir.op import Op
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import DType, Tensor, overlap
from irgraph.shapes import ShapeError, infer
from irgraph.verbs.insert import outermost_call
from irgraph.verbs.launch_order import declared
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.tf32 import check_tf32, from_tf32, is_in_tf32, to_tf32
from irgraph.verbs.torch_check import type_signature

FLOATS = ("f64", "f32", "f16", "bf16")
"""Types of tensors that ops may be cast between."""

TYPES = ("f64", "f32", "tf32", "f16", "bf16")
"""What ops may be cast to; ``tf32`` is how matrix units multiply f32, see ``irgraph.ir.tf32``."""

CAST = "aten._to_copy"


class Casting(Struct, frozen=True):
    """What a cast did: the graph, the ops in their new type, and how many casts stand around them.

    ``met`` counts casts that were not needed: back and forth, or one that was there already.
    ``unread`` are views, as they were, that stay in their type: nobody reads them in the new one.
    """

    graph: Graph
    ops: tuple[Op, ...]
    casts: int
    met: int
    unread: tuple[Op, ...] = ()


def cast(graph: Graph, ops: Sequence[Op], to: str) -> Casting:
    """Let ops compute in the type ``to``, one of ``TYPES``.

    What a composite op called is cast together with it. Casts that meet cancel: a result in the
    new type is handed on as it is, and one cast of an operand serves until its bytes are written.
    To ``tf32``, and from there to ``f32``, products change alone: there are no casts.
    Check each op with ``check_cast`` first.
    """
    if to == "tf32":
        return Casting(*to_tf32(graph, ops), 0, 0)
    graph, plain, ops = from_tf32(graph, ops)
    if not ops:
        return Casting(graph, plain, 0, 0)
    units = {id(unit): unit for unit in (outermost_call(graph, op) for op in ops)}
    work = _CastRewrite(graph, to, units)
    for unit in graph.walk():
        if id(unit) in units:
            work.unit(unit)
        elif not unit.body:
            work.passed(unit)
    done = work.done()
    return replace(done, ops=(*plain, *done.ops))


def check_cast(graph: Graph, op: Op, to: str) -> None:
    """Refuse an op that writes in place, or that does not give all its results in the new type."""
    if to == "tf32":
        check_tf32(graph, op)
        return
    unit = outermost_call(graph, op)
    if is_in_tf32(graph, unit, to):
        return
    for leaf in unit.leaves():
        if is_view(leaf) and not all(t.dense for t in leaf.inputs):
            raise RefusedError("it takes a view of a tensor with gaps", [(leaf, "")])
        written = written_by(leaf)
        if written:
            name = written[0].name
            at = [(leaf, f"{leaf.name} writes %{name}")]
            raise RefusedError(f"it writes %{name} in place, which fixes its type", at)
        if not is_view(leaf):
            _check_leaf(graph, leaf, to)


def _check_leaf(graph: Graph, leaf: Op, to: str) -> None:
    wanted = [to if t.dtype in FLOATS else t.dtype for t in leaf.outputs]
    if not leaf.outputs or to not in wanted:
        raise RefusedError("it has no floating-point result", [(leaf, "")])
    if _types(graph, leaf, to) != wanted:
        taken = [
            t
            for t in FLOATS
            if _types(graph, leaf, t)
            == [t if out.dtype in FLOATS else out.dtype for out in leaf.outputs]
        ]
        known = ", ".join(taken) or "no other type than it has"
        reason = f"{leaf.name} does not compute in {to}; it takes {known}"
        raise RefusedError(reason, [(leaf, "")])


def _types(graph: Graph, leaf: Op, to: str) -> list[str] | None:
    """Return the types of an op's results if its operands were of a type; nothing if refused."""
    # torch is asked once for each kind of call: a model of 50,000 ops has some tens of them.
    sizes = [str(size) for t in leaf.inputs for size in t.shape]
    known, key = _type_cache(graph), f"{to} {type_signature(leaf)} {sizes}"
    if key not in known:
        narrow = map_tensors(leaf, lambda t: replace(t, dtype=to) if t.dtype in FLOATS else t)
        try:
            found = infer(narrow, graph.schemas, graph.dims, graph.device)
        except (ShapeError, ImportError) as error:
            told = f"its result types in {to} are unknown: {error}"
            raise RefusedError(told, [(leaf, "")]) from None
        known[key] = [t.dtype for result in found for t in _tensors(result)]
    return known[key]


@cached_per_graph
def _type_cache(graph: Graph) -> dict[str, list[str]]:
    """Return what is known of a graph's ops in other types: filled as it is asked."""
    return {}


def _tensors(result: object) -> Iterator[Tensor]:
    if isinstance(result, Tensor):
        yield result
    elif isinstance(result, tuple):
        for item in result:
            yield from _tensors(item)


def check_operand(graph: Graph, op: Op, operand: Tensor, to: str) -> None:
    """Refuse an op whose results would change their type if one operand had another."""
    if to not in FLOATS or operand.dtype not in FLOATS:
        raise RefusedError(f"one operand is cast between {', '.join(FLOATS)}", [(op, "")])
    if op.body:
        raise RefusedError("it calls others: cast the operand of one of those", [(op, "")])
    if not any(schema.pointwise for schema in schemas_of(op.name)) or written_by(op):
        reason = "only element-wise ops that write nothing in place take mixed types"
        raise RefusedError(reason, [(op, "")])
    narrow = map_tensors(op, lambda t: replace(t, dtype=to) if t.name == operand.name else t)
    try:
        found = infer(narrow, graph.schemas, graph.dims, graph.device)
    except (ShapeError, ImportError) as error:
        reason = f"it does not take %{operand.name} in {to} beside the others: {error}"
        raise RefusedError(reason, [(op, "")]) from None
    types = [t.dtype for result in found for t in _tensors(result)]
    if types != [t.dtype for t in op.outputs]:
        reason = f"with %{operand.name} in {to} its results would be {', '.join(types) or 'none'}"
        raise RefusedError(reason, [(op, "")])


def cast_operand(graph: Graph, chosen: Sequence[tuple[Op, Tensor]], to: str) -> Casting:
    """Let ops take one operand each in the type ``to``, their other operands and results as is.

    Casts that meet cancel, and one cast of an operand serves until its bytes are written. Check
    each with ``check_operand`` first.
    """
    work, wanted = _CastRewrite(graph, to, {}), {id(op): operand for op, operand in chosen}
    for op in graph.walk():
        if id(op) in wanted:
            work.operand(op, wanted[id(op)])
        if not op.body:
            work.passed(op)
    return work.done()


@dataclass
class _Converted:
    """Tensors that exist in the new type too, by their names."""

    pairs: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    lying: dict[str, set[str]] = field(default_factory=dict)

    def __setitem__(self, name: str, pair: tuple[Tensor, Tensor]) -> None:
        self.pairs[name] = pair
        for tensor in pair:
            self.lying.setdefault(tensor.buffer, set()).add(name)

    def forget(self, written: Tensor) -> None:
        """Forget what has bytes that are written."""
        for name in list(self.lying.get(written.buffer, ())):
            if any(overlap(known, written) for known in self.pairs.get(name, ())):
                del self.pairs[name]
                self.lying[written.buffer].discard(name)

    def clear(self) -> None:
        self.pairs.clear()
        self.lying.clear()


@dataclass
class _CastRewrite:
    """One cast of several units, in launch order.

    ``ready`` are tensors that exist in the new type too, by their names; ``made`` what each unit
    became; ``new`` the casts that were added; ``loose`` ops that go where nobody reads them.
    """

    graph: Graph
    to: str
    units: Mapping[int, Op]
    ready: _Converted = field(default_factory=_Converted)
    made: list[tuple[Op, Op]] = field(default_factory=list)
    new: set[int] = field(default_factory=set)
    loose: list[Op] = field(default_factory=list)
    met: int = 0

    def __post_init__(self) -> None:
        self.edit = Edit(self.graph)
        self.names = set(self.graph.by_name)
        self.buffers = {t.buffer for t in self.graph.by_name.values()}
        self.declared = declared(self.graph)
        self.inside = {id(o) for unit in self.units.values() for o in unit.walk()}
        self.uses = _uses(self.graph)

    def passed(self, leaf: Op) -> None:
        """Forget casts of what an op writes."""
        if id(leaf) in self.inside:
            return
        if effects(leaf, self.declared).barrier:
            self.ready.clear()
        for tensor in written_by(leaf):
            self.ready.forget(tensor)
        self._met(leaf)

    def _met(self, leaf: Op) -> None:
        """Remember a cast that stands there already: what it casts exists in both types."""
        if leaf.name != CAST or not leaf.inputs or not leaf.outputs:
            return
        source, made = leaf.inputs[0], leaf.outputs[0]
        alike = made.device == source.device and made.strides == source.strides
        if not alike or not {source.dtype, made.dtype} <= set(FLOATS):
            return
        # Only a cast that widened can be undone without loss: the narrow source is what the wide
        # tensor would be cast back to. One that narrowed has rounded already.
        if source.dtype == self.to and made.itemsize > source.itemsize:
            self.ready[made.name] = (made, source)
            self.loose.append(leaf)
        elif made.dtype == self.to:
            self.ready[source.name] = self.ready.pairs.get(source.name, (source, made))

    def unit(self, unit: Op) -> None:
        """Cast what a unit takes, the unit, and what it gives."""
        names = {t.name: self._operand(t, unit) for t in self._taken_from_outside(unit)}
        for leaf in unit.leaves():
            base = leaf.inputs[0] if is_view(leaf) else None
            for tensor in (t for t in leaf.outputs if t.dtype in FLOATS):
                names.setdefault(tensor.name, self._result(tensor, base, names))
        new = map_tensors(unit, lambda t: names.get(t.name, t))
        self.made.append((unit, new))
        if _only_views(unit):
            self.loose.append(new)
        self.edit.insert(new, before=unit)
        self.edit.remove(unit)
        outside = self._used_outside(unit)
        for leaf in unit.leaves():
            self._results(leaf, unit, names, outside)

    def operand(self, op: Op, whole: Tensor) -> None:
        """Let an op take one operand in the new type."""
        made = self._operand(whole, op)
        new = map_tensors(op, lambda t: made if t.name == whole.name else t)
        self.made.append((op, new))
        self.edit.insert(new, before=op)
        self.edit.remove(op)

    def _taken_from_outside(self, unit: Op) -> list[Tensor]:
        own = {t.name for leaf in unit.leaves() for t in leaf.outputs}
        found = {t.name: t for leaf in unit.leaves() for t in leaf.inputs}
        return [t for t in found.values() if t.name not in own and t.dtype in FLOATS]

    def _used_outside(self, unit: Op) -> set[str]:
        """Return the names of a unit that other ops use too, and those of its results."""
        inside = Counter(t.name for leaf in unit.leaves() for t in leaf.inputs)
        made = dict.fromkeys(t.name for leaf in unit.leaves() for t in leaf.outputs)
        given = {t.name for t in unit.outputs}
        return given | {name for name in made if self.uses[name] > inside[name]}

    def _operand(self, tensor: Tensor, unit: Op) -> Tensor:
        if tensor.dtype == self.to:
            return tensor
        if tensor.name in self.ready.pairs:
            self.met += 1
            return self.ready.pairs[tensor.name][1]
        made = self._narrow(tensor, offset=0)
        if not tensor.dense:
            made = replace(made, strides=self._copied(tensor, made, unit))
        self.ready[tensor.name] = (tensor, made)
        self.edit.insert(self._cast(tensor, made, self.to, unit), before=unit)
        return made

    def _copied(self, tensor: Tensor, made: Tensor, unit: Op) -> tuple[int, ...] | None:
        """Return how torch lays out the copy of a tensor with gaps: in its order of axes."""
        cast = _cast(tensor, made, self.to, unit)
        (found,) = infer(cast, self.graph.schemas, self.graph.dims, self.graph.device)
        assert isinstance(found, Tensor)
        return found.strides

    def _cast(self, old: Tensor, new: Tensor, to: str, unit: Op) -> Op:
        made = _cast(old, new, to, unit)
        self.new.add(id(made))
        self.loose.append(made)
        return made

    def _result(self, tensor: Tensor, base: Tensor | None, names: Mapping[str, Tensor]) -> Tensor:
        """Return what an op gives in the new type: a view of what its operand became, or new."""
        if tensor.dtype == self.to and (base is None or names.get(base.name, base) == base):
            return tensor
        if base is None:
            return self._narrow(tensor, offset=0)
        new = names.get(base.name, base)
        # Offsets count bytes: a view lies as many elements into the narrow tensor as into the wide
        # one.
        step = (tensor.offset - base.offset) * new.itemsize // base.itemsize
        return replace(self._narrow(tensor, offset=new.offset + step), buffer=new.buffer)

    def _narrow(self, tensor: Tensor, offset: int) -> Tensor:
        """Return the tensor in the new type, in a buffer of its own."""
        name = free_name(f"{tensor.name}_{self.to}", self.names)
        buffer = free_name(f"{tensor.buffer}_{self.to}", self.buffers)
        self.names.add(name)
        self.buffers.add(buffer)
        return replace(tensor, name=name, dtype=self.to, buffer=buffer, offset=offset)

    def _results(
        self, leaf: Op, unit: Op, names: Mapping[str, Tensor], outside: Collection[str]
    ) -> None:
        """Give those who use a unit's results what they know.

        A view of what exists in the old type too is taken again; any other result is cast back.
        """
        # A composite's inner results are the unit's own, unless the backward saved them by name.
        wide = [t for t in leaf.outputs if names.get(t.name, t) != t and t.name in outside]
        own = {t.name for inner in unit.leaves() for t in inner.outputs} - set(outside)
        old = all(t.name not in own for t in leaf.inputs)
        if wide and is_view(leaf) and old:
            for tensor in wide:
                self.ready[tensor.name] = (tensor, names[tensor.name])
            self.edit.insert(leaf, after=unit)
            self.loose.append(leaf)
            return
        for tensor in wide:
            made = names[tensor.name]
            self.ready[tensor.name] = (tensor, made)
            self.edit.insert(self._cast(made, tensor, tensor.dtype, unit), after=unit)

    def done(self) -> Casting:
        """Return the graph, without casts and views that nobody reads any more."""
        graph = self.edit.commit()
        going = self._unread(graph)
        edit = Edit(graph)
        for op in going:
            edit.remove(op)
        gone = {id(op) for op in going}
        known = {t.name for leaf in self.graph.leaves() for t in leaf.outputs}
        met = [op for op in going if op.name == CAST]
        self.met += sum(t.name in known for op in met for t in op.outputs)
        ops = tuple(new for _, new in self.made if id(new) not in gone)
        unread = tuple(unit for unit, new in self.made if id(new) in gone)
        return Casting(edit.commit(), ops, len(self.new - gone), self.met, unread)

    def _unread(self, graph: Graph) -> list[Op]:
        """Return the loose ops that nobody reads, though what they give was read or is new."""
        old = self.graph.by_name.keys()
        left, standing = _uses(graph), {id(op) for op in graph.walk()}
        makers: dict[str, list[Op]] = {}
        for op in self.loose:
            for tensor in op.outputs:
                makers.setdefault(tensor.name, []).append(op)
        gone: dict[int, Op] = {}
        waiting = list(self.loose)
        while waiting:
            op = waiting.pop()
            names = [t.name for t in op.outputs]
            unread = not any(left[name] for name in names)
            # A result that nobody read before the cast either (an unused output of the program) was
            # not made needless by it, and stays.
            if id(op) in gone or not unread or any(n in old and not self.uses[n] for n in names):
                continue
            gone[id(op)] = op
            taken = (t for leaf in op.leaves() for t in leaf.inputs)
            for tensor in taken if id(op) in standing else ():
                left[tensor.name] -= 1
                waiting += () if left[tensor.name] else makers.get(tensor.name, ())
        return list(gone.values())


def _uses(graph: Graph) -> Counter[str]:
    """Return how often leaves take each tensor, and the step returns it."""
    found = Counter(t.name for leaf in graph.leaves() for t in leaf.inputs)
    found.update(t.name for t in graph.returned or ())
    return found


def _only_views(unit: Op) -> bool:
    return all(map(is_view, unit.leaves()))


def _cast(old: Tensor, new: Tensor, to: str, unit: Op) -> Op:
    return Op(
        CAST,
        (old,),
        (new,),
        {"dtype": DType(to)},
        thread=unit.thread,
        stream=unit.stream,
        module=unit.module,
        phase=unit.phase,
    )
