"""Values that patterns bind and expressions have: compared and shown."""

from __future__ import annotations

from irgraph.ir.dim import Dim
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.text.printer import literal


def equal_values(a: Value, b: Value) -> bool:
    """Return whether two values are equal; unlike in Python, ``true`` is not ``1``."""
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(equal_values, a, b))
    return a is b or a == b


def equal_bindings(a: Value, b: Value) -> bool:
    """Return whether two bound values are equal; tensors are compared by name."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.name == b.name
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(equal_bindings, a, b))
    return equal_values(a, b)


def spell(value: Value | Op) -> str:
    """Return a value as messages show it; symbolic sizes as their present numbers."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(spell, value))}]"
    if isinstance(value, Op):
        return value.name
    return str(int(value)) if isinstance(value, Dim) else literal(value)


def format_count(number: int, noun: str, plural: str = "s") -> str:
    """Return ``1 match`` or ``2 matches``."""
    return f"{number} {noun}{'' if number == 1 else plural}"
