"""Wrong rewrites: a step with one op, operand or constant changed, or one write dropped."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

import torch
from msgspec.structs import replace

from irgraph.ir.edit import Edit
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value
from irgraph.ir.schema import Argument, Schema, bind, known_ops, resolve, schemas_of
from irgraph.ir.tensor import Tensor, row_major
from irgraph.ops.inference import ShapeError, torch_results
from irgraph.ops.live_out import is_label
from irgraph.ops.verify import verify

TRIES = 400
"""Changes that are tried until one fits: most candidates have other types."""


@dataclass(frozen=True)
class Mutant:
    """A step with one wrong op in it."""

    kind: str
    old: Op
    new: Op | None
    graph: Graph

    def __str__(self) -> str:
        told = "nothing" if self.new is None else _told(self.new)
        return f"{self.kind}: {_told(self.old)} -> {told}"


def _told(op: Op) -> str:
    names = ", ".join(_name(value) for value in op.operands)
    given = ", ".join(f"{name}={_name(value)}" for name, value in op.attributes.items())
    return f"{op.name}({names}; {given})"


def _name(value: Value) -> str:
    if isinstance(value, Tensor):
        return f"%{value.name}"
    return f"[{', '.join(map(_name, value))}]" if isinstance(value, tuple) else repr(value)


def mutants(graph: Graph, count: int, seed: int) -> Iterator[Mutant]:
    """Yield wrong rewrites that are sound programs of the same types; kinds take turns.

    A kind that a step has no place for, such as a write to drop, leaves its turns to the others.
    """
    source = Random(seed)
    kinds = deque(KINDS.items())
    while count and kinds:
        kind, change = kinds.popleft()
        found = _one(graph, kind, change, source)
        if found is not None:
            kinds.append((kind, change))
            count -= 1
            yield found


def _one(graph: Graph, kind: str, change: Change, source: Random) -> Mutant | None:
    leaves = [op for op in graph.leaves() if not is_label(op)]
    for _ in range(TRIES):
        old = source.choice(leaves)
        new = change(graph, old, source)
        if new is old or (new is not None and not _fits(new, old, graph)):
            continue
        made = replaced(graph, old, new)
        if not verify(made):
            return Mutant(kind, old, new, made)
    return None


def replaced(graph: Graph, old: Op, new: Op | None) -> Graph:
    """Return a graph with one op replaced or left out."""
    edit = Edit(graph)
    if new is not None:
        edit.insert(new, after=old)
    edit.remove(old)
    return edit.commit()


def _fits(new: Op, old: Op, graph: Graph) -> bool:
    """Tell whether torch takes a call and returns what the step goes on with."""
    if resolve(new, graph.schemas) is None:
        return False
    try:
        made, wanted = (_types(torch_results(op, graph.schemas, graph.dims)) for op in (new, old))
    except (ShapeError, AssertionError):
        return False
    return made == wanted


def _types(results: Sequence[Result]) -> list[object]:
    """Return types and strides; memory that is an operand's stays so."""
    return [
        _types(r)
        if isinstance(r, tuple)
        else r and (r.dtype, r.shape, r.strides or row_major(r.shape), r.buffer, r.offset)
        for r in results
    ]


Change = Callable[[Graph, Op, Random], Op | None]
"""Returns another op, none, or the same where there is nothing to change."""


def other_op(graph: Graph, op: Op, source: Random) -> Op | None:
    """Return an op of the same arguments."""
    schema = resolve(op, graph.schemas)
    names = [name for name in _alike().get(_call(schema), ()) if name != op.name] if schema else []
    return replace(op, name=source.choice(names)) if names else op


@cache
def _alike() -> dict[object, list[str]]:
    """Return by what a call takes and gives the ops that are called so, and run on the CPU."""
    found: dict[object, list[str]] = {}
    for name in sorted(known_ops()):
        for schema in schemas_of(name):
            plain = name.startswith("aten.") and not schema.composite and not schema.random
            if plain and _runs(schema):
                found.setdefault(_call(schema), []).append(name)
    return found


def _runs(schema: Schema) -> bool:
    name = schema.name.replace(".", "::") + (f".{schema.overload}" if schema.overload else "")
    try:
        return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"))
    except RuntimeError:
        return False


