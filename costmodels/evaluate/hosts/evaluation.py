"""Errors of host tables on machines that did not make them, scaled by a launch time and unscaled.

The host times of a machine's recorded programs, without the cost of recording, are compared with
the default table for its release of torch, and with the table of torch 2 scaled by the machine's
launch time. The powers of that scaling and every interval are of the other machines: the judged one
is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from msgspec import Struct
from rich.console import RenderableType
from rich.table import Table

from costmodels.evaluate.hosts.replays import replays_across_machines
from costmodels.evaluate.hosts.scaling import (
    KindTotal,
    MachineTotals,
    launch_exponents,
    leave_one_out,
)
from costmodels.evaluate.measurements import measurements
from costmodels.hosts.from_traces import published_tree
from irgraph.overheads.default_host import RECENT_TABLE, TORCH_1_TABLE
from irgraph.overheads.extract import ir_name, subtract_cost
from irgraph.overheads.recording import recording_of
from irgraph.overheads.samples import HostSample
from irgraph.overheads.table import LAUNCH_EXPONENTS, TYPES, HostTable, load_host
from irgraph.replay.replay import Replayed, build_replayer
from irgraph.schedule.sampling import NORMAL_90, WORKLOAD_STD


class TracedMachine(Struct, frozen=True):
    """A machine with public traces.

    Attributes:
        name: machine and year.
        traces: pattern of its traces in the folder of measurements.
        table: default table for its release of torch.
        kinds: kinds of overheads that are compared.
    """

    name: str
    traces: str
    table: str = RECENT_TABLE
    kinds: tuple[str, ...] = ("T1", "T2", "T3", "T4", "T5", "whole")


MACHINES = (
    TracedMachine("H100, 2025", "hosts/h100_*"),
    TracedMachine("MI300X, 2026", "hosts/mi300_*"),
    TracedMachine("MI300X VF, 2025", "hosts/mi300vf_*"),
    TracedMachine("V100 32 GB, 2024", "hosts/v100-32gb_resnet_2024*"),
    # a first call, whose operators initialise libraries
    TracedMachine("2 RTX 4090, 2024", "hosts/rtx4090_*", kinds=("T1", "T4")),
    TracedMachine("8 A100, 2022", "hosts/a100pg_*", TORCH_1_TABLE),
    TracedMachine("2 V100 16 GB, 2022", "hosts/v100-16gb_dlrm*", TORCH_1_TABLE),
    TracedMachine("8 V100 32 GB, 2022", "traces/dlrm_8xV100/kineto*", TORCH_1_TABLE),
    TracedMachine("4 V100 16 GB, 2022", "traces/dlrm_4xV100_overlap/kineto*", TORCH_1_TABLE),
    TracedMachine("RTX 2080 Ti, 2022", "traces/*_RTX2080Ti/kineto*", TORCH_1_TABLE),
)
"""Machines whose traces made no default table."""

MIN_SAMPLES = 3
"""Minimum number of samples of a call whose median counts."""

LABELS = {"T1": "", "T4": "kernel"}
"""Label of the typical samples of the kinds that are one population."""

SampleTimes = dict[tuple[str, str], list[float]]
"""Microseconds of samples by kind and operation."""


class MachineErrors(Struct, frozen=True):
    """A machine's host times in comparison with a table.

    Attributes:
        machine: name of the machine.
        table: name of the table.
        launch_us: median time of a kernel launch.
        as_is: predicted over measured host time, of that table.
        scaled: the same of the table of torch 2, scaled by the launch time with powers that the
            other machines determine.
    """

    machine: str
    table: str
    launch_us: float
    as_is: float
    scaled: float


class MachineSpread(Struct, frozen=True):
    """The errors of all machines, with the spread of the others for each.

    Attributes:
        rows: errors of each machine.
        replays: of steps with host times of another machine.
        exponents: powers of the ratio of launch times by type of overhead, from all machines.
    """

    rows: Sequence[MachineErrors]
    replays: Sequence[Replayed] = ()
    exponents: Mapping[str, float] = {}

    def render(self) -> list[RenderableType]:
        """Return the table of machines and the lines below it."""
        heads = ("machine", "table", "launch us", "as is", "inside", "scaled", "inside")
        table = Table(*heads, title="host times: predicted / measured")
        checks = zip(*(self.inside(kind) for kind in ("as_is", "scaled")), strict=True)
        for row, (as_is, scaled) in zip(self.rows, checks, strict=True):
            table.add_row(
                row.machine,
                row.table,
                f"{row.launch_us:.1f}",
                f"{row.as_is:.2f}",
                "yes" if as_is else "no",
                f"{row.scaled:.2f}",
                "yes" if scaled else "no",
            )
        powers = ", ".join(f"{kind} {power:.2f}" for kind, power in self.exponents.items())
        return [
            table,
            *(self._line(kind) for kind in ("as_is", "scaled")),
            f"powers of the ratio of launch times, from all machines: {powers}",
            self._replay_line(),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return all figures as plain values."""
        kinds = ("as_is", "scaled")
        inside = {kind: sum(self.inside(kind)) for kind in kinds}
        std = {kind: machine_std(self.log_errors(kind)) for kind in kinds}
        rows = [{name: getattr(row, name) for name in row.__struct_fields__} for row in self.rows]
        steps = {"inside": sum(r.within for r in self.replays), "steps": len(self.replays)}
        return {
            "machines": rows,
            "inside": inside,
            "machine_std": std,
            "replays": steps,
            "exponents": dict(self.exponents),
        }

    def log_errors(self, kind: str) -> list[float]:
        """Return the logarithm of each machine's predicted over measured time."""
        return [math.log(getattr(row, kind)) for row in self.rows]

    def inside(self, kind: str) -> list[bool]:
        """Return for each machine whether the other machines' 90 % interval has its host time."""
        errors = self.log_errors(kind)
        others = (errors[:i] + errors[i + 1 :] for i in range(len(errors)))
        return [
            abs(error) <= half_width(other_errors)
            for error, other_errors in zip(errors, others, strict=True)
        ]

    def _line(self, kind: str) -> str:
        errors = self.log_errors(kind)
        middle, far = np.exp(np.quantile(np.abs(errors), (0.5, 0.9)))
        return (
            f"{kind.replace('_', ' ')}: x{middle:.2f} in the median, x{far:.2f} for nine in ten; "
            f"{sum(self.inside(kind))} of {len(errors)} in the interval of the other machines; "
            f"standard deviation between machines {machine_std(errors):.2f}"
        )

    def _replay_line(self) -> str:
        if not self.replays:
            return "no replays"
        errors = [math.log(replay.simulated / replay.measured) for replay in self.replays]
        middle, far = np.exp(np.quantile(np.abs(errors), (0.5, 0.9)))
        inside = sum(replay.within for replay in self.replays)
        return (
            f"steps replayed with another machine's host times, scaled: x{middle:.2f} in the "
            f"median, x{far:.2f} for nine in ten; {inside} of {len(errors)} in their 90 % interval"
        )


