"""Compares the live-out tensors of two graphs that run on the same values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import cached_property

import torch
from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import Diagnostic, SourceSpan, fail
from irgraph.execute.coverage import kind_of_call
from irgraph.execute.host_reads import ReadPair, pair_reads
from irgraph.execute.machine import Inspect
from irgraph.execute.narrow.reference import is_quantized, tolerance_of
from irgraph.execute.ranks.replicas import average_gradients, run_replicas
from irgraph.execute.records import DECLARED, Compared, Comparison, Result
from irgraph.execute.rounding.conditioning import Perturbation, deviation, perturbed_runs
from irgraph.execute.rounding.scatter import MAX_SCATTER_FACTOR, scatter
from irgraph.execute.tensor_pair import (
    ROUNDING_UNITS,
    Measure,
    TensorPair,
    max_magnitude,
    to_dense,
    to_floating,
)
from irgraph.execute.torch_values import Torch
from irgraph.execute.widen import SHORT, short_types
from irgraph.ir.dtypes import DIGITS
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.layers import short_layer_tensors
from irgraph.ir.narrow.prepared import prepared_of, sources_of
from irgraph.ir.tensor import Tensor, overlap
from irgraph.ops.live_out import is_label, live_out

TOLERANCE = {"f64": 1e-9, "f32": 1e-4}
"""Difference that counts as equal, relative to the change that a step makes to a tensor."""

ROUNDED = ("f64", "f32")
"""Types in which each element is compared by its own rounding."""


class Trial(Struct, frozen=True, dict=True):
    """Two graphs at the sizes at which they run, and the result of the first on drawn values.

    ``original`` is the first graph with its types before widening. ``start`` has the initial values
    of both if the first ran with others. ``equal`` if all ranks have equal inputs; ``uses_means``
    if only the second graph has collectives, and the first one's gradients are means over ranks.
    ``tolerance`` allows the second graph to round otherwise, relative to a tensor's largest
    element. ``shares`` if returned tensors must share memory in the same way.
    """

    before: Graph
    after: Graph
    first: Result
    seed: int
    ranks: int
    manner: str
    original: Graph
    start: Mapping[str, Torch] = {}
    inspect: Inspect | None = None
    equal: bool = False
    uses_means: bool = False
    tolerance: float = 0.0
    shares: bool = True

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """Kinds of the live-out tensors of the first graph that are compared, by name."""
        kinds = live_out(self.before)
        if self.uses_means:
            return {name: kind for name, kind in kinds.items() if kind == "gradient"}
        return kinds

    @property
    def elementwise(self) -> bool:
        """Whether each element is compared by its own rounding."""
        return not self.tolerance and not is_quantized(self.after)

    @cached_property
    def exact(self) -> bool:
        """Whether the second graph has only ops of the first, which round as they did."""
        return not self.tolerance and _is_rearranged(self.before, self.after)

    @cached_property
    def second(self) -> Result:
        """Result of the second graph."""
        return self.run_second()

    def run_second(self, perturbation: Perturbation | None = None) -> Result:
        """Run the second graph with the first one's values, or with perturbed ones."""
        return self._run(self.after, self.start_values, perturbation, self.inspect)

    def _run_first(self, perturbation: Perturbation) -> Result:
        """Run the first graph with perturbed values."""
        result = self._run(self.before, self.first.initial, perturbation)
        return average_gradients(self.before, result) if self.uses_means else result

    def _run(
        self,
        graph: Graph,
        values: Mapping[str, Torch],
        perturbation: Perturbation | None,
        inspect: Inspect | None = None,
    ) -> Result:
        return run_replicas(
            graph,
            values if perturbation is None else perturbation.perturbed(values),
            self.seed,
            self.ranks,
            watch=perturbation,
            manner=self.manner,
            inspect=inspect if perturbation is None else None,
            equal=self.equal,
        )

    @cached_property
    def start_values(self) -> dict[str, Torch]:
        """Initial values of the second graph that are equal to the first graph's."""
        names = self.after.by_name.keys() | sources_of(self.after).keys()
        return {
            name: value
            for name, value in (self.start or self.first.initial).items()
            if name in names
        }

    def rounding_scatter(
        self, names: Sequence[tuple[str, str]], norm: Callable[[Torch], float]
    ) -> list[float]:
        """Return the scatter of tensors by roundings in both graphs."""
        scatters = [0.0] * len(names)
        for side, (graph, values) in enumerate(
            ((self.before, self.first.initial), (self.after, self.start_values))
        ):
            selected = [pair[side] for pair in names]
            by_name = scatter(graph, values, self.seed, self.ranks, selected, norm)
            scatters = [
                math.hypot(s, by_name.get(n, 0)) for s, n in zip(scatters, selected, strict=True)
            ]
        return scatters

    @cached_property
    def perturbed(self) -> tuple[list[Result], list[Result]]:
        """Results of both graphs with perturbed values."""
        runs = ((self.before, self._run_first), (self.after, self.run_second))
        before, after = (
            list(perturbed_runs(graph, self.seed, self.manner, run)) for graph, run in runs
        )
        return before, after

    def deviation(self, name: str, other: str) -> Torch:
        """Return the deviation of each element of a tensor that roundings cause in both graphs."""
        results = ((name, self.first), (other, self.second))
        total: Torch = 0.0
        for (key, reference), runs in zip(results, self.perturbed, strict=True):
            values = [to_dense(run[key]) for run in runs if key in run.values]
            total = total + deviation(to_dense(reference[key]), values)
        return total

    def read_deviation(self, pair: ReadPair) -> Torch:
        """Return the deviation of each element that the host reads of a tensor."""
        results = ((pair.name, pair.first), (pair.other, pair.second))
        total: Torch = 0.0
        for (key, reference), runs in zip(results, self.perturbed, strict=True):
            values = [run.reads_of(key) for run in runs]
            same = [value for value in values if value.shape == reference[key].shape]
            total = total + deviation(reference[key], same)
        return total


