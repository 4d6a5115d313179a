"""Search for the fastest layout of a step over ranks, by the prediction of one rank's step.

The search is exhaustive over the ranks that share samples, ranks that split layers, and the
shardings of parameters; two bounds exclude layouts that cannot fit or cannot be among the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

from msgspec import Struct
from msgspec.structs import replace

from irgraph.backend import backend
from irgraph.diagnostics import IrgraphError, fail
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.loading import batches_per_step
from irgraph.planning.layouts.bounds import MemoryBound, TimeBound, activation_bytes
from irgraph.planning.layouts.layer_pairs import LayerPair, layer_pairs
from irgraph.planning.layouts.layout import StepLayout, shardings_of
from irgraph.planning.layouts.overlap import with_overlap
from irgraph.planning.layouts.recomputation import repeated_modules, with_recomputation
from irgraph.planning.layouts.result import (
    LayoutResult,
    LayoutSearch,
    RefusedLayout,
    SlowLayout,
    UnfitLayout,
)
from irgraph.plans.layout import LAYERS
from irgraph.plans.plan import DATA, LayerScheme, Plan, TableSharding
from irgraph.predict.caveats import untimed_collectives
from irgraph.predict.options import PredictOptions
from irgraph.predict.prediction import Prediction, device_of, predict
from irgraph.schedule.memory.caching_allocator import reserved_memory
from irgraph.schedule.memory.peak import peak_memory, workspace
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.embeddings.tables import table_sizes
from irgraph.verbs.sharding.shard import ShardResult, shard, split_layers

MAX_RESULTS = 5
"""Default number of best layouts that are exact: no layout left out is faster."""

MAX_COMBINED_PAIRS = 3
"""Maximum number of pairs of layers of which all sets are tried."""

UNREAD_GRADIENTS = (
    "nothing in the step reads the gradients of parameters: their sums over ranks are not part of "
    "the times; capture the optimizer's step, too"
)

GATHERINGS = ("gathering", "exchange", "scattering")
"""Conversions of activations that a pair of layers needs if its activations are not in parts."""


def search_layouts(
    graph: Graph,
    ranks: int,
    options: PredictOptions,
    memory: float,
    *,
    max_results: int = MAX_RESULTS,
    overlap: bool = False,
    progress: Callable[[str], None] = lambda _: None,
) -> LayoutSearch:
    """Return the fastest layouts of a step over a number of ranks that fit into memory.

    Args:
        graph: the step on one card, with the batch of all ranks together.
        ranks: number of ranks.
        options: options of ``predict``; ``ranks`` may name machines times ranks on each.
        memory: bytes of each rank's device.
        max_results: number of best layouts that must be exact.
        overlap: whether collectives of data ranks run on a separate stream.
        progress: is called with the layout that is simulated.

    Raises:
        IrgraphError: a collective has no time on the device.
    """
    if options.ranks is None:
        options = replace(options, ranks=ranks)
    search = _Search(graph, options, memory, max_results, overlap, progress)
    for tensor in (size for size in range(1, ranks + 1) if ranks % size == 0):
        search.add_meshes(ranks // tensor, tensor)
    search.add_shardings()
    search.add_recomputation()
    return search.result()


class _Mesh(Struct, frozen=True):
    """Layers on a mesh.

    Attributes:
        layout: the layout with complete parameters on each rank.
        bound: lower bound of the step of all shardings, microseconds; 0 if it is unknown.
    """

    layout: StepLayout
    bound: float


class _Search:
    """A search that is under way."""

    def __init__(
        self,
        graph: Graph,
        options: PredictOptions,
        memory: float,
        max_results: int,
        overlap: bool,
        progress: Callable[[str], None],
    ) -> None:
        self.graph, self.options, self.memory = graph, options, memory
        self.max_results, self.overlap, self.progress = max_results, overlap, progress
        self.tables = tuple(table_sizes(graph))
        self.pairs = layer_pairs(graph)
        self.memory_bound = MemoryBound(graph)
        sheet = backend().device(options.device or device_of(graph), graph)
        self.workspace = workspace(sheet.architecture)
        self.samples = _samples_of(graph)
        self.simulated = 0
        self.recomputed_step = graph
        self.activations: dict[tuple[int, str, tuple[str, ...]], int] = {}
        self.meshes: list[_Mesh] = []
        self.results: list[LayoutResult] = []
        self.refused: list[RefusedLayout] = []
        self.unfit: list[UnfitLayout] = []
        self.slow: list[SlowLayout] = []
        self.reasons: dict[tuple[int, str], str] = {}
        self.replicated: dict[str, str] = dict.fromkeys(
            self.pairs.unpaired, "no row-parallel layer takes its outputs alone"
        )

    def result(self) -> LayoutSearch:
        """Return the layouts found so far."""
        return LayoutSearch(
            tuple(sorted(self.results, key=lambda result: result.order)),
            self.simulated,
            tuple(self.refused),
            tuple(sorted(self.unfit, key=lambda layout: layout.memory)),
            tuple(self.slow),
            self.replicated,
            () if _updates_parameters(self.graph) else (UNREAD_GRADIENTS,),
        )

    def add_meshes(self, data: int, tensor: int) -> None:
        """Add the layouts of a mesh with complete parameters, one for each choice of layers."""
        splits = self._layer_splits(tensor) if tensor > 1 else [{}]
        for layers in splits:
            layout = StepLayout(data, tensor, "replicated", layers)
            result = self._simulate(layout)
            bound = self._bound(result) if result is not None else 0.0
            self.meshes.append(_Mesh(layout, bound))
        if not splits:
            layout = StepLayout(data, tensor, "replicated")
            self.refused.append(RefusedLayout(layout, self._no_split(tensor)))

    def add_shardings(self) -> None:
        """Add the other shardings of all meshes, the most promising meshes first."""
        for mesh in sorted(self.meshes, key=lambda mesh: mesh.bound):
            bound = mesh.bound
            for sharding in shardings_of(mesh.layout.data)[1:]:
                layout = replace(mesh.layout, sharding=sharding)
                if bound > self._max_time():
                    self.slow.append(SlowLayout(layout, bound))
                    continue
                result = self._simulate(layout)
                if result is not None:
                    bound = bound or self._bound(result)

    def add_recomputation(self) -> None:
        """Add layouts that did not fit, with recomputation of repeated modules.

        It adds work, so that layouts which fit without it are faster without it.
        """
        layouts = [unfit.layout for unfit in self.unfit if self._may_fit(unfit.layout)]
        paths = repeated_modules(self.pairs)
        if not layouts or not paths:
            return
        try:
            self.recomputed_step = with_recomputation(self.graph, paths)
        except IrgraphError as error:
            layout = replace(layouts[0], recomputed=paths)
            self.refused.append(RefusedLayout(layout, error.diagnostics[0].message))
            return
        bounds = {(m.layout.tensor, str(m.layout.layers)): m.bound for m in self.meshes}
        for layout in layouts:
            bound = bounds[layout.tensor, str(layout.layers)]
            repeated = replace(layout, recomputed=paths)
            if bound > self._max_time():
                self.slow.append(SlowLayout(repeated, bound))
            else:
                self._simulate(repeated)

    def _may_fit(self, layout: StepLayout) -> bool:
        """Return whether a layout may fit with fewer activations."""
        return self.memory_bound.bytes_of(layout) + self.workspace <= self.memory

    def _bound(self, result: LayoutResult) -> float:
        """Return the lower bound of the step of all shardings of a result's mesh."""
        if not result.layout.layers:
            return TimeBound(self.graph).time(result.prediction)
        return TimeBound(self._split(result.layout.tensor, result.layout.layers).graph).time(
            result.prediction
        )

    def _split(self, tensor: int, layers: Mapping[str, LayerScheme]) -> ShardResult:
        """Return the first rank's step with split layers, and all samples."""
        tables = {name: TableSharding(DATA) for name in self.tables}
        return split_layers(self.graph, Plan(tensor, tables, layers=layers), 0, LAYERS)

    def _no_split(self, tensor: int) -> str:
        """Return why no layers are split."""
        if not self.pairs.pairs:
            return "no linear layer takes the outputs of linear layers alone, so none are split"
        reasons = dict.fromkeys(self.reasons[tensor, str(pair)] for pair in self.pairs.pairs)
        return f"{tensor} ranks split no layers: {'; '.join(reasons)}"

    def _max_time(self) -> float:
        """Return the step time of the last of the best layouts."""
        times = sorted(result.step_time for result in self.results)
        return times[self.max_results - 1] if len(times) >= self.max_results else float("inf")

    def _simulate(self, layout: StepLayout) -> LayoutResult | None:
        """Return the result of a layout, ``None`` if it is refused or does not fit."""
        # shardings of parameters do not change activations
        key = layout.tensor, str(layout.layers), layout.recomputed
        activations = self.activations.get(key, 0)
        bound = self.memory_bound.bytes_with(layout, activations) + self.workspace
        if bound > self.memory:
            self.unfit.append(UnfitLayout(layout, bound, True))
            return None
        self.progress(str(layout))
        plan = layout.plan(self.tables)
        step = self.recomputed_step if layout.recomputed else self.graph
        try:
            rank_step = shard(step, plan, 0).graph
        except RefusedError as error:
            self.refused.append(RefusedLayout(layout, error.reason))
            return None
        self.simulated += 1
        if self.overlap:
            rank_step = with_overlap(rank_step)
        if layout.sharding == "replicated":
            self.activations[key] = activation_bytes(rank_step)
        memory = max(reserved_memory(rank_step), peak_memory(rank_step).peak) + self.workspace
        if memory > self.memory:
            self.unfit.append(UnfitLayout(layout, memory, False))
            return None
        prediction = predict(rank_step, self.options)
        _check_collectives(prediction)
        result = LayoutResult(layout, step, plan, prediction, memory, self.samples)
        self.results.append(result)
        return result

    def _layer_splits(self, tensor: int) -> list[dict[str, LayerScheme]]:
        """Return the choices of layers for a number of ranks.

        All sets of a few pairs are tried. Of more pairs, the ones whose activations stay in parts
        are split together, and then all.
        """
        clean: list[LayerPair] = []
        others: list[LayerPair] = []
        for pair in self.pairs.pairs:
            moves = self._moves(pair, tensor)
            if moves is not None:
                needs_moves = any(moves.get(noun) for noun in GATHERINGS)
                (others if needs_moves else clean).append(pair)
        pairs = [*clean, *others]
        choices = [clean, pairs]
        if len(pairs) <= MAX_COMBINED_PAIRS:
            choices = [list(subset) for subset in _subsets(pairs)]
        unique = {tuple(map(str, choice)): _merge_layers(choice) for choice in choices if choice}
        return list(unique.values())

    def _moves(self, pair: LayerPair, tensor: int) -> Mapping[str, int] | None:
        """Return the conversions of a step with a split pair, ``None`` if it cannot be split."""
        tables = {name: TableSharding(DATA) for name in self.tables}
        try:
            return split_layers(
                self.graph, Plan(tensor, tables, layers=pair.layers), 0, LAYERS
            ).moves
        except RefusedError as error:
            self.reasons[tensor, str(pair)] = error.reason
            self.replicated.setdefault(str(pair), error.reason)
            return None


