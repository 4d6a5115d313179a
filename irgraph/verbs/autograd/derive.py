"""The backward that torch's autograd derives from forward ops, recorded on the meta device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from irgraph.capture.common.symbolic import other_sizes, with_symbolic_batch
from irgraph.diagnostics import IrgraphError
from irgraph.facts import cached_calls
from irgraph.ir.dim import BATCH, Dim
from irgraph.ir.edit import map_tensors
from irgraph.ir.effects import written_by
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.resize import with_dims
from irgraph.ir.schema import resolve
from irgraph.ir.tensor import DeviceRef, Tensor
from irgraph.ir.torch_schemas.custom_ops import custom_ops
from irgraph.ir.torch_schemas.pure_operators import OperatorError, pure_operator
from irgraph.ir.torch_schemas.registration import register_custom_ops
from irgraph.text import print_graph
from irgraph.verbs.autograd.region import ForwardRegion
from irgraph.verbs.refusal import RefusedError

Torch: TypeAlias = Any
"""An object of torch's."""

HOST = "cpu"
"""Device of tensors in the host's memory."""

MAX_CACHED_REGIONS = 256
"""Maximum number of cached derivations: layers of one model are often equal."""


class DerivationError(RefusedError):
    """Torch cannot run ops, or does not differentiate them by some input."""


class Derived(Struct, frozen=True):
    """Forward ops with their backward, as captured.

    Attributes:
        graph: the captured step.
        inputs: the region's inputs, in its order.
        outputs: the region's outputs.
        cotangents: the gradients of the outputs, inputs of the backward; ``None`` for outputs
            that depend on no input with a gradient.
        gradients: the gradients of the inputs; ``None`` if autograd computes none.
        inner_gradients: the gradients of the region's inner tensors, likewise.
        links: origin of each autograd node's forward call, by origin of the node.
    """

    graph: Graph
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    cotangents: tuple[Tensor | None, ...]
    gradients: tuple[Tensor | None, ...]
    inner_gradients: tuple[Tensor | None, ...]
    links: Mapping[str, str]

    @property
    def forward(self) -> tuple[Op, ...]:
        """The forward ops, in launch order."""
        return tuple(op for op in self.graph.ops if op.phase != "backward")

    @property
    def backward(self) -> tuple[Op, ...]:
        """The autograd nodes, in launch order."""
        return tuple(op for op in self.graph.ops if op.phase == "backward")


def derive(region: ForwardRegion, needs: Collection[int], *, plain: bool = False) -> Derived:
    """Return a region with its backward; ``needs`` are positions of inputs that need a gradient.

    Sizes depend on the graph's dimension as in the region, unless ``plain`` numbers suffice.
    Raises ``DerivationError`` if torch cannot run the ops or differentiate them.
    """
    anonymous = region.canonical_graph()
    dims = set() if plain else _dims_of(anonymous)
    if len(dims) > 1:
        raise _dims_refusal(dims)
    cotangents = region.gradient_types
    types = tuple(_type_only(tensor) for tensor in cotangents)
    text = print_graph(anonymous)
    device = "cpu" if region.graph.settings.get("captured_on") == "cpu" else "meta"
    key = _DeriveKey(text, anonymous, types, tuple(sorted(needs)), device, min(dims, default=""))
    return _derive_cached(key)


def _dims_refusal(dims: Collection[str]) -> RefusedError:
    return RefusedError(f"its sizes do not follow one dimension alone: {', '.join(sorted(dims))}")


def _type_only(tensor: Tensor) -> Tensor:
    return replace(tensor, name="", buffer="", offset=0)


class _DeriveKey(Struct, frozen=True):
    """Arguments of a derivation; ``text`` and the fields after ``graph`` identify them."""

    text: str
    graph: Graph
    cotangents: tuple[Tensor, ...]
    needs: tuple[int, ...]
    device: str
    dim: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _DeriveKey) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[object, ...]:
        sizes = tuple(map(repr, self.cotangents))
        return self.text, sizes, self.needs, self.device, self.dim

    def at_size(self, size: int) -> _DeriveKey:
        """Return the arguments at another size of the dimension."""
        graph = with_dims(self.graph, {self.dim: size})
        holder = replace(self.graph, tensors=(), ops=(), returned=self.cotangents)
        resized = with_dims(holder, {self.dim: size}).returned or ()
        return replace(self, graph=graph, cotangents=resized)


@cached_calls(MAX_CACHED_REGIONS)
def _derive_cached(key: _DeriveKey) -> Derived:
    from irgraph.capture.live import capture

    steps: list[_Step] = []

    def capture_at(size: int) -> Any:  # noqa: ANN401  (a capture)
        steps.append(_Step(key.at_size(size) if key.dim else key))
        return capture(steps[-1], name="region", device=key.device)

    size = key.graph.dims[key.dim] if key.dim else 0
    try:
        captured = capture_at(size)
    except IrgraphError as error:
        diagnostic = error.diagnostics[0]
        cause = diagnostic.notes[-1].message if diagnostic.notes else diagnostic.message
        raise DerivationError(f"torch cannot run or differentiate it: {cause}") from None
    step, graph = steps[0], captured.graph
    if key.dim:
        graph = with_symbolic_batch(captured, size, capture_at, other_sizes(size)).graph
        if BATCH not in graph.dims:
            raise _dims_refusal([key.dim])
        graph = _rename_dim(graph, key.dim)
    return step.to_derived(graph, dict(captured.links))


