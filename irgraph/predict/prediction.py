"""From a graph to a step time: price, schedule, critical path."""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import Any, Unpack

from msgspec import Struct, field
from msgspec.structs import replace

from irgraph import gc_pause
from irgraph.backend import DeviceFacts, backend
from irgraph.ir.cost import Host, Kernel, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.loading import batches_per_step
from irgraph.ir.measured_times import EMULATED_CARD, measured_card
from irgraph.ir.rarer_steps import share_of
from irgraph.ir.resize import unresized_warnings
from irgraph.ir.step_notes import step_notes
from irgraph.ops.flops import step_flops
from irgraph.overheads import HostTable
from irgraph.overheads.default_host import host_of_step
from irgraph.predict.caveats import (
    assumptions,
    cliff_warnings,
    collectives,
    device_warnings,
    host_warnings,
    loading_warnings,
    measured_times,
    op_ratio,
    tf32_warnings,
    untimed_collectives,
)
from irgraph.predict.figures import (
    by_family,
    coverage,
    memory_summary,
    power_summary,
    unknown,
    what_ifs,
)
from irgraph.predict.options import PredictFields, PredictOptions, apply_options, predict_options
from irgraph.predict.power import within_power
from irgraph.report.console import rounded_times, time_text
from irgraph.report.plots import Plot
from irgraph.schedule.algorithm1 import algorithm1
from irgraph.schedule.critical_path import CriticalPath, critical_path
from irgraph.schedule.memory.caching_allocator import reserved_memory
from irgraph.schedule.memory.peak import Memory, peak_memory
from irgraph.schedule.sampling import interval, sample_steps
from irgraph.schedule.simulate import simulate
from irgraph.schedule.tasks import Floats
from irgraph.schedule.timeline import Timeline

DEFAULT_DEVICE = "v100"
"""The default device."""


