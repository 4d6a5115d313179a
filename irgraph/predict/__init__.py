"""Predictions: of one step, of a pair and its difference, of many variants; targets of scripts.

The package itself can be called: ``irgraph.predict(graph, device="v100")``.
"""

from irgraph.callable_module import make_callable

make_callable(__name__, "irgraph.predict.prediction")
