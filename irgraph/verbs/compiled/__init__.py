"""``compile``: regions of a step become calls of the code that Inductor generates."""

from irgraph.verbs.compiled.names import CALL, KERNEL
from irgraph.verbs.compiled.verb import Compiling, compile_regions

__all__ = ["CALL", "KERNEL", "Compiling", "compile_regions"]
