"""From a graph to a step time: price, schedule, critical path."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from costmodels.collectives.peers import Peers, peers_of, told, unpriced, with_ranks
from costmodels.host import HostTable, load_host
from costmodels.host.table import DEFAULT
from costmodels.indices import Indices, indices_of
from costmodels.learned.own import corrector
from costmodels.learned.predictors import predictors
from costmodels.measured import CARD, has_measured, is_card, measured_on
from costmodels.measured import unpriced as unowned
from costmodels.price import price
from costmodels.sheet import DeviceSheet, default_sheet, load_device
from irgraph.ir.cost import PROVENANCES, Host, Kernel, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.tf32 import products_in_tf32
from irgraph.schedule.accounting import BLOCKING, Accounting
from irgraph.schedule.algorithm1 import algorithm1
from irgraph.schedule.critical_path import CriticalPath, critical_path
from irgraph.schedule.memory import Memory, peak_memory, workspace
from irgraph.schedule.sampling import interval, sample_steps
from irgraph.schedule.sensitivity import Sensitivity, sensitivity, sensitivity_of_groups
from irgraph.schedule.simulate import simulate
from irgraph.schedule.tasks import Floats
from irgraph.schedule.timeline import Timeline

HOST_CAUSES = ("T1", "T2", "T3", "T4", "T5")
"""Causes of a critical path that are time of the host."""

FASTER = 2.0
"""Factor of the what-ifs that a summary lists."""

SHOWN, TRIED = 10, 60
"""Rows of operations that a summary lists at most, and operations that they are made of."""


@dataclass(frozen=True)
class Prediction:
    """What one step is predicted to take, and why. Times in microseconds.

    Attributes:
        priced: the graph with the device work of its ops.
        timeline: what happens when.
        path: the chain that explains the step time.
        sheet: the device.
        host: the host whose overheads were used.
        software: the software profile that decided which kernels ops launch.
        indices: how embedding tables are looked up, and who says so.
        measured: what was done with the measured times that the model carries, ``""`` if none.
        peers: who takes part in collectives, over which links.
    """

    priced: Priced
    timeline: Timeline
    path: CriticalPath
    sheet: DeviceSheet
    host: Host
    software: str
    indices: Indices = field(default_factory=Indices)
    measured: str = ""
    peers: Peers = field(default_factory=Peers)

    @property
    def step_time(self) -> float:
        """Predicted time of the step."""
        return self.timeline.step_time

    @cached_property
    def samples(self) -> Floats:
        """Step times under many draws of kernels' and overheads' times (``schedule.sampling``)."""
        return sample_steps(self.timeline, self.host)

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

    @property
    def warnings(self) -> tuple[str, ...]:
        """What makes the figures doubtful: a host of another device, collectives without time."""
        lines = [*unpriced(self.priced.unknown, self.peers), *self._without_units()]
        if all(op.is_annotation for op in self.priced.graph.walk()):
            lines.append("the model has no op: there is nothing to predict")
        if not isinstance(self.host, HostTable):
            return tuple(lines)
        return (*lines, *self._lacking(self.host), *self._foreign(self.host.file.architecture))

    def _without_units(self) -> Iterator[str]:
        rounded = [] if self.sheet.has_tf32 else products_in_tf32(self.priced.graph)
        if rounded:
            many = f"{len(rounded)} product{'s' * (len(rounded) > 1)} in tf32"
            lacking = f"{self.sheet.name} has no matrix units for tf32 (tf32_gflops)"
            yield f"{lacking}: {many} priced as f32"

    def _lacking(self, host: HostTable) -> Iterator[str]:
        if host.lacking:
            lacking = ", ".join(host.lacking)
            yield f"host table {host.name} has no {lacking}: those of {DEFAULT} stand in for them"

    def _foreign(self, known: str) -> Iterator[str]:
        if not known or known == self.sheet.architecture:
            return
        path = self.path.by_cause()
        share = sum(path.get(cause, 0.0) for cause in HOST_CAUSES) / (self.step_time or 1.0)
        yield (
            f"host table {self.host.name} was measured beside a {known} GPU, and this device is "
            f"{self.sheet.architecture}: machines with one have other hosts, of another speed. "
            f"{share:.0%} of the critical path is host time. Give --host a table of such a machine "
            "(irgraph overheads TRACE -o FILE)"
        )

    @property
    def utilization(self) -> float:
        """Share of the step in which the device works."""
        return self.timeline.active_time / self.step_time if self.step_time else 0.0

    def kernels(self) -> list[Kernel]:
        """Return all device work in launch order."""
        return [k for op in self.priced.graph.ops for k in self.priced.of(op)]

    def summary(self) -> dict[str, Any]:
        """Return the figures as plain values, for tables and JSON."""
        kernels = self.kernels()
        return {
            "model": self.priced.graph.name,
            "dims": dict(self.priced.graph.dims),
            "device": {"name": self.sheet.name, "tf32": self.sheet.tf32},
            "host": self.host.name,
            "software": self.software,
            "accounting": self.timeline.accounting,
            "step_time_us": self.step_time,
            "step_time_spread_us": self.spread,
            "step_time_interval_us": list(self.interval),
            "gpu_active_us": self.timeline.active_time,
            "gpu_idle_us": self.timeline.idle_time,
            "gpu_utilization": self.utilization,
            "host_waits_us": self.timeline.waiting_time,
            "coverage": coverage(kernels),
            "measured_times": self.measured,
            "unknown": unknown(self.priced),
            "overheads_found": dict(self.timeline.levels),
            "critical_path_us": self.path.by_cause(),
            "critical_ops_us": self.path.by_op(),
            "critical_modules_us": self.path.by_module(),
            "sensitivity": what_ifs(self.timeline),
            "memory": memory_summary(self.memory, self.sheet),
            "kernels": by_family(kernels),
            "indices": self.indices.summary(),
            "collectives": told(kernels),
            "warnings": list(self.warnings),
            "assumptions": assumptions(self.priced.graph),
        }


def predict(
    graph: Graph,
    device: str | None = None,
    host: str = "v100",
    *,
    mode: str = "corrected",
    software: str = "torch-2",
    accounting: Accounting = BLOCKING,
    pinned: bool | None = None,
    indices: Sequence[str] = (),
    weights: Sequence[str] = (),
    measured: bool = True,
    ranks: int | str | None = None,
    fabric: str | None = None,
) -> Prediction:
    """Predict a step on a device driven by a host.

    ``device`` and ``host`` are shipped names or paths of the user's own files; without ``device``
    it is the card that the model's measured times come from, or else ``v100``. Measured times are
    used on that card, unless ``measured`` is off or ``mode`` is ``paper``. ``mode`` is
    ``paper`` (its formulas as they stand) or ``corrected``; ``software`` names what the ops of
    that era launch; ``pinned`` says whether host tensors lie in pinned memory (by default the
    model's setting ``pinned``, or else pageable); ``indices`` how embedding tables are looked up
    (``costmodels.indices.indices_of``; by default as the model says, or else uniformly);
    ``weights`` are files of models trained on the device's own measurements. Trained models price
    what they were trained for (``costmodels.learned``), formulas the rest. ``ranks`` take part
    in collectives (a number, or machines times ranks on each, ``2x8``), timed by the curves of
    ``fabric``; by default as the model and the device say.
    Raises ``IrgraphError`` for an unknown name or an unusable file.
    """
    graph = with_ranks(graph, ranks, fabric)
    sheet, table = load_device(device or device_of(graph)), load_host(host)
    learned = predictors(sheet, software) if mode == "corrected" else {}
    spread = indices_of(graph, indices)
    wanted = measured and mode == "corrected"
    priced = price(
        graph,
        sheet,
        mode=mode,
        software=software,
        pinned=pinned,
        learned=learned,
        indices=spread,
        correct=corrector(weights, sheet),
        measured=wanted and is_card(sheet, measured_on(graph)),
    )
    schedule = simulate if accounting.simulated else algorithm1
    timeline = schedule(priced, table, accounting=accounting)
    used = _measured_times(priced, sheet, wanted)
    peers = peers_of(graph, sheet.name)
    path = critical_path(timeline)
    return Prediction(priced, timeline, path, sheet, table, software, spread, used, peers)


def device_of(*graphs: Graph) -> str:
    """Return the sheet of the card that models' measured times come from, or else ``v100``."""
    return default_sheet(next(filter(None, map(measured_on, graphs)), ""))


def rescheduled(prediction: Prediction, priced: Priced, measured: str) -> Prediction:
    """Return a prediction with other device times, and what is said of measured ones."""
    timeline = simulate(priced, prediction.host)
    path = critical_path(timeline)
    return replace(prediction, priced=priced, timeline=timeline, path=path, measured=measured)


def _measured_times(priced: Priced, sheet: DeviceSheet, wanted: bool) -> str:
    """Say what was done with the measured times of a model, ``""`` if it has none."""
    graph = priced.graph
    card = measured_on(graph)
    if not has_measured(graph):
        return ""
    if not wanted:
        return "not used, as asked"
    if not card:
        return f"not used: the model does not say of which card (setting {CARD})"
    if not is_card(sheet, card):
        return f"not used: they are of {card}, not of {sheet.name}"
    told = f"used: of {card}{_modelled(priced)}"
    lost = unowned(graph)
    return f"{told}; {lost:.1f} us that no operator launched are left out" if lost else told


def _modelled(priced: Priced) -> str:
    """Say how much of a model with measured times is priced by models, ``""`` if nothing is."""
    found = [kernels for kernels in priced.kernels.values() if kernels]
    others = [ks for ks in found if any(k.by != "measured" for k in ks)]
    if not others:
        return ""
    ops = f"{len(others)} op{'s' * (len(others) > 1)} without a measured time"
    return (
        f"; models price {ops} (changed or added since, or not in the trace), whose error passes "
        "for a gain or a loss: `irgraph diff BEFORE AFTER` compares like with like"
    )


def what_ifs(timeline: Timeline, factor: float = FASTER) -> dict[str, Any]:
    """Return what the step would take with operations, families and causes ``factor`` faster.

    Operations of one name that save alike, to the tenth of a microsecond, share a row with their
    ``count``; its times are those of one of them being faster, its place is that of the first.
    """

    def row(found: Sensitivity, count: int = 1) -> dict[str, Any]:
        place = {"module": found.module, "from": found.origin} if found.kind == "op" else {}
        known = {key: value for key, value in place.items() if value}
        many = {"count": count} if count > 1 else {}
        times = {"step_time_us": found.step_time, "saved_us": found.saved}
        return {"kind": found.kind, "name": found.name, **known, **many, **times}

    alike: dict[tuple[str, float], list[Sensitivity]] = {}
    for found in sensitivity(timeline, factor=factor, top=TRIED):
        alike.setdefault((found.name, round(found.saved, 1)), []).append(found)
    return {
        "factor": factor,
        "ops": [row(same[0], len(same)) for same in list(alike.values())[:SHOWN]],
        "groups": [row(s) for s in sensitivity_of_groups(timeline, factor=factor)],
    }


def memory_summary(memory: Memory, sheet: DeviceSheet) -> dict[str, Any]:
    """Return peak memory beside what the device has; all in bytes.

    ``needed_bytes`` is what must fit: tensors at their peak, workspace and context.
    """
    return {
        "needed_bytes": memory.needs(sheet.architecture),
        "peak_bytes": memory.peak,
        "at": memory.at.name if memory.at is not None else "",
        "by_kind_bytes": dict(memory.by_kind),
        "workspace_and_context_bytes": workspace(sheet.architecture),
        "device_bytes": sheet.memory_bytes,
        "fits": memory.fits(sheet.memory_bytes, sheet.architecture),
    }


def coverage(kernels: Iterable[Kernel]) -> dict[str, float]:
    """Return the share of device time by provenance, and of what lies outside models' ranges."""
    times = dict.fromkeys(PROVENANCES, 0.0)
    outside = 0.0
    for kernel in kernels:
        times[kernel.by] += kernel.time
        outside += kernel.time if kernel.outside else 0.0
    total = sum(times.values()) or 1.0
    shares = {by: time / total for by, time in times.items() if time}
    return {**shares, "outside range": outside / total} if outside else shares


def by_family(kernels: Iterable[Kernel]) -> dict[str, dict[str, float]]:
    """Return count and microseconds of device work by family, longest first."""
    found: dict[str, dict[str, float]] = {}
    for kernel in kernels:
        entry = found.setdefault(kernel.family, {"count": 0, "time_us": 0.0})
        entry["count"] += 1
        entry["time_us"] += kernel.time
    return dict(sorted(found.items(), key=lambda item: -item[1]["time_us"]))


def unknown(priced: Priced) -> dict[str, Any]:
    """Return the ops that no cost model knows: counts by name, and their share of the bytes."""
    names = Counter(op.name for op in priced.unknown)
    lost = sum(t.nbytes for op in priced.unknown for t in (*op.inputs, *op.outputs))
    total = sum(t.nbytes for op in priced.graph.leaves() for t in (*op.inputs, *op.outputs))
    return {"ops": dict(names.most_common()), "share_of_bytes": lost / total if total else 0.0}


def assumptions(graph: Graph) -> list[str]:
    """Return the reasons that transformations rest on unproven, as ops remember them."""
    found = (op.notes.get("assuming") for op in graph.walk())
    return [str(reason) for reason in dict.fromkeys(found) if reason is not None]
