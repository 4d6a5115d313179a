"""Front ends: programs, traces and model files in, a graph out.

The package itself can be called: ``irgraph.capture(step)``.
"""

from irgraph.callable_module import make_callable

make_callable(__name__, "irgraph.capture.live")
