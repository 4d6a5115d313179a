"""Ops as an FX graph of torch's calls, decomposed as by torch's compiler."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.utils._pytree import tree_map

from irgraph.capture.common.torch_object import Torch
from irgraph.execute.callables import Computation
from irgraph.execute.torch_values import DTYPES, strides_of
from irgraph.ir.op import Op, tensors_in
from irgraph.ir.tensor import Tensor

DEVICE = "cuda"
Calls = Sequence[tuple[Op, int, Computation]]
"""Ops, their positions among the compiled ones, and their implementations."""


def _outside_inputs(leaves: Iterable[Op]) -> list[Tensor]:
    """Return the operands of ops that none of them makes, each name once."""
    defined: set[str] = set()
    inputs: dict[str, Tensor] = {}
    for op in leaves:
        for tensor in op.inputs:
            if tensor.name not in defined:
                inputs.setdefault(tensor.name, tensor)
        defined.update(tensor.name for tensor in op.outputs)
    return list(inputs.values())


def _empty(tensor: Tensor) -> Torch:
    shape = tuple(map(int, tensor.shape))
    return torch.empty_strided(shape, strides_of(tensor), dtype=DTYPES[tensor.dtype])


def trace(calls: Calls, used_results: Sequence[Tensor]) -> tuple[Torch, dict[str, int]]:
    """Return ops as an FX graph of torch's calls, and each op's position by name of its nodes."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    inputs = _outside_inputs(op for op, *_ in calls)
    tags: dict[str, int] = {}

    def run(*values: Torch) -> list[Torch]:
        mode = get_proxy_mode()
        assert mode is not None
        value_by_name = dict(zip((t.name for t in inputs), values, strict=True))
        nodes = mode.tracer.graph.nodes
        before = len(nodes)
        for op, number, call in calls:
            _bind_results(op, call, call(op, lambda t: value_by_name[t.name]), value_by_name)
            tags.update((node.name, number) for node in list(nodes)[before:])
            before = len(nodes)
        return [value_by_name[tensor.name] for tensor in used_results]

    return make_fx(run)(*map(_empty, inputs)), tags


def _bind_results(op: Op, call: Computation, value: Torch, value_by_name: dict[str, Torch]) -> None:
    """Bind the values that an op returned to names; operands that it wrote are bound already."""
    values = list(value) if isinstance(value, tuple) else [value]
    returns = call.schema.returns if call.schema is not None else ()
    new_values = [v for v, returned in zip(values, returns, strict=False) if not returned.written]
    for result, output in zip(op.results, new_values, strict=False):
        if result is None:
            continue
        is_tuple = isinstance(result, tuple)
        for tensor, part in zip(
            tensors_in([result]), output if is_tuple else [output], strict=True
        ):
            value_by_name[tensor.name] = _with_layout(part, tensor)


def _with_layout(value: Torch, tensor: Tensor) -> Torch:
    """Return a result in the model's layout: on a CPU some ops use a different one."""
    strides = strides_of(tensor)
    if value.stride() == strides or not tensor.numel or 0 in strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype).copy_(value)


class _Tagger(torch.fx.Interpreter):  # type: ignore[misc]
    """Interpreter that runs a graph again, and records the original op of each new node."""

    def __init__(self, module: Torch, tags: Mapping[str, int], new_tags: dict[str, int]) -> None:
        super().__init__(module)
        self.tags, self.new_tags = tags, new_tags

    def run_node(self, n: Torch) -> Torch:
        """Run a node."""
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        mode = get_proxy_mode()
        assert mode is not None
        nodes = mode.tracer.graph.nodes
        before = len(nodes)
        result = super().run_node(n)
        if n.name in self.tags:
            for node in list(nodes)[before:]:
                self.new_tags[node.name] = self.tags[n.name]
        return result


def decompose(module: Torch, tags: Mapping[str, int], fake: Torch) -> tuple[Torch, list[Torch]]:
    """Return the graph on the card after Inductor's decompositions, and its inputs."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.replace_random import replace_random_passes
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    new_tags: dict[str, int] = {}
    retraced = torch.func.functionalize(
        _Tagger(module, tags, new_tags).run, remove="mutations_and_views"
    )
    inputs = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    result = make_fx(retraced, decomposition_table=select_decomp_table())(*inputs)
    for node in result.graph.nodes:
        if node.name in new_tags:
            node.meta["op"] = new_tags[node.name]
    with V.set_fake_mode(fake):
        replace_random_passes(result)
        _compare_instead_of_scatter(result)
    _move_to_card(result)
    return result, [node.meta["val"] for node in result.graph.nodes if node.op == "placeholder"]


def _compare_instead_of_scatter(module: Torch) -> None:
    """Apply Inductor's own rewrite of scatters into constants, as losses over classes have them.

    A comparison of positions takes their place, which shares a kernel with its surroundings. Other
    rewrites of whole steps are left out: they choose by measuring on a card.
    """
    from torch._inductor.fx_passes.joint_graph import (
        constant_fold_uniform_value,
        patterns,
        scatter_upon_const_tensor,
    )
    from torch._inductor.pattern_matcher import PatternMatcherPass

    if not any(node.target == torch.ops.aten.scatter.value for node in module.graph.nodes):
        return
    constant_fold_uniform_value(module)
    rewrite = PatternMatcherPass()
    for key, entries in patterns.patterns.items():
        own_entries = [e for e in entries if e.handler is scatter_upon_const_tensor]
        rewrite.patterns[key].extend(own_entries)
    rewrite.apply(module.graph)
    _tag_new_nodes(module)
    module.recompile()


def _tag_new_nodes(module: Torch) -> None:
    """Set the original op of nodes without one to the op of their next neighbour."""
    tag = None
    for node in reversed(module.graph.nodes):
        if node.op != "call_function":
            continue
        tag = node.meta.get("op", tag)
        if tag is not None:
            node.meta["op"] = tag


def _move_to_card(module: Torch) -> None:
    """Move a traced graph's tensors to the card: the ops themselves cannot be traced there."""
    for node in module.graph.nodes:
        node.args, node.kwargs = tree_map(_on_card, (node.args, node.kwargs))
        if "val" in node.meta:
            node.meta["val"] = tree_map(_tensor_on_card, node.meta["val"])


def _on_card(value: Torch) -> Torch:
    return torch.device(DEVICE) if isinstance(value, torch.device) else value


def _tensor_on_card(value: Torch) -> Torch:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=DEVICE)