class _Step:
    """A step that runs forward ops on separate leaves, and their backward."""

    def __init__(self, key: _DeriveKey) -> None:
        import torch

        self.key = key
        self.model = torch.nn.Module()
        self.cotangent_by_source: dict[int, int] = {}
        self.has_gradient: list[bool] = []
        self.has_cotangent: list[bool] = []
        self._leaves = [
            self._leaf(f"x{i}", declared.tensor, i in key.needs)
            for i, declared in enumerate(key.graph.tensors)
        ]
        self._cotangents = [self._leaf(f"g{i}", t, False) for i, t in enumerate(key.cotangents)]

    def _leaf(self, name: str, tensor: Tensor, needs_gradient: bool) -> Torch:
        import torch

        from irgraph.execute.torch_values import DTYPES, strides_of

        shape = tuple(map(int, tensor.shape))
        leaf = torch.empty_strided(
            shape,
            strides_of(tensor),
            dtype=DTYPES[tensor.dtype],
            device=_device(tensor.device, self.key.device),
        )
        if not leaf.is_meta:
            leaf.zero_()
        if needs_gradient:
            self.model.register_parameter(name, torch.nn.Parameter(leaf))
        else:
            self.model.register_buffer(name, leaf)
        return getattr(self.model, name)

    def __call__(self) -> list[Torch]:
        graph = self.key.graph
        values = {d.tensor.name: t for d, t in zip(graph.tensors, self._leaves, strict=True)}
        for op in graph.ops:
            output = _call(op, graph, values, self.key.device)
            single = len(op.results) == 1 and isinstance(op.results[0], tuple)
            results = output if isinstance(output, (tuple, list)) and not single else (output,)
            values.update(_values_by_name(op.results, results))
        returned = [values[tensor.name] for tensor in graph.returned or ()]
        outputs, inner = returned[: len(self._cotangents)], returned[len(self._cotangents) :]
        leaves = [self._leaves[i] for i in self.key.needs]
        gradients = self._differentiate(outputs, [*leaves, *inner])
        self.has_gradient = [gradient is not None for gradient in gradients]
        self.cotangent_by_source = {
            i: j
            for i, gradient in enumerate(gradients)
            for j, cotangent in enumerate(self._cotangents)
            if gradient is cotangent
        }
        new_gradients = [
            gradient
            for i, gradient in enumerate(gradients)
            if gradient is not None and i not in self.cotangent_by_source
        ]
        return [*outputs, *new_gradients]

    def _differentiate(self, outputs: list[Torch], sources: list[Torch]) -> list[Torch]:
        """Return the gradient of each source, ``None`` for one on which no output depends."""
        import torch

        self.has_cotangent = [output.requires_grad for output in outputs]
        if not any(self.has_cotangent):
            raise RuntimeError("no result depends on an input with a gradient")
        pairs = zip(outputs, self._cotangents, strict=True)
        roots, cotangents = zip(*((o, c) for o, c in pairs if o.requires_grad), strict=True)
        needed = [source for source in sources if source.requires_grad]
        gradients = iter(torch.autograd.grad(roots, needed, cotangents, allow_unused=True))
        return [next(gradients) if source.requires_grad else None for source in sources]

    def to_derived(self, graph: Graph, links: Mapping[str, str]) -> Derived:
        """Return the record of a captured graph of this step."""
        key = self.key
        labels = {declared.label: declared.tensor for declared in graph.tensors}

        def labelled_tensor(name: str, tensor: Tensor) -> Tensor:
            return labels.get(name) or replace(tensor, name=name, buffer=f"untouched {name}")

        cotangents = [labelled_tensor(f"g{i}", t) for i, t in enumerate(key.cotangents)]
        count = len(key.cotangents)
        returned = graph.returned or ()
        if len(returned) < count:
            raise DerivationError("its results are missing in the capture of its backward")
        rest = iter(returned[count:])
        gradients: list[Tensor | None] = [None] * len(self.has_gradient)
        for i, has_gradient in enumerate(self.has_gradient):
            if i in self.cotangent_by_source:
                gradients[i] = cotangents[self.cotangent_by_source[i]]
            elif has_gradient:
                gradients[i] = next(rest, None)
        by_input = dict(zip(key.needs, gradients, strict=False))
        positions = range(len(key.graph.tensors))
        inputs = tuple(labelled_tensor(f"x{i}", d.tensor) for i, d in enumerate(key.graph.tensors))
        root_gradients = tuple(
            tensor if has_cotangent else None
            for tensor, has_cotangent in zip(cotangents, self.has_cotangent, strict=True)
        )
        return Derived(
            _with_root_operands(graph, links, returned[:count], root_gradients),
            inputs,
            returned[:count],
            root_gradients,
            tuple(map(by_input.get, positions)),
            tuple(gradients[len(key.needs) :]),
            links,
        )


