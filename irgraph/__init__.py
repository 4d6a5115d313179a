"""Predict and transform PyTorch training steps without running them.

Names are imported when they are first used, so that ``import irgraph`` stays quick.

    graph = irgraph.load("model.ir")
    fused = irgraph.rewrite(graph, "fuse-embedding(least=4)").graph
    irgraph.predict(fused, device="v100").step_time   # microseconds
"""

import warnings
from importlib import import_module
from typing import TYPE_CHECKING

from irgraph.providers import CUSTOM_OPS, register

register(CUSTOM_OPS, lambda: import_module("irgraph.ops.book"))

if TYPE_CHECKING:
    from irgraph.analyze import Analysis
    from irgraph.analyze.figures import StepFigures
    from irgraph.api import (
        analyze_traces,
        device,
        devices,
        hosts,
        load,
        load_pass,
        passes,
        read_graph,
        replay_trace,
        rewrite,
        run_script,
        save,
        verified,
        warm_up,
    )
    from irgraph.backend import DeviceFacts
    from irgraph.capture.common.result import Capture
    from irgraph.capture.live import Capturing, capture, capture_file, capturing
    from irgraph.capture.lower import lower_file as lower
    from irgraph.diagnostics import Diagnostic, IrgraphError, SourceSpan
    from irgraph.exchange.chakra import write_chakra
    from irgraph.execute import Compared, Comparison, Coverage
    from irgraph.execute import compare as check
    from irgraph.ir.cost import Kernel, PowerDraw, Priced
    from irgraph.ir.graph import Declared, Device, Graph, Stream
    from irgraph.ir.op import Op
    from irgraph.ir.quantity import Quantity
    from irgraph.ir.tensor import Tensor
    from irgraph.language import Entry, Pass, Report, Script, load_script
    from irgraph.language.clauses import Call, Parameter
    from irgraph.manage.advice import Advice, PassGain, advise
    from irgraph.manage.space import Instance, Space, space
    from irgraph.manage.stage import Applied, Outcome, Stage
    from irgraph.manage.watch import Watcher
    from irgraph.overheads import HostTable
    from irgraph.pages.write import write_report
    from irgraph.predict.difference import Difference, diff
    from irgraph.predict.options import PredictOptions
    from irgraph.predict.options import resized as with_dims
    from irgraph.predict.pair import predict_pair
    from irgraph.predict.prediction import Prediction, predict
    from irgraph.predict.ranks import predict_ranks
    from irgraph.predict.variants import Variants, predict_variants
    from irgraph.replay.replay import Replayed
    from irgraph.report.plots import Plot
    from irgraph.report.structure import Change
    from irgraph.schedule.accounting import Accounting
    from irgraph.schedule.critical_path import CriticalPath
    from irgraph.schedule.intervals import Interval
    from irgraph.schedule.joint_tasks import Meeting
    from irgraph.schedule.memory.caching_allocator import reserved_memory
    from irgraph.schedule.memory.peak import Memory, peak_memory
    from irgraph.schedule.perfetto import write_timeline
    from irgraph.schedule.ranks import Ranks
    from irgraph.schedule.timeline import Resource, Timeline
    from irgraph.text import parse, print_graph
    from irgraph.tuning.axes import Axis
    from irgraph.tuning.build import search_space
    from irgraph.tuning.figures import PointFigures
    from irgraph.tuning.space import SearchSpace
    from irgraph.tuning.study import Study, Suggestion, Trial

__version__ = "0.1.0"

__all__ = [
    "Accounting",
    "Advice",
    "Analysis",
    "Applied",
    "Axis",
    "Call",
    "Capture",
    "Capturing",
    "Change",
    "Compared",
    "Comparison",
    "Coverage",
    "CriticalPath",
    "Declared",
    "Device",
    "DeviceFacts",
    "Diagnostic",
    "Difference",
    "Entry",
    "Graph",
    "HostTable",
    "Instance",
    "Interval",
    "IrgraphError",
    "Kernel",
    "Meeting",
    "Memory",
    "Op",
    "Outcome",
    "Parameter",
    "Pass",
    "PassGain",
    "Plot",
    "PointFigures",
    "PowerDraw",
    "PredictOptions",
    "Prediction",
    "Priced",
    "Quantity",
    "Ranks",
    "Replayed",
    "Report",
    "Resource",
    "Script",
    "SearchSpace",
    "SourceSpan",
    "Space",
    "Stage",
    "StepFigures",
    "Stream",
    "Study",
    "Suggestion",
    "Tensor",
    "Timeline",
    "Trial",
    "Variants",
    "Watcher",
    "__version__",
    "advise",
    "analyze_traces",
    "capture",
    "capture_file",
    "capturing",
    "check",
    "device",
    "devices",
    "diff",
    "hosts",
    "load",
    "load_pass",
    "load_script",
    "lower",
    "parse",
    "passes",
    "peak_memory",
    "predict",
    "predict_pair",
    "predict_ranks",
    "predict_variants",
    "print_graph",
    "read_graph",
    "replay_trace",
    "reserved_memory",
    "rewrite",
    "run_script",
    "save",
    "search_space",
    "space",
    "verified",
    "warm_up",
    "with_dims",
    "write_chakra",
    "write_report",
    "write_timeline",
]

