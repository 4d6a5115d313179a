"""Runs a graph: real memory for every tensor, torch's own kernels for every op."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from irgraph.diagnostics import IrgraphError, SourceSpan, fail
from irgraph.execute.bounds import check_operands
from irgraph.execute.caches import fill_caches
from irgraph.execute.callables import Check, all_computations, computations, span_of
from irgraph.execute.narrow.preparation import prepare
from irgraph.execute.random_values import TAME, Drawer
from irgraph.execute.records import Result
from irgraph.execute.torch_values import (
    DTYPES,
    Torch,
    start_of,
    storage_of,
    strides_of,
    view_of,
)
from irgraph.ir.dtypes import FROM_TORCH
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.narrow.expanded import expanded_of
from irgraph.ir.narrow.prepared import prepared_of, sources_of
from irgraph.ir.op import Op
from irgraph.ir.resize import fixed_dims
from irgraph.ir.schema import schemas_of
from irgraph.ir.tensor import Tensor
from irgraph.ops.book import meaning_of
from irgraph.ops.live_out import UNFILLED, is_label, reads_on_host, saves_auxiliaries
from irgraph.ops.references.rows import expand

Watch = Callable[[Op, Mapping[str, Torch]], None]
"""Callback after each op, with the value of every name so far; it may change values."""

Inspect = Callable[[Op, Mapping[str, Torch]], None]
"""Callback before each call, with its arguments by the names of its schema."""


def run(
    graph: Graph,
    inputs: Mapping[str, Any],
    seed: int,
    watch: Watch | None = None,
    manner: str = TAME,
    inspect: Inspect | None = None,
) -> Result:
    """Run a graph; see ``irgraph.execute.execute`` for the arguments and errors.

    Collectives act as in a single process. ``manner`` is the way in which values are drawn.
    """
    names = graph.by_name.keys() | sources_of(graph).keys()
    for name in inputs:
        if name not in names:
            matches = difflib.get_close_matches(name, list(names), 1)
            hint = f"; did you mean {matches[0]!r}?" if matches else ""
            raise fail(f"an input is given for %{name}, which the model lacks{hint}", exit_code=2)
    with without_autograd(precision(graph)):
        machine = Machine(graph, inputs, Drawer(graph, seed, manner), watch)
        machine.inspect = inspect
        machine.run()
    return Result(machine.values, machine.initial, machine.read)


def precision(graph: Graph) -> torch.dtype:
    """Return the default floating type of a graph: f64 if it has f64 and no f32, else f32."""
    dtypes = {tensor.dtype for tensor in graph.by_name.values()}
    return torch.float64 if "f64" in dtypes and "f32" not in dtypes else torch.float32


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: sums over several threads differ from run to run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def without_autograd(default: torch.dtype = torch.float32) -> Iterator[None]:
    """Compute without autograd on one thread, and restore torch's settings afterwards."""
    previous = torch.get_default_dtype()
    torch.set_default_dtype(default)
    try:
        with one_thread(), torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        torch.set_default_dtype(previous)


