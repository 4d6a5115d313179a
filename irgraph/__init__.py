"""Predict and transform PyTorch training steps without running them.

The functions here are what the commands of the same names do; heavy imports wait until a
function runs.

    graph = irgraph.load("model.ir")
    fused = irgraph.rewrite(graph, "fuse-embedding(least=4)").graph
    irgraph.predict(fused, device="v100").step_time   # microseconds
"""

import irgraph.capture as _package  # noqa: F401  (first: the function takes its name)
from irgraph.api import (
    capture,
    compare,
    load,
    lower,
    parse,
    predict,
    print_graph,
    read_graph,
    rewrite,
    save,
    verified,
)
from irgraph.text.diagnostics import IrgraphError

__all__ = [
    "IrgraphError",
    "capture",
    "compare",
    "load",
    "lower",
    "parse",
    "predict",
    "print_graph",
    "read_graph",
    "rewrite",
    "save",
    "verified",
]
