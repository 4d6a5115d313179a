"""Reading and writing ``model.ir``, and the diagnostics that every front end shares."""

from irgraph.text.diagnostics import Diagnostic, IrgraphError, Place, fail, near
from irgraph.text.parser import parse
from irgraph.text.printer import print_graph, print_head, print_op

__all__ = [
    "Diagnostic",
    "IrgraphError",
    "Place",
    "fail",
    "near",
    "parse",
    "print_graph",
    "print_head",
    "print_op",
]
