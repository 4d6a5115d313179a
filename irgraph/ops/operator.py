"""Declarations of operators: one for each name, found by the kind of op in ``kinds``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from irgraph.ir.torch_schemas.custom_ops import CustomOp
from irgraph.ops.call import Call
from irgraph.ops.patterns import Rule

Flops: TypeAlias = Callable[[Call], "int | None"]
"""Returns the floating-point operations of a call, ``None`` if there is no formula."""


def uncounted(call: Call) -> None:
    """Return that a product has no formula."""


def no_meaning(call: Call) -> None:
    """Return that no declaration states the meaning of a call."""


class Trait(StrEnum):
    """A property of an op by which other packages choose it; the value is its description."""

    LOOKUP = "looks up rows; its first operands are tables and indices, or lists of both"
    ROWS = "looks up single rows of a table"
    BAGS = "looks up bags of rows of one table"
    BAGS_GRADIENT = "computes the gradient of a table from the gradient of its bags"
    BATCHED_BAGS = "looks up bags of several tables, or computes their gradients or updates"
    HOST_READ = "reads a value of a device on the host"
    WAIT = "waits for a collective"
    BARRIER = "makes the host wait for other processes"
    INDEXED = "reads or writes elements at lists of indices"
    LAYER = "multiplies rows by a matrix, as a linear layer does"
    DATA = "requires the bytes or the layout of a tensor, which torch's meta device lacks"
    SLICE = "slices an axis"
    COPY = "copies a tensor to another type or memory"
    DUPLICATE = "returns the elements of its operand, perhaps in another type, layout or memory"
    COPY_KERNEL = "runs the kernel that copies elements, if it runs any"
    ROUNDING = "computes a function whose results are rarely exact"
    NONNEGATIVE = "requires operands that are not negative"
    VIEW_OR_COPY = "returns a view if one exists, or else a copy"
    SPARSE_PART = "returns the indices or the values of a sparse tensor"
    SPARSE_MAKER = "makes a sparse tensor from indices and values"
    BATCH_NORM = "normalises channels by statistics of all samples, or computes its gradients"
    SCAN = "adds up all elements before each along an axis"
    CONTIGUOUS = "requires tensors that lie in memory in one order, without gaps"
    RESERVE = "saves bytes of its own format for its gradient, as many as the element type requires"
    CLASS_LOSS = "computes a loss over classes and the total weight of its samples"


class CollectiveKind(StrEnum):
    """A kind of exchange between ranks; several ops may start it."""

    ALL_REDUCE = "all_reduce"
    ALL_TO_ALL = "all_to_all"
    ALL_GATHER = "all_gather"
    """Into a list of tensors."""
    ALL_GATHER_BASE = "all_gather_base"
    """Into one tensor."""
    REDUCE_SCATTER = "reduce_scatter"
    BROADCAST = "broadcast"
    REDUCE = "reduce"
    BARRIER = "barrier"
    MESSAGE = "message"
    """From one rank to another."""


class Operator(Struct, frozen=True):
    """The declaration of an operator.

    Attributes:
        name: as in ``aten.mm``.
        rule: returns the meaning of a call.
        text: the declaration as text, empty if it depends on other arguments than tensors.
        flops: returns the floating-point operations of a call, as torch's ``FlopCounterMode``
            counts them; ``None`` if it is no product.
        custom: schema, reference and gradient of an op that torch lacks.
        traits: its properties by which other packages choose it.
        collective: the exchange between ranks that it starts, if any.
    """

    name: str
    rule: Rule
    text: str = ""
    flops: Flops | None = None
    custom: CustomOp | None = None
    traits: frozenset[Trait] = frozenset()
    collective: CollectiveKind | None = None


def operators(
    rule: Rule,
    names: str,
    *,
    library: str = "aten",
    in_place: bool = False,
    text: str = "",
    flops: Flops | None = None,
    traits: Collection[Trait] = (),
    collective: CollectiveKind | None = None,
) -> dict[str, Operator]:
    """Return a declaration for each of some names, separated by blanks.

    ``in_place`` also declares the forms whose names end with ``_``.
    """
    names_list = names.split()
    if in_place:
        names_list += [f"{name}_" for name in names_list if not name.endswith("_")]
    full_names = (f"{library}.{name}" for name in names_list)
    operator = Operator("", rule, text, flops, traits=frozenset(traits), collective=collective)
    return {name: replace(operator, name=name) for name in full_names}
