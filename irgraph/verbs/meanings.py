"""Compares ops with their replacement by value: both run on small drawn tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Mapping, Sequence
from importlib.util import find_spec

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.edit import map_tensors
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op, Result, Value
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.custom_ops import custom_ops
from irgraph.ops.book import meaning_of, names_with
from irgraph.ops.operator import Trait
from irgraph.verbs.drawn_pair import UncomparableError
from irgraph.verbs.insert import communicates
from irgraph.verbs.small_exchange import OpExchange, SmallExchange, inputs_of

MAX_COMPARISONS = 1 << 12
"""Maximum number of comparisons that are cached."""

NO_TORCH = "torch is not installed"


class MeaningComparison(Struct, frozen=True):
    """The outcome of a comparison by values.

    Attributes:
        unknown: why nothing was compared, ``""`` if it was.
        result: the first result that differs, if any does.
        difference: by how much it differs; ``""`` if none does.
        rounding: the ops that round inside, with their tolerance; ``""`` if there are none.
    """

    unknown: str = ""
    result: str = ""
    difference: str = ""
    rounding: str = ""

    @property
    def same(self) -> bool:
        """Whether all results were compared, and are equal."""
        return not self.unknown and not self.difference


def compare_insertion(
    graph: Graph,
    neighbours: Sequence[Op],
    new: Sequence[Op],
    swaps: Sequence[tuple[Tensor, Tensor]],
) -> MeaningComparison:
    """Return how tensors that replace others after an insertion differ from them.

    If they replace none, nothing reads the results of new ops. Collectives are inserted for their
    writes.
    """
    pairs = tuple((a.name, b.name) for a, b in swaps)
    exchange = OpExchange(tuple(neighbours), tuple(new), pairs=pairs)
    if swaps:
        return compare_meanings(graph, exchange)
    return MeaningComparison(_unknown(OpExchange((), exchange.new)))


def compare_meanings(graph: Graph, exchange: OpExchange) -> MeaningComparison:
    """Return how the results of an exchange's new ops differ from those of its old ones.

    Exchanges that differ in names alone are compared once.
    """
    unknown = _unknown(exchange)
    if unknown:
        return MeaningComparison(unknown)
    exchange = _with_lookups(graph, exchange)
    key = (_form_of(exchange), graph.schemas, tuple(graph.dims.items()))
    cached = _COMPARISONS.get(key)
    if cached is not None and not cached.difference:
        return cached
    names: dict[str, str] = {}
    plain = _renamed(exchange, names)
    if cached is None:
        cached = _COMPARISONS[key] = _compare(graph, plain)
        if len(_COMPARISONS) > MAX_COMPARISONS:
            _COMPARISONS.popitem(last=False)
    if not cached.difference:
        return cached
    original = next(name for name, plain_name in names.items() if plain_name == cached.result)
    return replace(cached, result=original)


_COMPARISONS: OrderedDict[object, MeaningComparison] = OrderedDict()


def _unknown(exchange: OpExchange) -> str:
    """Return why the ops cannot be compared at any size, ``""`` if they can."""
    for op in (leaf for outer in (*exchange.old, *exchange.new) for leaf in outer.leaves()):
        if communicates(op):
            return f"{op.name} communicates with other ranks"
        if _draws(op):
            return f"{op.name} draws random numbers"
    return "" if find_spec("torch") else NO_TORCH


def _draws(op: Op) -> bool:
    """Return whether an op draws random numbers; attention without dropout draws none."""
    if not any(schema.random for schema in schemas_of(op.name)):
        return False
    meaning = meaning_of(op)
    return meaning is None or meaning.random


def _with_lookups(graph: Graph, exchange: OpExchange) -> OpExchange:
    """Return an exchange with the lookups whose saved positions its ops read as their context."""
    positions = [t for t in inputs_of(exchange.old) if t.dtype.startswith("i")]
    names = names_with(Trait.BAGS)
    lookups = dict.fromkeys(
        leaf
        for tensor in positions
        for _, leaf in graph.touching.get(tensor.buffer, ())
        if leaf.name in names and tensor in leaf.outputs[1:]
    )
    return replace(exchange, context=tuple(lookups))


def _renamed(exchange: OpExchange, names: dict[str, str]) -> OpExchange:
    """Return an exchange with names by position, so that equal exchanges have equal names.

    ``names`` receives the new names by the original ones.
    """
    buffers: dict[str, str] = {}

    def rename(tensor: Tensor) -> Tensor:
        name = names.setdefault(tensor.name, f"t{len(names)}")
        buffer = buffers.setdefault(tensor.buffer, f"b{len(buffers)}")
        return replace(tensor, name=name, buffer=buffer)

    def renamed(op: Op) -> Op:
        plain = Op(op.name, op.operands, op.results, op.attributes, op.written, body=op.body)
        return map_tensors(plain, rename)

    context, old, new = (
        tuple(map(renamed, ops)) for ops in (exchange.context, exchange.old, exchange.new)
    )
    return OpExchange(old, new, context, tuple((names[a], names[b]) for a, b in exchange.pairs))


def kind_of(ops: Sequence[Op]) -> Hashable:
    """Return a key of ops that differ in names alone."""
    return _form_of(OpExchange(tuple(ops), ()))


def _form_of(exchange: OpExchange) -> Hashable:
    """Return a key of exchanges that differ in names alone."""
    form = _Form()
    parts = (exchange.context, exchange.old, exchange.new)
    calls = tuple(tuple(map(form.op, ops)) for ops in parts)
    return calls, tuple((form.name(a), form.name(b)) for a, b in exchange.pairs)


class _Form:
    """Keys of ops and values, with names and buffers numbered in the order of their use."""

    def __init__(self) -> None:
        self._names: dict[str, int] = {}
        self._buffers: dict[str, int] = {}

    def name(self, name: str) -> int:
        """Return the number of a tensor's name."""
        return self._names.setdefault(name, len(self._names))

    def op(self, op: Op) -> Hashable:
        """Return the key of an op and all ops below it."""
        operands, results = self.value(op.operands), self.value(op.results)
        attributes = tuple((name, self.value(value)) for name, value in op.attributes.items())
        written = tuple(sorted(map(self.name, op.written))) if op.written else ()
        body = tuple(map(self.op, op.body)) if op.body else ()
        return op.name, operands, results, attributes, written, body

    def value(self, value: Value | Result) -> Hashable:
        """Return the key of a value: sizes with their expressions, numbers with their types."""
        if isinstance(value, tuple):
            return tuple(map(self.value, value))
        if not isinstance(value, Tensor):
            return repr(value)
        buffer = self._buffers.setdefault(value.buffer, len(self._buffers))
        layout = (*value.shape, *(value.strides or ()), value.offset)
        terms = tuple(getattr(size, "terms", None) for size in layout)
        kind = (value.dtype, value.device, value.shape, value.strides, value.offset)
        return self.name(value.name), buffer, kind, terms


def _compare(graph: Graph, exchange: OpExchange) -> MeaningComparison:
    """Compare an exchange at small sizes."""
    declared = custom_ops()
    names = dict.fromkeys(
        leaf.name for op in (*exchange.old, *exchange.new) for leaf in op.leaves()
    )
    tolerances = {name: declared[name].tolerance for name in names if name in declared}
    rounding = {name: tolerance for name, tolerance in tolerances.items() if tolerance}
    tolerance = sum(rounding.values())
    try:
        result, difference = SmallExchange(graph, exchange).pair().difference(tolerance)
    except UncomparableError as error:
        return MeaningComparison(unknown=str(error))
    return MeaningComparison("", result, difference, _rounding_text(rounding))


def _rounding_text(tolerances: Mapping[str, float]) -> str:
    names = " and ".join(tolerances)
    return f"the rounding of {names} ({sum(tolerances.values()):.1g})" if tolerances else ""
