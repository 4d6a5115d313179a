"""Reader and printer of ``model.ir``, and the diagnostics that all front ends share.

``parse`` and the printers are imported when first used: they need the grammar's library, and
diagnostics, which everything needs, do not.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan, fail, suggestion

if TYPE_CHECKING:
    from irgraph.text.printer import print_graph, print_op
    from irgraph.text.read import parse

__all__ = [
    "Diagnostic",
    "IrgraphError",
    "SourceSpan",
    "fail",
    "parse",
    "print_graph",
    "print_op",
    "suggestion",
]

_LATE = {
    "parse": "irgraph.text.read",
    "print_graph": "irgraph.text.printer",
    "print_op": "irgraph.text.printer",
}


def __getattr__(name: str) -> Any:  # noqa: ANN401  (any of the names above)
    """Import the module of a name on first use."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
