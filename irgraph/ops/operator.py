"""Declarations of operators: one for each name, found by the kind of op in ``kinds``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from msgspec import Struct

from irgraph.ir.torch_schemas.custom_ops import CustomOp
from irgraph.ops.call import Call
from irgraph.ops.patterns import Rule

Flops: TypeAlias = Callable[[Call], "int | None"]
"""Returns the floating-point operations of a call, ``None`` if there is no formula."""


def uncounted(call: Call) -> None:
    """Return that a product has no formula."""


def no_meaning(call: Call) -> None:
    """Return that no declaration states the meaning of a call."""


class Operator(Struct, frozen=True):
    """The declaration of an operator.

    Attributes:
        name: as in ``aten.mm``.
        rule: returns the meaning of a call.
        text: the declaration as text, empty if it depends on other arguments than tensors.
        flops: returns the floating-point operations of a call, as torch's ``FlopCounterMode``
            counts them; ``None`` if it is no product.
        custom: schema, reference and gradient of an op that torch lacks.
    """

    name: str
    rule: Rule
    text: str = ""
    flops: Flops | None = None
    custom: CustomOp | None = None


def operators(
    rule: Rule,
    names: str,
    *,
    library: str = "aten",
    in_place: bool = False,
    text: str = "",
    flops: Flops | None = None,
) -> dict[str, Operator]:
    """Return a declaration for each of some names, separated by blanks.

    ``in_place`` also declares the forms whose names end with ``_``.
    """
    names_list = names.split()
    if in_place:
        names_list += [f"{name}_" for name in names_list if not name.endswith("_")]
    full_names = (f"{library}.{name}" for name in names_list)
    return {name: Operator(name, rule, text, flops) for name in full_names}