class Machine:
    """The state of one execution: the value of every name so far."""

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Any],
        drawer: Drawer,
        watch: Watch | None = None,
        excluded: Collection[str] = (),
    ) -> None:
        """Allocate the tensors that exist before the step.

        Ops named in ``excluded`` are computed elsewhere.
        """
        self.graph = graph
        self.watch = watch
        self.inspect: Inspect | None = None
        self.inputs = inputs
        self.values: dict[str, Torch] = {}
        self.initial: dict[str, Torch] = {}
        self.read: list[tuple[str, Torch]] = []
        self._draw_counts: dict[str, int] = {}
        self._absent_statistics: set[str] = set()
        self._drawer = drawer
        self.computations = computations(graph, excluded) if excluded else all_computations(graph)
        self._declare()

    def _declare(self) -> None:
        """Allocate the buffers that exist before the step, with all views of each."""
        buffers: dict[str, int] = {}
        for declared in self.graph.tensors:
            tensor = declared.tensor
            if tensor.strides and not any(tensor.strides) and tensor.numel > 1:
                message = f"%{tensor.name} is sparse and exists before the step: it cannot be drawn"
                hint = "capture a step that zeroes its gradients, or one with dense gradients"
                source = self.graph.source or self.graph.name
                raise fail(message, SourceSpan(source), hint=hint)
            buffers[tensor.buffer] = max(buffers.get(tensor.buffer, 0), tensor.extent[1])
        storages = {
            name: torch.zeros(size, dtype=torch.uint8).untyped_storage()
            for name, size in buffers.items()
        }
        for declared in self.graph.tensors:
            tensor = declared.tensor
            self.values[tensor.name] = view_of(storages[tensor.buffer], tensor)
            if tensor.name not in self.inputs:
                self._drawer.fill(tensor, self.values[tensor.name], declared.role)
        for name, storage in storages.items():
            self._drawer.apply_rules(name, storage)
        for declared in self.graph.tensors:
            self._set_constant(declared)
            self._copy_input(declared.tensor)
        self._prepare()
        fill_caches(
            self.graph, self.values, self.inputs, self._drawer.generator("caches").initial_seed()
        )
        for declared in self.graph.tensors:
            self.initial[declared.tensor.name] = self.values[declared.tensor.name].clone()

    def _prepare(self) -> None:
        """Fill prepared parameters from their sources, which may not be in the step."""
        rows_by_mapping = {w.mapping.name: int(w.table.shape[0]) for w in expanded_of(self.graph)}
        for tensor in sources_of(self.graph).values():
            value = self.values.get(tensor.name)
            if value is None:
                value = torch.empty(tuple(map(int, tensor.shape)), dtype=DTYPES[tensor.dtype])
                self._drawer.fill(tensor, value, "param")
                if tensor.name in rows_by_mapping:
                    source = self._drawer.generator(tensor.name)
                    value.copy_(
                        torch.randint(
                            -1, rows_by_mapping[tensor.name], value.shape, generator=source
                        )
                    )
                self._copy_input(tensor, value)
                self.initial[tensor.name] = value
            for prepared in prepared_of(self.graph):
                if prepared.source.name == tensor.name and prepared.name not in self.inputs:
                    self.values[prepared.name].copy_(prepare(prepared, value))
        for expanded in expanded_of(self.graph):
            if expanded.name not in self.inputs:
                table, mapping = (self._source(t.name) for t in (expanded.table, expanded.mapping))
                if len(mapping) and int(mapping.max()) >= len(table):
                    message = (
                        f"%{expanded.mapping.name} has row {int(mapping.max())} of {len(table)}"
                    )
                    raise fail(
                        message, SourceSpan(self.graph.source or self.graph.name), exit_code=2
                    )
                self.values[expanded.name].copy_(expand(table, mapping))

    def _source(self, name: str) -> Torch:
        """Return the source of a prepared parameter, which may be outside the step's buffers."""
        return self.values[name] if name in self.values else self.initial[name]

    def _set_constant(self, declared: Declared) -> None:
        """Copy a constant's value into its memory."""
        if declared.value is None:
            return
        view = self.values[declared.tensor.name]
        if len(declared.value) != view.numel():
            sizes = f"{len(declared.value)} elements, and {view.numel()} at this size"
            raise fail(f"the value of %{declared.tensor.name} has {sizes}", exit_code=2)
        real = view.dtype.is_floating_point
        kind = torch.float64 if real else view.dtype
        view.copy_(torch.tensor(declared.value, dtype=kind).view(view.shape))

    def _copy_input(self, tensor: Tensor, view: Torch = None) -> None:
        """Copy the caller's value, if there is one, into a tensor's memory."""
        if tensor.name not in self.inputs:
            return
        value = torch.as_tensor(self.inputs[tensor.name])
        view = self.values[tensor.name] if view is None else view
        if value.shape != view.shape:
            sizes = f"{list(value.shape)}, not {list(view.shape)}"
            raise fail(f"the input given for %{tensor.name} is {sizes}", exit_code=2)
        view.copy_(value)

    def run(self) -> None:
        """Run every leaf in launch order."""
        for _ in self.steps():
            pass

    def steps(self) -> Iterator[Op]:
        """Run every leaf in launch order, and yield each after it has run."""
        for op in self.graph.leaves():
            if not is_label(op):
                self.step(op)
                yield op

    def step(self, op: Op) -> None:
        """Compute one leaf."""
        if any(schema.random for schema in schemas_of(op.name)):
            self._seed(op)
        self._check_statistics(op)
        try:
            call_result = self.computations[op](op, self._value, self._check(op))
        except Exception as error:
            first = str(error).strip().partition("\n")[0]
            raise self._error(op, f"{op.name} cannot be executed: {first}") from error
        self.finish(op, call_result)

    def _check(self, op: Op) -> Check:
        """Return the check of an op's arguments, which also shows them to ``inspect``."""
        inspect = self.inspect
        if inspect is None:
            return check_operands

        def check(name: str, arguments: Mapping[str, Torch]) -> None:
            check_operands(name, arguments)
            inspect(op, arguments)

        return check

    def finish(self, op: Op, call_result: Torch) -> None:
        """Bind the results of a leaf to their names."""
        if reads_on_host(op):
            for tensor in op.inputs:
                self.read.append((tensor.name, self.values[tensor.name].clone()))
        outputs = self._outputs(op, call_result)
        if len(outputs) < len(op.results):
            raise self._error(
                op, f"{op.name} gave {len(outputs)} results, the model says {len(op.results)}"
            )
        for index, (result, value) in enumerate(zip(op.results, outputs, strict=False)):
            internal = index > 0 and _is_internal(op, index)
            if isinstance(result, Tensor):
                self._bind(op, result, value, internal)
            elif result is not None:
                if not isinstance(value, (list, tuple)) or len(value) != len(result):
                    raise self._error(op, f"{op.name} gave another number of tensors in a list")
                for part, element in zip(result, value, strict=True):
                    self._bind(op, part, element, internal)
        if self.watch is not None:
            self.watch(op, self.values)

    def _check_statistics(self, op: Op) -> None:
        """Raise an error if an op reads the statistics of a norm that computed none.

        Torch would read past their end. On the CPU a norm with fixed statistics saves none, and its
        backward, which has ``train=False``, reads none.
        """
        for tensor in op.inputs:
            if tensor.name in self._absent_statistics and op.attributes.get("train") is not False:
                message = f"{op.name} reads %{tensor.name}, statistics of a norm that made none"
                raise self._error(op, message)

    def _seed(self, op: Op) -> None:
        """Seed a random op by its results, so that it draws the same values at any position."""
        names = [*(t.name for t in op.outputs), *sorted(op.written)]
        key = names[0] if names else op.name
        count = self._draw_counts[key] = self._draw_counts.get(key, 0) + 1
        torch.manual_seed(self._drawer.generator("random", key, count).initial_seed())

    def _value(self, tensor: Tensor) -> Torch:
        return self.values[tensor.name]

    def _outputs(self, op: Op, call_result: Torch) -> list[Torch]:
        """Return the results of a call without operands and numbers."""
        results = list(call_result) if isinstance(call_result, tuple) else [call_result]
        if isinstance(call_result, list):
            results = [call_result]
        if len(results) == 1 and call_result is None:
            return []
        operands = [self.values[t.name] for t in op.inputs]
        if len(results) > len(op.results):
            results = [
                value for value in results if not any(value is operand for operand in operands)
            ]
        kinds = (torch.Tensor, list, tuple, type(None))
        return [value for value in results if isinstance(value, kinds)]

    def _bind(self, op: Op, tensor: Tensor, value: Torch, internal: bool) -> None:
        """Bind a value to its name, after a check against the model's type."""
        if not isinstance(value, torch.Tensor):
            raise self._error(op, f"{op.name} gave no tensor for %{tensor.name}")
        if not internal:
            self._check_type(op, tensor, value)
        elif op.base.endswith("batch_norm") and not value.numel():
            self._absent_statistics.add(tensor.name)
        if value.layout == torch.strided and value.numel():
            value = self._place_result(op, tensor, value)
            if op.base in UNFILLED:
                self._fill(tensor, value)
        self.values[tensor.name] = value

    def _check_type(self, op: Op, tensor: Tensor, value: Torch) -> None:
        shape = tuple(map(int, tensor.shape))
        if tuple(value.shape) == shape and value.dtype == DTYPES[tensor.dtype]:
            return
        dtype = str(value.dtype).removeprefix("torch.")
        actual = f"{FROM_TORCH.get(dtype, value.dtype)}{list(value.shape)}"
        expected = f"{tensor.dtype}{list(shape)}"
        message = f"{op.name} gave {actual} for %{tensor.name}, which the model says is {expected}"
        hint = "where a size depends on values, a step cannot be executed on other values"
        raise fail(message, span_of(op, self.graph), hint=hint)

    def _place_result(self, op: Op, tensor: Tensor, value: Torch) -> Torch:
        """Return a result in the model's buffer: an operand's, or its own."""
        sources = [self.values[t.name] for t in op.inputs]
        shares = storage_of(value) in {storage_of(source) for source in sources}
        holders = [t for t in op.inputs if t.buffer == tensor.buffer]
        if shares:
            return value if holders else value.clone()
        if not holders:
            return _with_model_strides(tensor, value)
        base = self.values[holders[0].name]
        if base.layout != torch.strided:
            return value
        shift = start_of(base) - int(holders[0].offset)
        view = view_of(base.untyped_storage(), tensor, shift)
        if not torch.equal(view, value):
            message = (
                f"%{tensor.name} is not what lies in ${tensor.buffer}, where the model puts it"
            )
            raise self._error(op, message)
        return view

    def _fill(self, tensor: Tensor, value: Torch) -> None:
        """Draw values for memory that no op fills, but the program itself."""
        self._drawer.fill(tensor, value, "input")
        self._drawer.apply_rules(
            tensor.buffer, value.untyped_storage(), start_of(value) - tensor.offset
        )
        self.values[tensor.name] = value
        self._copy_input(tensor)
        self.initial[tensor.name] = value.clone()

    def _error(self, op: Op, message: str) -> IrgraphError:
        dims, fixed = self.graph.dims, fixed_dims(self.graph).items()
        sizes = " ".join(f"--dim {name}={size}" for name, size in fixed if dims[name] != size)
        hint = f"some sizes of this model hold at the captured size alone: {sizes}" if sizes else ""
        return fail(message, span_of(op, self.graph), hint=hint)


def _is_internal(op: Op, index: int) -> bool:
    """Return whether a result after the first is for the op's own backward.

    Their sizes differ by device: the CPU saves nothing for a norm with fixed statistics.
    """
    meaning = meaning_of(op)
    if meaning is not None and len(meaning.results) > index and meaning.results[index].is_workspace:
        return True
    trains = op.attributes.get("training", op.operands[5] if len(op.operands) > 5 else None)
    return saves_auxiliaries(op) or (op.base.endswith("batch_norm") and trains is False)


def _with_model_strides(tensor: Tensor, value: Torch) -> Torch:
    """Return a new result with the strides of the model."""
    if tuple(value.shape) != tuple(map(int, tensor.shape)):
        return value
    strides = strides_of(tensor)
    axes = zip(value.shape, value.stride(), strides, strict=True)
    if all(size <= 1 or real == step for size, real, step in axes) or 0 in strides:
        return value
    return torch.empty_strided(tuple(value.shape), strides, dtype=value.dtype).copy_(value)