_HOMES = {
    "irgraph.analyze": ("Analysis",),
    "irgraph.analyze.figures": ("StepFigures",),
    "irgraph.api": (
        "analyze_traces", "device", "devices", "hosts", "load", "load_pass", "passes",
        "read_graph", "replay_trace", "rewrite", "run_script", "save", "verified",
        "warm_up",
    ),
    "irgraph.backend": ("DeviceFacts",),
    "irgraph.capture.common.result": ("Capture",),
    "irgraph.capture.lower": ("lower=lower_file",),
    "irgraph.capture.live": ("Capturing", "capture", "capture_file", "capturing"),
    "irgraph.diagnostics": ("Diagnostic", "IrgraphError", "SourceSpan"),
    "irgraph.exchange.chakra": ("write_chakra",),
    "irgraph.execute": ("Compared", "Comparison", "Coverage", "check=compare"),
    "irgraph.ir.cost": ("Kernel", "PowerDraw", "Priced"),
    "irgraph.ir.graph": ("Declared", "Device", "Graph", "Stream"),
    "irgraph.ir.op": ("Op",),
    "irgraph.ir.quantity": ("Quantity",),
    "irgraph.ir.tensor": ("Tensor",),
    "irgraph.language": ("Entry", "Pass", "Report", "Script", "load_script"),
    "irgraph.language.clauses": ("Call", "Parameter"),
    "irgraph.manage.advice": ("Advice", "PassGain", "advise"),
    "irgraph.manage.space": ("Instance", "Space", "space"),
    "irgraph.manage.stage": ("Applied", "Outcome", "Stage"),
    "irgraph.manage.watch": ("Watcher",),
    "irgraph.overheads": ("HostTable",),
    "irgraph.pages.write": ("write_report",),
    "irgraph.predict.difference": ("Difference", "diff"),
    "irgraph.predict.options": ("PredictOptions", "with_dims=resized"),
    "irgraph.predict.pair": ("predict_pair",),
    "irgraph.predict.prediction": ("Prediction", "predict"),
    "irgraph.predict.ranks": ("predict_ranks",),
    "irgraph.predict.variants": ("Variants", "predict_variants"),
    "irgraph.replay.replay": ("Replayed",),
    "irgraph.report.plots": ("Plot",),
    "irgraph.report.structure": ("Change",),
    "irgraph.schedule.accounting": ("Accounting",),
    "irgraph.schedule.critical_path": ("CriticalPath",),
    "irgraph.schedule.intervals": ("Interval",),
    "irgraph.schedule.memory.caching_allocator": ("reserved_memory",),
    "irgraph.schedule.memory.peak": ("Memory", "peak_memory"),
    "irgraph.schedule.perfetto": ("write_timeline",),
    "irgraph.schedule.joint_tasks": ("Meeting",),
    "irgraph.schedule.ranks": ("Ranks",),
    "irgraph.schedule.timeline": ("Resource", "Timeline"),
    "irgraph.text": ("parse", "print_graph"),
    "irgraph.tuning.axes": ("Axis",),
    "irgraph.tuning.build": ("search_space",),
    "irgraph.tuning.figures": ("PointFigures",),
    "irgraph.tuning.space": ("SearchSpace",),
    "irgraph.tuning.study": ("Study", "Suggestion", "Trial"),
}  # fmt: skip
"""Public names by their module, as in the imports above; ``new=old`` renames one."""

RENAMED = {"Asked": "Suggestion", "Place": "SourceSpan"}
"""Old public names, which warn and work until 0.2, and the names that replace them."""

_ORIGINS = {
    name.partition("=")[0]: (module, name.rpartition("=")[2])
    for module, names in _HOMES.items()
    for name in names
}


def __getattr__(name: str) -> object:
    """Import a name of the face when it is first used."""
    if name in RENAMED:
        new = RENAMED[name]
        warnings.warn(f"irgraph.{name} is now irgraph.{new}", DeprecationWarning, stacklevel=2)
        return __getattr__(new)
    if name not in _ORIGINS:
        raise AttributeError(f"module 'irgraph' has no attribute {name!r}")
    module, attribute = _ORIGINS[name]
    # the diagnostics define the error that this check raises
    if module != "irgraph.diagnostics":
        import_module("irgraph.shadowed_packages").check_packages()
    value = getattr(import_module(module), attribute)
    # set, so that a function wins over the package of the same name
    return globals().setdefault(name, value)


def __dir__() -> list[str]:
    """Return the names of the face, for completion."""
    return __all__
