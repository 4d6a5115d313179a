"""The book of operators: the meaning of any call, cached by its signature."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from msgspec.structs import replace

from irgraph.facts import FactTable, fact
from irgraph.ir.compare import call_form
from irgraph.ir.op import Op, Result, Value
from irgraph.ir.tensor import Tensor
from irgraph.ir.torch_schemas.custom_ops import CustomOp
from irgraph.ops import kinds
from irgraph.ops import meaning as meanings
from irgraph.ops.call import Call, InvalidCallError
from irgraph.ops.kinds.elements import tagged
from irgraph.ops.kinds.lists import over_lists
from irgraph.ops.meaning import Meaning
from irgraph.ops.operator import CollectiveKind, Operator, Trait
from irgraph.ops.sizes import size_error
from irgraph.plugins import plugins

GROUP = "irgraph.ops"
"""Entry points of packages that declare operators: modules with ``OPERATORS``."""

MAX_SIGNATURES = 1 << 15
"""Maximum number of signatures whose meaning is cached."""


@cache
def shipped() -> Mapping[str, Operator]:
    """Return the operators that irgraph itself declares, by name."""
    declared: dict[str, Operator] = {}
    for module in iter_modules(kinds.__path__, f"{kinds.__name__}."):
        operators = import_module(module.name).OPERATORS
        twice = operators.keys() & declared.keys()
        if twice:
            raise ValueError(f"{module.name} declares {min(twice)} a second time")
        declared |= operators
    return declared


@cache
def book() -> Mapping[str, Operator]:
    """Return all declared operators by name."""
    declared = dict(shipped())
    for plugin in plugins(GROUP):
        operators = plugin.load().OPERATORS
        plugin.refuse_duplicates(operators, declared, "operator")
        declared |= operators
    return declared


@cache
def operator_of(name: str) -> Operator | None:
    """Return the declaration of an operator, ``None`` if there is none."""
    return book().get(name) or over_lists(name) or tagged(name)


@cache
def names_with(*traits: Trait) -> frozenset[str]:
    """Return the names of declared operators that have one of some traits."""
    chosen = frozenset(traits)
    operators = book().values()
    return frozenset(operator.name for operator in operators if operator.traits & chosen)


def collective_of(name: str) -> CollectiveKind | None:
    """Return the exchange between ranks that an op starts, ``None`` if it starts none."""
    operator = book().get(name)
    return operator.collective if operator is not None else None


def collectives(*kinds: CollectiveKind) -> tuple[str, ...]:
    """Return the names of declared ops that start some exchanges, by default any."""
    chosen = frozenset(kinds or CollectiveKind)
    operators = book().values()
    return tuple(operator.name for operator in operators if operator.collective in chosen)


def custom_ops() -> Mapping[str, CustomOp]:
    """Return the ops that torch lacks, by name, irgraph's own first."""
    declared = {name: operator.custom for name, operator in book().items()}
    return {name: custom for name, custom in declared.items() if custom is not None}


def package_ops() -> frozenset[str]:
    """Return the names of the ops among them that installed packages declare."""
    return frozenset(custom_ops()) - shipped().keys()


UNDECLARED = Meaning((), ())
"""Stands in caches for calls without a meaning."""

_MEANINGS = FactTable[Hashable, Meaning](MAX_SIGNATURES)

SLOT = "irgraph.ops.meaning"


def meaning_of(op: Op) -> Meaning | None:
    """Return the meaning of a leaf call, ``None`` if no declaration covers it.

    Calls whose sizes contradict their declaration have none.
    """
    meaning = fact(op, SLOT, _meaning)
    return None if meaning is UNDECLARED else meaning


def _meaning(op: Op) -> Meaning:
    operator = operator_of(op.name)
    if operator is None:
        return UNDECLARED
    key = signature(op)
    meaning = _MEANINGS.get(key)
    if meaning is None:
        call = Call(op)
        meaning = resolve(operator, call)
        if meaning is None or size_error(call, meaning):
            meaning = UNDECLARED
        _MEANINGS[key] = meaning
    return meaning


def factors_of(op: Op) -> tuple[int, ...]:
    """Return the positions of the factors of a product among its operands, empty if unknown.

    A product is linear in each factor, together with an operand that is added to it.
    """
    meaning = meaning_of(op)
    if meaning is None or not meaning.linear:
        return ()
    added = frozenset.intersection(*meaning.linear)
    factors: list[int] = []
    for operands in meaning.linear:
        factors += sorted(operands - added)
    return tuple(factors)


def resolve(operator: Operator, call: Call) -> Meaning | None:
    """Return the meaning that a declaration gives to a call, whether or not its sizes fit."""
    try:
        meaning = operator.rule(call)
    except (InvalidCallError, LookupError):  # an argument that is invalid or missing
        return None
    if meaning is None or len(meaning.operands) != len(call.inputs):
        return None
    if len(meaning.results) != len(call.outputs):
        return meaning
    # a written operand has the axes that it had
    names = [tensor.name for tensor in call.inputs]
    axes_by_name = dict(zip(names, meaning.operands, strict=True))
    written = [meanings.Result(axes_by_name[tensor.name]) for tensor in call.written]
    if not written:
        return meaning
    return replace(meaning, results=(*meaning.results, *written))


def signature(op: Op) -> Hashable:
    """Return a key that is equal for calls with equal meanings: shapes, types and arguments."""
    return call_form(op, _form)


def _form(value: Value | Result) -> Hashable:
    if isinstance(value, Tensor):
        return value.shape, value.dtype
    return type(value), value
