"""Remarks on a prediction: sources of its figures, and warnings."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from irgraph.backend import DeviceFacts, backend
from irgraph.ir.cost import COLLECTIVE, Host, Kernel, Priced
from irgraph.ir.graph import Graph
from irgraph.ir.loading import TIME_SOURCE, batch_loads, loading_time
from irgraph.ir.measured_times import CARD, has_measured_times, label_time, measured_card
from irgraph.ir.op import Op
from irgraph.ir.tf32 import products_in_tf32
from irgraph.overheads import HostTable
from irgraph.overheads.default_host import default_host_note
from irgraph.overheads.table import FALLBACK_TABLE
from irgraph.predict.answer import MAJORITY
from irgraph.report.console import time_text
from irgraph.schedule.critical_path import CriticalPath
from irgraph.schedule.intervals import host_time

CLIFF = "grouped, channels last"
"""Prefix of formulas for layouts that a library may have no good kernel for."""

_SHARE = re.compile(r"\b\d+%")
_MARK = "\0"


def untimed_collectives(priced: Priced, ops: Iterable[Op] | None = None) -> list[str]:
    """Return a line for each reason why collectives, all or those among ``ops``, have no time."""
    ops_without_time = priced.unknown if ops is None else ops
    reasons = (priced.reasons.get(op, "") for op in ops_without_time)
    return [
        f"{count} collective{'s have' if count > 1 else ' has'} no time, and a floor stands in "
        f"(bytes at DRAM bandwidth): {reason}"
        for reason, count in Counter(filter(None, reasons)).items()
    ]


def device_warnings(priced: Priced) -> list[str]:
    """Return a line if no part of a step runs on the device."""
    if all(op.is_annotation for op in priced.graph.walk()):
        return ["the model has no op: there is nothing to predict"]
    if any(priced.kernels.values()):
        return []
    return [
        "nothing of this step runs on the device: its time is the host's alone; were the model "
        "and its data moved to the device that the program was given?"
    ]


def tf32_warnings(priced: Priced, device: DeviceFacts) -> list[str]:
    """Return a line if a step has products in tf32 and the device has no units for them."""
    tf32_products = [] if device.has_tf32 else products_in_tf32(priced.graph)
    if not tf32_products:
        return []
    count = f"{len(tf32_products)} product{'s' * (len(tf32_products) > 1)} in tf32"
    return [f"{device.name} has no matrix units for tf32 (tf32_gflops): {count} priced as f32"]


def cliff_warnings(priced: Priced) -> list[str]:
    """Return a line for each formula of kernels that a library may not have a good version of."""
    kernels = (kernel for op_kernels in priced.kernels.values() for kernel in op_kernels)
    counts = Counter(kernel.formula for kernel in kernels if kernel.formula.startswith(CLIFF))
    return [
        f"{count} kernel{'s are' if count > 1 else ' is'} {formula}"
        for formula, count in counts.items()
    ]


def host_warnings(host: HostTable, device: DeviceFacts, path: CriticalPath) -> list[str]:
    """Return warnings about a host table: figures that it lacks, another kind of machine."""
    lines = []
    if host.lacking:
        missing = ", ".join(host.lacking)
        lines.append(f"host table {host.name} has no {missing}: those of {FALLBACK_TABLE} are used")
    share = host_time(path.by_cause()) / (path.step_time or 1.0)
    share_text = f"{share:.0%} of the critical path is host time"
    measured_kind = host.file.architecture
    if note := default_host_note(host):
        lines.append(f"{note}. {share_text}")
    elif measured_kind and measured_kind != device.architecture:
        lines.append(
            f"host table {host.name} was measured {_measured_on(measured_kind)}, but this device "
            f"is {device.architecture}: hosts differ by their year and software more than by the "
            f"card. {share_text}. Give --host a table of such a machine: irgraph hosts lists "
            "those that ship, irgraph overheads TRACE -o FILE makes one"
        )
    return lines


MIN_LOADING_SHARE = 0.01
"""Share of the critical path from which the loading of batches is mentioned."""


def op_ratio(host: Host) -> float:
    """Return the factor on host times of a step that records no graph for autograd, 1 if none."""
    return host.op_ratio if isinstance(host, HostTable) else 1.0


def one_sided_graph(hosts: Sequence[Host]) -> list[str]:
    """Return a warning if only one of two steps records a graph for autograd."""
    ratios = sorted(map(op_ratio, hosts))
    if ratios[0] == ratios[-1]:
        return []
    return [
        "only one of the steps records a graph for autograd: the host takes "
        f"{ratios[0] / ratios[-1]:.2g} of the time for each operation of the other one"
    ]


def loading_warnings(graph: Graph, path: CriticalPath) -> list[str]:
    """Return a line if the host's or the workers' loading of batches lengthens a step."""
    time = path.by_cause().get("loader", 0.0)
    share = time / (path.step_time or 1.0)
    if share < MIN_LOADING_SHARE:
        return []
    (first, *_) = batch_loads(graph)
    batch_time, source = time_text(loading_time(first)), graph.settings.get(TIME_SOURCE)
    workers = first.attributes.get("workers", 0)
    makers = f"{workers} worker{'s' * (workers != 1)}" if workers else "the host itself"
    details = ", ".join(map(str, filter(None, (f"{batch_time} a batch", f"by {makers}", source))))
    prefix = "input-bound: " if share > MAJORITY else ""
    return [f"{prefix}{share:.0%} of the critical path is loading batches ({details})"]


def _measured_on(architecture: str) -> str:
    return "on a CPU alone" if architecture == "cpu" else f"with a {architecture} GPU"


def collectives(kernels: Iterable[Kernel]) -> list[str]:
    """Return a line for each kind of collectives that were priced: time, ranks and curve."""
    kinds: dict[tuple[str, str], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        if kernel.family == COLLECTIVE and kernel.formula:
            kinds[kernel.name.partition(" of ")[0], kernel.formula].append(kernel)
    return [
        f"{len(collective_kernels)} {name}, {sum(k.time for k in collective_kernels):.1f} us +- "
        f"{sum(k.spread for k in collective_kernels):.1f} us: {formula}"
        for (name, formula), collective_kernels in kinds.items()
    ]


def measured_times(priced: Priced, device: str, use_measured: bool) -> str:
    """Return how the measured times of a model were used, ``""`` if it has none."""
    graph = priced.graph
    card = measured_card(graph)
    if not has_measured_times(graph):
        return ""
    if not use_measured:
        return "not used, as requested"
    if not card:
        return f"not used: the model does not name their card (setting {CARD})"
    if not backend().is_card(device, card):
        return f"not used: they are of {card}, not of {priced.device}"
    text = f"used: of {card}{_modelled_remark(priced)}"
    unlaunched_time = label_time(graph)
    return (
        f"{text}; {unlaunched_time:.1f} us that no operator launched are left out"
        if unlaunched_time
        else text
    )


def _modelled_remark(priced: Priced) -> str:
    """Return how much of a model with measured times is modelled, ``""`` if nothing is."""
    kernel_lists = [kernels for kernels in priced.kernels.values() if kernels]
    modelled_lists = [ks for ks in kernel_lists if any(k.by != "measured" for k in ks)]
    if not modelled_lists:
        return ""
    ops = f"{len(modelled_lists)} op{'s' * (len(modelled_lists) > 1)} without a measured time"
    return (
        f"; models price {ops} (changed or added since, or not in the trace), whose error looks "
        "like a gain or a loss: `irgraph diff BEFORE AFTER` compares like with like"
    )


def assumptions(graph: Graph) -> list[str]:
    """Return the unproven assumptions of transformations, as noted on ops."""
    reasons = (op.notes.get("assuming") for op in graph.walk())
    return [str(reason) for reason in dict.fromkeys(reasons) if reason is not None]


def merge_percentages(texts: Iterable[str]) -> Iterator[str]:
    """Yield texts that differ only in whole percentages once, with the lowest and the highest."""
    percentages_by_text: dict[str, list[list[int]]] = {}
    for text in texts:
        shares = [int(share[:-1]) for share in _SHARE.findall(text)]
        percentages_by_text.setdefault(_SHARE.sub(_MARK, text), []).append(shares)
    for text, percentages in percentages_by_text.items():
        ranges = [_range(min(column), max(column)) for column in zip(*percentages, strict=True)]
        first, *rest = text.split(_MARK)
        yield first + "".join(map("".join, zip(ranges, rest, strict=True)))


def _range(lowest: int, highest: int) -> str:
    return f"{highest}%" if lowest == highest else f"{lowest} to {highest}%"
