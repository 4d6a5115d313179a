"""Compares ops with their replacement by value: both run on small drawn tensors."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from irgraph.facts import FactTable, fact
from irgraph.ir.compare import call_form
from irgraph.ir.edit import map_tensors
from irgraph.ir.graph import Graph, cached_per_graph
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
    if not cached.difference:
        return cached
    original = next(name for name, plain_name in names.items() if plain_name == cached.result)
    return replace(cached, result=original)


_COMPARISONS = FactTable[object, MeaningComparison](MAX_COMPARISONS)


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
    lookup_by_position = _lookup_by_position(graph)
    positions = [t.name for t in inputs_of(exchange.old) if t.dtype.startswith("i")]
    lookups = [lookup_by_position[name] for name in positions if name in lookup_by_position]
    return replace(exchange, context=tuple(dict.fromkeys(lookups)))


@cached_per_graph
def _lookup_by_position(graph: Graph) -> Mapping[str, Op]:
    """Return the lookup that saved each tensor of positions for its gradient, by name."""
    names = names_with(Trait.BAGS)
    lookups = (leaf for leaf in graph.leaves() if leaf.name in names)
    return {tensor.name: lookup for lookup in lookups for tensor in lookup.outputs[1:]}


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
    parts = (exchange.context, exchange.old, exchange.new)
    forms = [fact(op, FORM_SLOT, _OpForm) for ops in parts for op in ops]
    pairs = chain.from_iterable(exchange.pairs)
    names = _numbers(chain(chain.from_iterable(form.names for form in forms), pairs))
    buffers = _numbers(chain.from_iterable(form.buffers for form in forms))
    calls = tuple([form.call for form in forms])
    return calls, tuple(map(len, parts)), names, buffers


def _numbers(names: Iterable[str]) -> tuple[int, ...]:
    """Return for each name the position of its first use among different names."""
    numbers: dict[str, int] = {}
    return tuple([numbers.setdefault(name, len(numbers)) for name in names])


FORM_SLOT = "irgraph.verbs.meanings"
"""Slot of an op that caches its form."""


class _OpForm:
    """The form of an op: its names and buffers in the order of their use, and all the rest.

    Attributes:
        call: key of the op and all ops below it, in which names and buffers are positions.
    """

    def __init__(self, op: Op) -> None:
        self._names: dict[str, int] = {}
        self._buffers: dict[str, int] = {}
        self.call = call_form(op, self._value)
        self.names, self.buffers = tuple(self._names), tuple(self._buffers)

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _value(self, value: Value | Result) -> Hashable:
        """Return the key of a value: sizes with their expressions, numbers with their types."""
        if not isinstance(value, Tensor):
            return repr(value)
        buffer = self._buffers.setdefault(value.buffer, len(self._buffers))
        layout = (*value.shape, *(value.strides or ()), value.offset)
        terms = tuple([getattr(size, "terms", None) for size in layout])
        kind = (value.dtype, value.device, value.shape, value.strides, value.offset)
        return self._name(value.name), buffer, kind, terms


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
