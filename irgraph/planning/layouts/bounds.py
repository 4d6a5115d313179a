"""Lower bounds of a layout's memory and step time, which need no simulation of the layout."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

import numpy as np

from irgraph.ir.cost import COLLECTIVE
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.ranks import group_of, is_collective
from irgraph.planning.layouts.layout import StepLayout
from irgraph.plans.layout import LAYERS
from irgraph.plans.plan import LayerScheme, Plan
from irgraph.predict.prediction import Prediction
from irgraph.schedule.intervals import OVERHEADS
from irgraph.schedule.memory.peak import memory_by_op
from irgraph.schedule.timeline import busy_time
from irgraph.verbs.sharding.layers import linear_layers, match_layers

SHARD = "shard"
"""Origin of the ops that ``shard`` adds."""


class MemoryBound:
    """Lower bound of a rank's memory: tensors between the backward pass and the update."""

    def __init__(self, graph: Graph) -> None:
        self._layers = linear_layers(graph)
        sizes: dict[str, int] = {}
        roles: dict[str, str] = {}
        for declared in graph.tensors:
            tensor = declared.tensor
            if tensor.device != graph.device:
                continue
            sizes[tensor.buffer] = max(tensor.nbytes, sizes.get(tensor.buffer, 0))
            roles.setdefault(tensor.buffer, declared.role)
        self._bytes: Counter[str] = Counter()
        for buffer, size in sizes.items():
            self._bytes[roles[buffer]] += size
        _, bytes_by_kind = memory_by_op(graph)
        if "gradients" in bytes_by_kind:
            self._bytes["gradient"] = int(bytes_by_kind["gradients"][-1])

    def bytes_of(self, layout: StepLayout) -> float:
        """Return the minimum number of bytes of a rank of a layout."""
        plan = layout.plan()
        parameter_ranks = layout.data if plan.parameters else 1
        state_ranks = layout.data if plan.parameters or plan.optimizer else 1
        gradient_ranks = layout.data if plan.parameters or plan.gradients else 1
        parameters = self._parameter_bytes(layout)
        state = self._bytes["state"] / layout.tensor
        gradients = self._bytes["gradient"] / layout.tensor
        return parameters / parameter_ranks + state / state_ranks + gradients / gradient_ranks

    def bytes_with(self, layout: StepLayout, activations: int) -> float:
        """Return the minimum, given the peak of activations in bytes."""
        plan = layout.plan()
        parameter_ranks = layout.data if plan.parameters else 1
        state_ranks = layout.data if plan.parameters or plan.optimizer else 1
        stored = self._parameter_bytes(layout) / parameter_ranks
        state = self._bytes["state"] / layout.tensor / state_ranks
        return max(self.bytes_of(layout), stored + state + activations)

    def _parameter_bytes(self, layout: StepLayout) -> float:
        """Return the minimum bytes of parameters before ranks with other samples share them."""
        split = self._split_bytes(layout.layers)
        return self._bytes["param"] - split + split / layout.tensor

    def _split_bytes(self, layers: Mapping[str, LayerScheme]) -> int:
        """Return the bytes of the parameters of split layers."""
        sizes: dict[str, int] = {}
        if not layers:
            return 0
        for layer, _ in match_layers(Plan(1, layers=layers), self._layers).values():
            sizes[layer.weight.buffer] = layer.weight.nbytes
            if layer.bias is not None:
                sizes[layer.bias.buffer] = layer.bias.nbytes
        return sum(sizes.values())


def activation_bytes(step: Graph) -> int:
    """Return the peak of a step's activations alone."""
    _, bytes_by_kind = memory_by_op(step)
    return int(max(bytes_by_kind.get("activations", [0])))


class TimeBound:
    """Lower bound of the step of all shardings of a mesh, by the prediction of one of them.

    All of them launch and compute the same on the same parts of layers. Left out are updates, and
    the work that a sharding of parameters adds. Times in microseconds.
    """

    def __init__(self, split: Graph) -> None:
        """Start a bound.

        Args:
            split: the step with split layers, before samples are shared.
        """
        self._names: set[str] = set()
        for op in split.walk():
            if op.origin == SHARD:
                self._names.update(_names(op))

    def time(self, prediction: Prediction) -> float:
        """Return the bound: common work of the device or of the host."""
        return max(self._device_time(prediction), self._host_time(prediction))

    def _device_time(self, prediction: Prediction) -> float:
        """Return the common work of the device's busiest stream."""
        times: dict[str, float] = defaultdict(float)
        for op in prediction.priced.graph.walk():
            for kernel in prediction.priced.kernels.get(op, ()):
                if self._is_common(op, kernel.family == COLLECTIVE, kernel.group):
                    times[op.stream] += kernel.time
        # a step that communicates more draws less power: products may run at a higher clock
        power = prediction.priced.power
        added = power.added if power is not None else 0.0
        return max(times.values(), default=0.0) - added

    def _host_time(self, prediction: Prediction) -> float:
        """Return the common work of host threads, less the time in which several of them work."""
        columns = prediction.timeline.columns
        tasks = columns.tasks
        is_work = np.any([tasks.has_cause(cause) for cause in OVERHEADS], axis=0)
        lengths = np.where(is_work, columns.end - columns.start, 0.0)
        overlap = lengths.sum() - busy_time(columns.start[is_work], columns.end[is_work])
        is_common = [self._is_common(op, is_collective(op), group_of(op)) for op in columns.ops]
        # tasks without an op have index -1
        counted = np.array([*is_common, False])[tasks.op]
        return float(lengths[counted].sum() - overlap)

    def _is_common(self, op: Op, is_exchange: bool, group: str) -> bool:
        """Return whether work does not depend on how parameters are shared."""
        if is_exchange:
            return group == LAYERS
        # events of streams differ between shardings
        if op.phase == "optimizer" or op.name.startswith("sync."):
            return False
        return op.origin != SHARD or self._names.issuperset(_names(op))


def _names(op: Op) -> set[str]:
    """Return the names of a call's tensors."""
    return {tensor.name for tensor in (*op.inputs, *op.outputs)}
