"""Predictions: one step, two to be subtracted, many variants; what scripts ask of a device.

The package itself can be called: ``irgraph.predict(graph, device="v100")``.
"""

from irgraph.callable_module import make_callable

make_callable(__name__, "irgraph.predict.prediction")
