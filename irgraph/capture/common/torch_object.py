"""Type alias for objects of torch, which is imported only by functions that use it."""

from __future__ import annotations

from typing import Any, TypeAlias

Torch: TypeAlias = Any
"""An object of torch, such as a tensor, a module or an operator, or a call's argument or result."""