def _call(schema: Schema) -> object:
    arguments = [(a.type, a.written, a.keyword and a.name) for a in schema.arguments]
    return str((arguments, [(r.type, r.alias) for r in schema.returns]))


def other_operand(graph: Graph, op: Op, source: Random) -> Op | None:
    """Return an op with a tensor exchanged for another of its type, or with two swapped."""
    operands = list(_flat(op.operands))
    place = source.randrange(len(operands)) if operands else -1
    old = operands[place] if operands else None
    if not isinstance(old, Tensor):
        return op
    others = [t for t in _before(graph, op) if _type(t) == _type(old) and t.name != old.name]
    if not others:
        return op
    # what stands near is what a rewrite takes by mistake
    near = [t for t in operands if isinstance(t, Tensor) and t in others]
    new = source.choice(near if near and source.random() < 0.5 else others)
    written = {new.name if n == old.name else n for n in op.written}
    swapped = new in near and source.random() < 0.5
    pairs = {place: new, **({operands.index(new): old} if swapped else {})}
    count = iter(range(len(operands)))
    changed = replace(op, operands=_rebuilt(op.operands, pairs, count))
    if op.written:
        schema = resolve(op, graph.schemas)
        if schema is None:
            return op
        written = {
            t.name
            for a, v in bind(schema, changed)
            if a.written
            for t in _flat((v,))
            if isinstance(t, Tensor)
        }
    return replace(changed, written=frozenset(written))


def _rebuilt(
    values: Sequence[Value], pairs: dict[int, Tensor], count: Iterator[int]
) -> tuple[Value, ...]:
    return tuple(
        _rebuilt(v, pairs, count) if isinstance(v, tuple) else pairs.get(next(count), v)
        for v in values
    )


def _flat(values: Sequence[Value]) -> Iterator[Value]:
    for value in values:
        if isinstance(value, tuple):
            yield from _flat(value)
        else:
            yield value


def _type(tensor: Tensor) -> object:
    return tensor.dtype, tensor.shape, tensor.strides, tensor.device


def _before(graph: Graph, op: Op) -> list[Tensor]:
    found = [d.tensor for d in graph.tensors]
    for leaf in graph.leaves():
        if leaf is op:
            break
        found += leaf.outputs
    return found


def other_constant(graph: Graph, op: Op, source: Random) -> Op | None:
    """Return an op with a number changed, given or left at its default."""
    schema = resolve(op, graph.schemas)
    if schema is None:
        return op
    given = {a.name: v for a, v in bind(schema, op) if not a.is_tensor}
    known = [
        a
        for a in schema.arguments
        if not a.is_tensor and a.type.rstrip("?") not in UNTOUCHED and a.name not in WHEN
    ]
    if not known:
        return op
    argument = source.choice(known)
    old = given.get(argument.name, _default(argument))
    new = _changed(old, source)
    return op if new == old else replace(op, attributes={**op.attributes, argument.name: new})


UNTOUCHED = ("Device", "ScalarType", "Layout", "MemoryFormat", "Generator", "str")
"""Types of arguments that are no numbers."""

WHEN = ("non_blocking", "pin_memory")
"""Arguments that say when the host goes on, or where host memory lies: no value depends on them."""


def _default(argument: Argument) -> Value:
    try:
        return eval(argument.default or "None", {"True": True, "False": False, "Mean": 1})
    except NameError:
        return None


def _changed(value: Value, source: Random) -> Value:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return source.choice([value + 1, value - 1, 2 * value])
    if isinstance(value, float):
        return source.choice([2 * value, value / 2, 1.01 * value, -value]) or 0.1
    if isinstance(value, tuple) and value:
        place = source.randrange(len(value))
        return (*value[:place], _changed(value[place], source), *value[place + 1 :])
    return value


def dropped_write(graph: Graph, op: Op, source: Random) -> Op | None:
    """Leave out an op that only writes its operands."""
    return None if op.written and not op.outputs else op


KINDS: dict[str, Change] = {
    "op": other_op,
    "operand": other_operand,
    "constant": other_constant,
    "write": dropped_write,
}