def compare(trial: Trial) -> Comparison:
    """Run the second graph and compare; see ``irgraph.execute.compare``."""
    before, after, first = trial.before, trial.after, trial.first
    second = trial.second
    kinds, other_kinds, exact = trial.kinds, live_out(after), trial.exact
    precision = _precision(before, after)
    gradients = (to_dense(first[name]) for name, kind in kinds.items() if kind == "gradient")
    measure = Measure(
        0.0 if exact else trial.tolerance or precision[1],
        max(map(max_magnitude, gradients), default=0.0),
        not exact and not trial.tolerance and precision[0] in SHORT,
        trial.elementwise and not exact and precision[0] in ROUNDED,
    )
    tensors = [
        entry
        for entry in _matched_tensors(before, after, kinds)
        if (entry[0], entry[1]) not in _host_reads(first)
    ]
    reads = pair_reads(first, second)
    declared = {d.tensor.name for d in before.tensors}  # these outlive the step: read later
    produced = {other for _, _, other in tensors} | {name for name, _ in second.read}
    missing = [(kind, name) for kind, name, other in tensors if other not in second.values]
    paired_names = {read.name for read in reads}
    names = dict.fromkeys(name for name, _ in first.read)
    missing += [
        ("host", name) for name in names if name not in paired_names and name not in declared
    ]
    return Comparison(
        [*_compare_tensors(trial, tensors, measure), *_compare_reads(trial, reads, measure)],
        missing,
        [
            (kind, name)
            for name, kind in other_kinds.items()
            if name not in {*produced, *first.values}
        ],
        exact,
        (precision[0], _unit(precision[0])) if measure.elementwise else precision,
        elementwise=measure.elementwise,
    )


def _unit(dtype: str) -> float:
    """Return the tolerance of an element that no rounding but its own changes."""
    return float(ROUNDING_UNITS * 2.0 ** (1 - DIGITS[dtype]))


def _host_reads(result: Result) -> set[tuple[str, str]]:
    """Return the tensors that the host reads: their values when read are compared, not the last."""
    return {("host", name) for name, _ in result.read}


def _compare_tensors(
    trial: Trial, tensors: Sequence[tuple[str, str, str]], measure: Measure
) -> Iterator[Compared]:
    """Compare what leaves the step in both, but for what neither writes."""
    before, after = trial.before, trial.after
    written = _written_names(before) | _written_names(after)
    selected = [
        (kind, name, other)
        for kind, name, other in tensors
        if other in trial.second.values and not (kind in DECLARED and name not in written)
    ]
    names = [(name, other) for _, name, other in selected]
    scattered = (
        trial.rounding_scatter(names, measure.norm) if measure.coarse else [0.0] * len(names)
    )
    sharing_changes = sharing_differences(before, after) if trial.shares else {}
    labels = {declared.tensor.name: declared.label for declared in before.tensors}
    for (kind, name, other), scatters in zip(selected, scattered, strict=True):
        label = labels.get(name, "")
        pair = TensorPair(
            trial.original.by_name[name], other, kind, label, trial.first, trial.second
        )
        comparison = pair.compare(measure, MAX_SCATTER_FACTOR * scatters)
        if measure.elementwise and not comparison.same and name in trial.first.values:
            comparison = pair.compare(measure, trial.deviation(name, other))
        yield replace(
            comparison, problem=comparison.problem or sharing_changes.get((name, other), "")
        )


def _compare_reads(trial: Trial, reads: Sequence[ReadPair], measure: Measure) -> Iterator[Compared]:
    """Compare the tensors that the host reads, with their values when they were read."""
    pairs = [(read.name, read.other) for read in reads]
    scattered = (
        trial.rounding_scatter(pairs, measure.norm) if measure.coarse else [0.0] * len(pairs)
    )
    for read, scatters in zip(reads, scattered, strict=True):
        tensor = trial.original.by_name[read.name]
        pair = TensorPair(tensor, read.other, "host", "", read.first, read.second)
        comparison = pair.compare(measure, MAX_SCATTER_FACTOR * scatters)
        if measure.elementwise and not comparison.same:
            comparison = pair.compare(measure, trial.read_deviation(read))
        yield comparison


