"""What torch's autograd makes of some forward ops: they are run on the meta device and recorded."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.common.symbolic import other_sizes, with_symbolic_batch
from irgraph.diagnostics import IrgraphError
from irgraph.ir.dim import Dim
from irgraph.ir.edit import map_tensors
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.resize import with_dims
from irgraph.ir.schema import resolve
from irgraph.ir.tensor import DeviceRef, Tensor
from irgraph.ir.torch_schemas.differentiable import register
from irgraph.text import print_graph
from irgraph.verbs.autograd.region import Region
from irgraph.verbs.refusal import RefusedError

Torch: TypeAlias = Any
"""An object of torch's."""

REMEMBERED = 256
"""Regions whose derivation is kept: layers of one model are often alike."""

DIM = "B"
"""What a capture calls its batch dimension."""


class Derived(Struct, frozen=True):
    """Forward ops with their backward, as a capture shows them.

    Attributes:
        graph: the captured step.
        inputs: the region's inputs, in its order.
        outputs: its outputs.
        cotangents: the gradients of the outputs, which the backward takes.
        gradients: the gradients of the inputs; ``None`` where autograd makes none.
        links: origins of autograd nodes, with that of the forward call that each belongs to.
    """

    graph: Graph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    cotangents: tuple[Tensor, ...]
    gradients: tuple[Tensor | None, ...]
    links: Mapping[str, str]

    @property
    def forward(self) -> tuple[Op, ...]:
        """The forward ops, in launch order."""
        return tuple(op for op in self.graph.ops if op.phase != "backward")

    @property
    def backward(self) -> tuple[Op, ...]:
        """The autograd nodes, in launch order."""
        return tuple(op for op in self.graph.ops if op.phase == "backward")


def derive(region: Region, needs: Collection[int], *, plain: bool = False) -> Derived:
    """Return a region with its backward; ``needs`` are places of inputs whose gradient is wanted.

    Sizes that follow from the graph's dimension do so in the result, unless ``plain`` numbers will
    do. Raises ``RefusedError`` where torch cannot run the ops, or not differentiate them.
    """
    alone = region.renamed()
    dims = set() if plain else _dims_of(alone)
    if len(dims) > 1:
        raise _unfit(dims)
    cotangents = region.cotangents or region.outputs
    types = tuple(_alone(tensor) for tensor in cotangents)
    key = print_graph(alone)
    device = "cpu" if region.graph.settings.get("captured_on") == "cpu" else "meta"
    asked = _DeriveKey(key, alone, types, tuple(sorted(needs)), device, min(dims, default=""))
    return _derived(asked)


def _unfit(dims: Collection[str]) -> RefusedError:
    return RefusedError(f"its sizes do not follow one dimension alone: {', '.join(sorted(dims))}")


def _alone(tensor: Tensor) -> Tensor:
    return replace(tensor, name="", buffer="", offset=0)


class _DeriveKey(Struct, frozen=True):
    """A question to torch; ``key`` and what follows the graph tell two apart."""

    key: str
    graph: Graph
    cotangents: tuple[Tensor, ...]
    needs: tuple[int, ...]
    device: str
    dim: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _DeriveKey) and self._told() == other._told()

    def __hash__(self) -> int:
        return hash(self._told())

    def _told(self) -> tuple[object, ...]:
        sizes = tuple(map(repr, self.cotangents))
        return self.key, sizes, self.needs, self.device, self.dim

    def at(self, size: int) -> _DeriveKey:
        """Return the question at another size of the dimension."""
        graph = with_dims(self.graph, {self.dim: size})
        held = replace(self.graph, tensors=(), ops=(), returned=self.cotangents)
        resized = with_dims(held, {self.dim: size}).returned or ()
        return replace(self, graph=graph, cotangents=resized)


@lru_cache(maxsize=REMEMBERED)
def _derived(asked: _DeriveKey) -> Derived:
    from irgraph.capture.live import capture

    steps: list[_Step] = []

    def at(size: int) -> Any:  # noqa: ANN401  (a capture)
        steps.append(_Step(asked.at(size) if asked.dim else asked))
        return capture(steps[-1], name="region", device=asked.device)

    size = asked.graph.dims[asked.dim] if asked.dim else 0
    try:
        captured = at(size)
    except IrgraphError as error:
        told = error.diagnostics[0]
        last = told.notes[-1].message if told.notes else told.message
        raise RefusedError(f"torch cannot run or differentiate it: {last}") from None
    step, graph = steps[0], captured.graph
    if asked.dim:
        graph = with_symbolic_batch(captured, size, at, other_sizes(size)).graph
        if DIM not in graph.dims:
            raise _unfit([asked.dim])
        graph = _renamed_dim(graph, asked.dim)
    return step.derived(graph, dict(captured.links))