def _with_root_operands(
    graph: Graph,
    links: Mapping[str, str],
    outputs: Sequence[Tensor],
    cotangents: Sequence[Tensor | None],
) -> Graph:
    """Return a graph whose first autograd nodes have the gradients that the engine passes to them.

    A recording lacks them if no call of the node reads them.
    """
    cotangent_by_output = {
        output.name: cotangent
        for output, cotangent in zip(outputs, cotangents, strict=True)
        if cotangent is not None
    }
    forward = {op.origin: op for op in graph.walk() if op.phase != "backward"}

    def with_operands(op: Op) -> Op:
        call = forward.get(links.get(op.origin, ""))
        if op.phase != "backward" or op.inputs or call is None:
            return op
        names = [tensor.name for tensor in (*call.outputs, *written_by(call))]
        operands = [cotangent_by_output[name] for name in names if name in cotangent_by_output]
        return replace(op, operands=tuple(operands))

    ops = (op for op in graph.ops if op.name != "autograd.GraphRoot")
    return replace(graph, ops=tuple(map(with_operands, ops)))


def _values_by_name(results: Any, values: Any) -> dict[str, Torch]:  # noqa: ANN401  (nested lists)
    value_by_name: dict[str, Torch] = {}
    if len(results) > len(values):
        raise RuntimeError(f"torch makes {len(values)} of its {len(results)} results")
    for result, value in zip(results, values, strict=False):
        if isinstance(result, Tensor):
            value_by_name[result.name] = value
        elif isinstance(result, tuple):
            value_by_name.update(_values_by_name(result, value))
    return value_by_name


def _call(op: Op, graph: Graph, values: Mapping[str, Torch], device: str) -> Torch:
    """Call torch's operator with gradients."""
    import torch

    from irgraph.execute.callables import Computation

    register_custom_ops()
    custom = custom_ops().get(op.name)
    if custom is not None and custom.backward is None:
        raise RuntimeError(f"{op.name} has no backward")
    schema = resolve(op, graph.schemas)
    if schema is None:
        raise RuntimeError(f"torch has no {op.name}")
    try:
        operator = pure_operator(op.name, schema.overload, meta=device == "meta")
    except OperatorError as error:
        raise RuntimeError(f"{op.name} is not differentiated: {error}") from None
    call = Computation(schema, operator)
    leading, keywords = call.arguments(op, lambda tensor: values[tensor.name])
    references = [v for v in (*op.operands, *op.attributes.values()) if isinstance(v, DeviceRef)]
    for place in {_device(reference, device) for reference in references}:
        leading = [place if isinstance(v, torch.device) else v for v in leading]
        keywords = {k: place if isinstance(v, torch.device) else v for k, v in keywords.items()}
    return operator(*leading, **keywords)


def _device(name: str, device: str) -> Torch:
    """Return torch's device for one of the graph: all of its accelerators are one."""
    import torch

    return torch.device("cpu" if name == HOST else device)


def _dims_of(graph: Graph) -> set[str]:
    """Return the dimensions on which the sizes in a graph depend."""
    dims: set[str] = set()

    def look(value: object) -> None:
        if isinstance(value, Dim):
            dims.update(name for names, _ in value.terms for name in names)
        elif isinstance(value, tuple):
            for item in value:
                look(item)
        elif isinstance(value, Tensor):
            look((*value.shape, *(value.strides or ()), value.offset))

    for op in graph.walk():
        look((*op.operands, *op.results, *op.attributes.values()))
    return dims


def _rename_dim(graph: Graph, name: str) -> Graph:
    """Return a captured graph whose dimension has another name."""
    if name == BATCH:
        return graph

    def size(value: Any) -> Any:  # noqa: ANN401  (any attribute)
        if isinstance(value, Dim):
            terms = tuple((tuple(name for _ in names), count) for names, count in value.terms)
            return Dim(int(value), terms)
        return tuple(map(size, value)) if isinstance(value, tuple) else value

    def tensor(original: Tensor) -> Tensor:
        shape, strides = size(original.shape), size(original.strides)
        return replace(original, shape=shape, strides=strides, offset=size(original.offset))

    def op(original: Op) -> Op:
        resized = map_tensors(replace(original, body=()), tensor)
        attributes = {key: size(value) for key, value in resized.attributes.items()}
        return replace(resized, attributes=attributes, body=tuple(map(op, original.body)))

    return replace(
        graph,
        dims={name: graph.dims[BATCH]},
        tensors=tuple(replace(d, tensor=tensor(d.tensor)) for d in graph.tensors),
        ops=tuple(map(op, graph.ops)),
        returned=tuple(map(tensor, graph.returned or ())),
    )
