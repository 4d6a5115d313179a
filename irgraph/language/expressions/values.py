"""Values that patterns bind and expressions have: compared and shown."""

from __future__ import annotations

from irgraph.ir.dim import Dim
from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.text.printer import literal


def same_value(a: Value, b: Value) -> bool:
    """Compare values; unlike Python, ``true`` is not ``1``."""
    if isinstance(a, bool) != isinstance(b, bool):
        return False
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same_value, a, b))
    return a is b or a == b


def same(a: Value, b: Value) -> bool:
    """Return whether two bound values are the same; tensors are by name."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.name == b.name
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return same_value(a, b)


def spell(value: Value | Op) -> str:
    """Return a value as messages show it; sizes as the numbers that they are now."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(spell, value))}]"
    if isinstance(value, Op):
        return value.name
    return str(int(value)) if isinstance(value, Dim) else literal(value)


def counted(number: int, what: str, plural: str = "s") -> str:
    """Return ``1 match`` or ``2 matches``."""
    return f"{number} {what}{'' if number == 1 else plural}"