class _Step:
    """Runs forward ops on leaves of their own, and their backward."""

    def __init__(self, asked: _DeriveKey) -> None:
        import torch

        self.asked = asked
        self.model = torch.nn.Module()
        self.same: dict[int, int] = {}
        self.given: list[bool] = []
        self._leaves = [
            self._leaf(f"x{i}", declared.tensor, i in asked.needs)
            for i, declared in enumerate(asked.graph.tensors)
        ]
        self._cotangents = [self._leaf(f"g{i}", t, False) for i, t in enumerate(asked.cotangents)]

    def _leaf(self, name: str, tensor: Tensor, needed: bool) -> Torch:
        import torch

        from irgraph.execute.torch_values import DTYPES, strides_of

        shape = tuple(map(int, tensor.shape))
        made = torch.empty_strided(
            shape, strides_of(tensor), dtype=DTYPES[tensor.dtype], device=self.asked.device
        )
        if self.asked.device != "meta":
            made.zero_()
        if needed:
            self.model.register_parameter(name, torch.nn.Parameter(made))
        else:
            self.model.register_buffer(name, made)
        return getattr(self.model, name)

    def __call__(self) -> list[Torch]:
        import torch

        graph = self.asked.graph
        values = {d.tensor.name: t for d, t in zip(graph.tensors, self._leaves, strict=True)}
        for op in graph.ops:
            made = _run(op, graph, values, self.asked.device)
            single = len(op.results) == 1 and isinstance(op.results[0], tuple)
            results = made if isinstance(made, (tuple, list)) and not single else (made,)
            values.update(_named(op.results, results))
        outputs = [values[tensor.name] for tensor in graph.returned or ()]
        wanted = [self._leaves[i] for i in self.asked.needs]
        found = torch.autograd.grad(outputs, wanted, self._cotangents, allow_unused=True)
        self.given = [one is not None for one in found]
        self.same = {
            i: j for i, one in enumerate(found) for j, g in enumerate(self._cotangents) if one is g
        }
        kept = [one for i, one in enumerate(found) if one is not None and i not in self.same]
        return [*outputs, *kept]

    def derived(self, graph: Graph, links: Mapping[str, str]) -> Derived:
        """Return what a capture of this step is."""
        asked = self.asked
        labels = {declared.label: declared.tensor for declared in graph.tensors}

        def named(name: str, tensor: Tensor) -> Tensor:
            return labels.get(name) or replace(tensor, name=name, buffer=f"untouched {name}")

        cotangents = tuple(named(f"g{i}", t) for i, t in enumerate(asked.cotangents))
        count = len(asked.graph.returned or ())
        returned = graph.returned or ()
        rest = iter(returned[count:])
        gradients: dict[int, Tensor | None] = {}
        for i, place in enumerate(asked.needs):
            if i in self.same:
                gradients[place] = cotangents[self.same[i]]
            elif self.given[i]:
                gradients[place] = next(rest, None)
        places = range(len(asked.graph.tensors))
        inputs = tuple(named(f"x{i}", d.tensor) for i, d in enumerate(asked.graph.tensors))
        found = tuple(map(gradients.get, places))
        return Derived(graph, inputs, returned[:count], cotangents, found, links)


def _named(results: Any, made: Any) -> dict[str, Torch]:  # noqa: ANN401  (nested lists)
    found: dict[str, Torch] = {}
    if len(results) > len(made):
        raise RuntimeError(f"torch makes {len(made)} of its {len(results)} results")
    for result, value in zip(results, made, strict=False):
        if isinstance(result, Tensor):
            found[result.name] = value
        elif isinstance(result, tuple):
            found.update(_named(result, value))
    return found


def _run(op: Op, graph: Graph, values: Mapping[str, Torch], device: str) -> Torch:
    """Call torch's operator with gradients."""
    import torch

    from irgraph.execute.callables import Computation

    register()
    schema = resolve(op, graph.schemas)
    library, _, base = op.name.partition(".")
    packet = getattr(getattr(torch.ops, library, None), base, None)
    if schema is None or packet is None:
        raise RuntimeError(f"torch has no {op.name}")
    if any(isinstance(value, DeviceRef) for value in op.attributes.values()):
        raise RuntimeError(f"{op.name} names a device")
    called = getattr(packet, schema.overload or "default")
    return Computation(schema, called)(op, lambda tensor: values[tensor.name])


def _dims_of(graph: Graph) -> set[str]:
    """Return the dimensions that the sizes in a graph follow from."""
    found: set[str] = set()

    def look(value: object) -> None:
        if isinstance(value, Dim):
            found.update(name for names, _ in value.terms for name in names)
        elif isinstance(value, tuple):
            for item in value:
                look(item)
        elif isinstance(value, Tensor):
            look((*value.shape, *(value.strides or ()), value.offset))

    for op in graph.walk():
        look((*op.operands, *op.results, *op.attributes.values()))
    return found


def _renamed_dim(graph: Graph, name: str) -> Graph:
    """Return a capture whose dimension has another name."""
    if name == DIM:
        return graph

    def size(value: Any) -> Any:  # noqa: ANN401  (any attribute)
        if isinstance(value, Dim):
            terms = tuple((tuple(name for _ in names), count) for names, count in value.terms)
            return Dim(int(value), terms)
        return tuple(map(size, value)) if isinstance(value, tuple) else value

    def tensor(one: Tensor) -> Tensor:
        shape, strides = size(one.shape), size(one.strides)
        return replace(one, shape=shape, strides=strides, offset=size(one.offset))

    def op(one: Op) -> Op:
        changed = map_tensors(replace(one, body=()), tensor)
        attributes = {key: size(value) for key, value in changed.attributes.items()}
        return replace(changed, attributes=attributes, body=tuple(map(op, one.body)))

    return replace(
        graph,
        dims={name: graph.dims[DIM]},
        tensors=tuple(replace(d, tensor=tensor(d.tensor)) for d in graph.tensors),
        ops=tuple(map(op, graph.ops)),
        returned=tuple(map(tensor, graph.returned or ())),
    )