def _subsets(pairs: list[LayerPair]) -> Iterator[tuple[LayerPair, ...]]:
    for size in range(len(pairs), 0, -1):
        yield from combinations(pairs, size)


def _merge_layers(pairs: list[LayerPair]) -> dict[str, LayerScheme]:
    layers: dict[str, LayerScheme] = {}
    for pair in pairs:
        layers |= pair.layers
    return layers


def _check_collectives(prediction: Prediction) -> None:
    """Raise ``IrgraphError`` if a collective has no time: layouts would differ by work alone."""
    for line in untimed_collectives(prediction.priced):
        hint = "name the links between ranks with --fabric"
        raise fail(f"layouts cannot be compared: {line}", hint=hint)


def _samples_of(graph: Graph) -> int:
    """Return the samples of a step, 0 if it has not one dimension of the batch."""
    if len(graph.dims) != 1:
        return 0
    return next(iter(graph.dims.values())) * batches_per_step(graph)


def _updates_parameters(graph: Graph) -> bool:
    """Return whether a step with a backward pass writes a parameter, or has no backward pass."""
    parameters = {d.tensor.buffer for d in graph.tensors if d.role == "param"}
    leaves = list(graph.leaves())
    if not any(leaf.phase == "backward" for leaf in leaves):
        return True
    return any(tensor.buffer in parameters for leaf in leaves for tensor in written_by(leaf))