def nan_share(graph: Graph, result: Result) -> float:
    """Return the share of nan among the elements of live-out tensors that a step writes."""
    nan_count = total = 0
    for name, kind in live_out(graph).items():
        if name not in result.values:
            continue
        value = to_floating(to_dense(result[name]))
        count = int(value.isnan().sum())
        start = result.initial.get(name) if kind in DECLARED else None
        written = start is None or not torch.equal(result.values[name], start)
        nan_count, total = nan_count + count, total + (value.numel() if written else 0)
    return nan_count / max(total, 1)


def _matched_tensors(
    before: Graph, after: Graph, kinds: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """Return the kind, the name and the second step's name of live-out tensors of the first step.

    Returned tensors are matched by position, all others by name.
    """
    if before.returned is None or after.returned is None:
        return [(kind, name, name) for name, kind in kinds.items()]
    if len(before.returned) != len(after.returned):
        counts = f"{len(before.returned)} and {len(after.returned)}"
        raise fail(f"the steps return different numbers of tensors: {counts}")
    pairs = zip(before.returned, after.returned, strict=True)
    names = dict.fromkeys((first.name, second.name) for first, second in pairs)
    by_name = [(kind, name, name) for name, kind in kinds.items() if kind != "returned"]
    common_names = {name for _, name, _ in by_name}
    return by_name + [
        ("returned", *pair) for pair in names if pair[0] != pair[1] or pair[0] not in common_names
    ]


def check_starts(before: Graph, after: Graph) -> None:
    """Raise an error if initial tensors of one name have different types."""
    types = {d.tensor.name: (d.tensor.dtype, d.tensor.shape) for d in before.tensors}
    for declared in after.tensors:
        tensor = declared.tensor
        if types.get(tensor.name, tensor.shape[:0]) not in ((), (tensor.dtype, tensor.shape)):
            source = before.by_name[tensor.name]
            raise fail(
                f"%{tensor.name} is {_type(source)} in one model and {_type(tensor)} in the other",
                SourceSpan(after.source or after.name),
                notes=[
                    Diagnostic(
                        "the other model", SourceSpan(before.source or before.name), severity="note"
                    )
                ],
                hint="graphs are compared at the same sizes: set them with --dim",
            )


def _type(tensor: Tensor) -> str:
    return f"{tensor.dtype}{list(map(int, tensor.shape))}"


def _is_rearranged(before: Graph, after: Graph) -> bool:
    """Return whether every op of the second graph is in the first, so that nothing is new."""
    return _signatures(after) <= _signatures(before)


def _signatures(graph: Graph) -> Counter[Hashable]:
    return Counter(kind_of_call(op) for op in graph.leaves() if not is_label(op))


def _precision(before: Graph, after: Graph) -> tuple[str, float]:
    """Return the coarsest type that either graph computes with, and the relative tolerance."""
    used = {t.dtype for graph in (before, after) for t in _computed_tensors(graph)}
    used |= {"tf32"} & (short_types(before) | short_types(after))
    coarsest = max(used & DIGITS.keys(), key=list(DIGITS).index, default="f64")
    return coarsest, max(TOLERANCE.get(coarsest, TOLERANCE["f32"]), tolerance_of(after))


def _computed_tensors(graph: Graph) -> Iterator[Tensor]:
    """Yield the tensors that a step computes with, except those in narrow formats."""
    packed = {prepared.name for prepared in prepared_of(graph)} | short_layer_tensors(graph)
    yield from (tensor for name, tensor in graph.by_name.items() if name not in packed)


def _written_names(graph: Graph) -> set[str]:
    """Return the names of declared tensors whose buffers ops may write."""
    buffers = {tensor.buffer for op in graph.leaves() for tensor in written_by(op)}
    return {d.tensor.name for d in graph.tensors if d.tensor.buffer in buffers}


def sharing_differences(before: Graph, after: Graph) -> dict[tuple[str, str], str]:
    """Return sentences on memory that returned tensors share in only one step, by both names.

    The sentences name tensors of the first step. Each returned tensor is compared with the other
    returned tensors, and with all tensors that exist before the step.
    """
    if before.returned is None or after.returned is None:
        return {}
    changes: dict[tuple[str, str], str] = {}
    for (name, a, b), (other, c, d) in _pairs(before, after):
        shared_before, shared_after = overlap(a, c), overlap(b, d)
        if shared_before != shared_after:
            phrase = "no longer shares" if shared_before else "would share"
            changes.setdefault((name, b.name), f"{phrase} its memory with %{other}")
    return changes


NamedTensors = tuple[str, Tensor, Tensor]


def _pairs(before: Graph, after: Graph) -> Iterator[tuple[NamedTensors, NamedTensors]]:
    return_pairs = zip(before.returned or (), after.returned or (), strict=True)
    returned = [(a.name, a, b) for a, b in return_pairs]
    after_by_name = {declared.tensor.name: declared.tensor for declared in after.tensors}
    lasting = [
        (d.tensor.name, d.tensor, after_by_name[d.tensor.name])
        for d in before.tensors
        if d.tensor.name in after_by_name
    ]
    for i, first in enumerate(returned):
        for other in (*returned[i + 1 :], *lasting):
            yield first, other