class Prediction(Struct, frozen=True, dict=True):
    """The predicted time of one step, and why. Times in microseconds.

    Attributes:
        priced: the graph with the device work of its ops.
        timeline: what happens when.
        sheet: the device.
        host: the host whose overheads were used.
        options: as given, with the device used.
        measured: how the model's measured times were used, ``""`` if it has none.
    """

    priced: Priced
    timeline: Timeline
    sheet: DeviceFacts
    host: Host
    options: PredictOptions = field(default_factory=PredictOptions)
    measured: str = ""

    def __repr__(self) -> str:
        """Return the model, the device and the step time with its interval, in one line."""
        time = rounded_times(self.step_time, *self.interval)
        return f"<Prediction of {self.priced.graph.name!r} on {self.sheet.name}: {time}>"

    @property
    def step_time(self) -> float:
        """Predicted time of the step."""
        return self.timeline.step_time

    @cached_property
    def path(self) -> CriticalPath:
        """The critical path."""
        return critical_path(self.timeline)

    @cached_property
    def samples(self) -> Floats:
        """Step times under random draws of kernel and overhead times (``schedule.sampling``)."""
        return sample_steps(self.timeline, self.host)

    @cached_property
    def steady_samples(self) -> Floats:
        """Mean step times under random draws: calls of one op do not vary independently."""
        return sample_steps(self.timeline, self.host, jitter=False)

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of a 90 % interval of the step time, microseconds."""
        return interval(self.samples)

    @property
    def spread(self) -> float:
        """Half the width of ``interval``, microseconds."""
        low, high = self.interval
        return (high - low) / 2

    @cached_property
    def memory(self) -> Memory:
        """Peak memory of the graph's first device, from the lifetimes of its buffers."""
        return peak_memory(self.priced.graph)

    @cached_property
    def reserved_bytes(self) -> int | None:
        """Bytes that torch's caching allocator reserves for the step; ``None`` on a CPU."""
        is_cpu = self.sheet.architecture == "cpu"
        return None if is_cpu else reserved_memory(self.priced.graph)

    @cached_property
    def rarer_steps(self) -> tuple[tuple[str, Prediction], ...]:
        """The predictions of the program's rarer steps, each after its share such as ``1/5``."""
        options = replace(self.options, dims={}, period=None)
        return tuple(
            (str(share_of(step)), predict(step, options)) for step in self.priced.graph.rarer
        )

    @property
    def mean_step_time(self) -> float:
        """Mean time of the program's steps, the usual and the rarer ones, microseconds."""
        return self.step_time + sum(
            float(Fraction(share)) * (rarer.step_time - self.step_time)
            for share, rarer in self.rarer_steps
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the figures doubtful: a default host, collectives without time.

        Also a size that some of the model's numbers do not follow, and grouped windows without a
        good kernel.
        """
        lines = [
            *step_notes(self.priced.graph),
            *unresized_warnings(self.priced.graph),
            *device_warnings(self.priced),
        ]
        lines += [*untimed_collectives(self.priced), *tf32_warnings(self.priced, self.sheet)]
        lines += cliff_warnings(self.priced)
        lines += loading_warnings(self.priced.graph, self.path)
        if isinstance(self.host, HostTable):
            lines += host_warnings(self.host, self.sheet, self.path)
        return tuple(lines)

    @property
    def utilization(self) -> float:
        """Share of the step in which the device works."""
        return self.timeline.active_time / self.step_time if self.step_time else 0.0

    def kernels(self) -> list[Kernel]:
        """Return all device work in launch order."""
        return [k for op in self.priced.graph.ops for k in self.priced.of(op)]

    def plot(self) -> Plot:
        """Draw host threads, streams and the critical path over time (needs matplotlib)."""
        from irgraph.predict.notebook import plot_step

        low, high = map(time_text, self.interval)
        title = f"{time_text(self.step_time)} ({low} to {high}) on {self.sheet.name}"
        return plot_step(self.timeline, self.path, title)

    def _repr_html_(self) -> str:
        """Return the figures as a notebook shows them."""
        from irgraph.predict.notebook import prediction_html

        return prediction_html(self.summary())

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values, for tables and JSON."""
        kernels = self.kernels()
        flop, uncounted = step_flops(self.priced.graph)
        return {
            "model": self.priced.graph.name,
            "dims": dict(self.priced.graph.dims),
            "batches": batches_per_step(self.priced.graph),
            "device": _device(self.sheet),
            "host": self.host.name,
            "software": self.options.software,
            "accounting": self.timeline.accounting,
            "step_time_us": self.step_time,
            "step_time_spread_us": self.spread,
            "step_time_interval_us": list(self.interval),
            "rarer_steps": [
                {"share": share, "step_time_us": rarer.step_time}
                for share, rarer in self.rarer_steps
            ],
            "mean_step_time_us": self.mean_step_time,
            "gpu_active_us": self.timeline.active_time,
            "gpu_idle_us": self.timeline.idle_time,
            "gpu_utilization": self.utilization,
            "host_waits_us": self.timeline.waiting_time,
            "coverage": coverage(kernels),
            "power": power_summary(self.priced.power),
            "measured_times": self.measured,
            "unknown": unknown(self.priced),
            "overheads_found": dict(self.timeline.levels),
            "no_graph_ratio": op_ratio(self.host),
            "critical_path_us": self.path.by_cause(),
            "critical_ops_us": self.path.by_op(),
            "critical_modules_us": self.path.by_module(),
            "sensitivity": what_ifs(self.timeline),
            "flop": flop,
            "products_not_counted": uncounted,
            "memory": memory_summary(self.memory, self.reserved_bytes, self.sheet),
            "kernels": by_family(kernels),
            "indices": list(self.priced.indices),
            "collectives": collectives(kernels),
            "warnings": list(self.warnings),
            "assumptions": assumptions(self.priced.graph),
        }


def predict(
    graph: Graph,
    options: PredictOptions | str | None = None,
    **changes: Unpack[PredictFields],
) -> Prediction:
    """Predict a step: price its ops, simulate host and device; the critical path when asked for.

    ``options`` is a ``PredictOptions``, or the name of a device; ``changes`` are fields of it:
    ``predict(graph, device="a100", dims={"B": 4096})``.

    Raises ``IrgraphError`` for an unknown name or an unusable file.
    """
    merged_options = predict_options(options, **changes)
    with gc_pause.gc_paused():
        graph = apply_options(graph, merged_options)
        name = merged_options.device or device_of(graph)
        sheet = backend().device(name, graph)
        host = host_of_step(merged_options.host, graph, merged_options.software)
        priced = within_power(backend().price(graph, name, merged_options))
        timeline = _schedule(priced, host, merged_options)
        measured_remark = measured_times(priced, name, merged_options.uses_measured)
        merged_options = replace(merged_options, device=name)
        return Prediction(priced, timeline, sheet, host, merged_options, measured_remark)


def _device(sheet: DeviceFacts) -> dict[str, Any]:
    return {
        "name": sheet.name,
        "architecture": sheet.architecture,
        "clock_mhz": sheet.clock,
        "tf32": sheet.tf32,
        "tf32_convolutions": sheet.convolution_dtype == "tf32",
    }


def device_of(*graphs: Graph) -> str:
    """Return the device of the models' measured times, else the captured card, else ``v100``."""
    card = next(filter(None, map(measured_card, graphs)), "")
    emulated = next(filter(None, (graph.settings.get(EMULATED_CARD) for graph in graphs)), "")
    return backend().device_of_card(card) or str(emulated) or DEFAULT_DEVICE


def reschedule(prediction: Prediction, priced: Priced, measured: str) -> Prediction:
    """Return a prediction with other device times and remark on measured ones."""
    timeline = _schedule(priced, prediction.host, prediction.options)
    return replace(prediction, priced=priced, timeline=timeline, measured=measured)


def _schedule(priced: Priced, host: Host, options: PredictOptions) -> Timeline:
    rules = options.rules
    return (simulate if rules.simulated else algorithm1)(priced, host, accounting=rules)