def half_width(log_errors: Sequence[float]) -> float:
    """Return half the 90 % interval of the logarithm of a further machine's error.

    Few machines are a coarse measure of the spread: the quantile is Student's (its expansion by the
    number of machines), and the error of the further machine is independent.
    """
    count, z = len(log_errors), NORMAL_90
    quantile = z + (z**3 + z) / (4 * count) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * count**2)
    square = sum(error**2 for error in log_errors) / count
    return quantile * math.sqrt(square * (1 + 1 / count))


def machine_std(log_errors: Sequence[float]) -> float:
    """Return the standard deviation between machines, without the one between their programs."""
    return math.sqrt(max((half_width(log_errors) / NORMAL_90) ** 2 - WORKLOAD_STD**2, 0.0))


def evaluate_hosts() -> MachineSpread:
    """Return the errors of default tables on machines that did not make them.

    Raises ``IrgraphError`` if the folder of measurements is not set.
    """
    folder = measurements()
    paths = {machine: sorted(folder.glob(machine.traces)) for machine in MACHINES}
    machines = [TracedTimes.read(machine, files) for machine, files in paths.items() if files]
    totals = [machine.totals() for machine in machines]
    scaled = leave_one_out(totals)
    rows = [machine.errors(error) for machine, error in zip(machines, scaled, strict=True)]
    return MachineSpread(rows, list(replays_across_machines(folder)), launch_exponents(totals))


class TracedTimes(Struct, frozen=True):
    """Host times of a machine's recorded programs.

    Attributes:
        machine: the machine.
        programs: times of each program.
    """

    machine: TracedMachine
    programs: Sequence[SampleTimes]

    @classmethod
    def read(cls, machine: TracedMachine, paths: Sequence[Path]) -> TracedTimes:
        """Return the host times of a machine's traces."""
        return cls(machine, [_sample_times(path, machine.kinds) for path in paths])

    @property
    def launch_us(self) -> float:
        """Median time of a kernel launch."""
        return median(chain.from_iterable(times["T4", ""] for times in self.programs))

    def by_kind(self, table: HostTable) -> dict[str, KindTotal]:
        """Return predicted and measured time of the calls that a table lists, by type."""
        totals: dict[str, KindTotal] = {}
        for kind, predicted, measured in chain.from_iterable(
            _pairs(times, table) for times in self.programs
        ):
            total = totals.get(kind, KindTotal(0.0, 0.0))
            totals[kind] = KindTotal(total.predicted + predicted, total.measured + measured)
        return totals

    def totals(self) -> MachineTotals:
        """Return the machine's totals, compared with the table that launch times scale."""
        table = load_host(RECENT_TABLE)
        ratio = self.launch_us / (table.listed_time("T4", "") or math.nan)
        return MachineTotals(ratio, self.by_kind(table))

    def errors(self, scaled: float) -> MachineErrors:
        """Return the machine's errors, of which one is known."""
        name = self.machine.table
        as_is = MachineTotals(1.0, self.by_kind(load_host(name))).error(LAUNCH_EXPONENTS)
        return MachineErrors(self.machine.name, name, self.launch_us, as_is, scaled)


def _sample_times(path: Path, kinds: Container[str]) -> SampleTimes:
    """Return the host times of a trace, without the cost of its recording."""
    tree = published_tree(path)
    samples = subtract_cost(build_replayer(tree).samples(), recording_of(tree).cost)
    result: SampleTimes = defaultdict(list)
    for sample in chain.from_iterable(samples.by_key.values()):
        key = _key(sample)
        if key is not None and sample.kind in kinds:
            result[key].append(sample.time)
    return result


def _key(sample: HostSample) -> tuple[str, str] | None:
    """Return the kind and operation of a sample, ``None`` if it does not count."""
    if sample.kind in LABELS:
        return (sample.kind, "") if sample.place == LABELS[sample.kind] else None
    is_listed = sample.kind.lower() in TYPES
    return (sample.kind, ir_name(sample.name)) if is_listed else None


def _pairs(times: SampleTimes, table: HostTable) -> Iterator[tuple[str, float, float]]:
    """Yield type, predicted and measured time of each kind of call; of equal calls, the median."""
    for (kind, operation), values in times.items():
        time = table.listed_time(kind, operation)
        if time is not None and len(values) >= MIN_SAMPLES:
            yield kind, time * len(values), median(values) * len(values)
