"""Ops as an FX graph of torch's calls, decomposed as torch's compiler does."""

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
"""Ops, their positions among those that are compiled, and what computes them."""


def _given(leaves: Iterable[Op]) -> list[Tensor]:
    """Return what ops read that none of them makes, each name once."""
    made: set[str] = set()
    found: dict[str, Tensor] = {}
    for op in leaves:
        for tensor in op.inputs:
            if tensor.name not in made:
                found.setdefault(tensor.name, tensor)
        made.update(tensor.name for tensor in op.outputs)
    return list(found.values())


def _empty(tensor: Tensor) -> Torch:
    shape = tuple(map(int, tensor.shape))
    return torch.empty_strided(shape, strides_of(tensor), dtype=DTYPES[tensor.dtype])


def traced(calls: Calls, kept: Sequence[Tensor]) -> tuple[Torch, dict[str, int]]:
    """Return ops as an FX graph of torch's calls, and by node's name the op's position."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, make_fx

    given = _given(op for op, *_ in calls)
    tags: dict[str, int] = {}

    def run(*values: Torch) -> list[Torch]:
        mode = get_proxy_mode()
        assert mode is not None
        known = dict(zip((t.name for t in given), values, strict=True))
        nodes = mode.tracer.graph.nodes
        before = len(nodes)
        for op, number, call in calls:
            _keep(op, call, call(op, lambda t: known[t.name]), known)
            tags.update((node.name, number) for node in list(nodes)[before:])
            before = len(nodes)
        return [known[tensor.name] for tensor in kept]

    return make_fx(run)(*map(_empty, given)), tags


def _keep(op: Op, call: Computation, value: Torch, known: dict[str, Torch]) -> None:
    """Give names to what an op returned; operands that it wrote have theirs."""
    values = list(value) if isinstance(value, tuple) else [value]
    returns = call.schema.returns if call.schema is not None else ()
    fresh = [v for v, made in zip(values, returns, strict=False) if not made.written]
    for result, one in zip(op.results, fresh, strict=False):
        if result is None:
            continue
        several = isinstance(result, tuple)
        for tensor, part in zip(tensors_in([result]), one if several else [one], strict=True):
            known[tensor.name] = _laid_out(part, tensor)


def _laid_out(value: Torch, tensor: Tensor) -> Torch:
    """Return a result in the model's layout: on a CPU some ops lay theirs out differently."""
    wanted = strides_of(tensor)
    if value.stride() == wanted or not tensor.numel or 0 in wanted:
        return value
    return torch.empty_strided(value.shape, wanted, dtype=value.dtype).copy_(value)


class _Tagging(torch.fx.Interpreter):  # type: ignore[misc]
    """Runs a graph anew, and notes for each node that this makes which op it stands for."""

    def __init__(self, module: Torch, tags: Mapping[str, int], found: dict[str, int]) -> None:
        super().__init__(module)
        self.tags, self.found = tags, found

    def run_node(self, n: Torch) -> Torch:
        """Run a node."""
        from torch.fx.experimental.proxy_tensor import get_proxy_mode

        mode = get_proxy_mode()
        assert mode is not None
        nodes = mode.tracer.graph.nodes
        before = len(nodes)
        made = super().run_node(n)
        if n.name in self.tags:
            for node in list(nodes)[before:]:
                self.found[node.name] = self.tags[n.name]
        return made


def decomposed(module: Torch, tags: Mapping[str, int], fake: Torch) -> tuple[Torch, list[Torch]]:
    """Return the graph on the card as Inductor's decompositions leave it, and its inputs."""
    from torch._inductor.decomposition import select_decomp_table
    from torch._inductor.fx_passes.replace_random import replace_random_passes
    from torch._inductor.virtualized import V
    from torch.fx.experimental.proxy_tensor import make_fx

    found: dict[str, int] = {}
    again = torch.func.functionalize(
        _Tagging(module, tags, found).run, remove="mutations_and_views"
    )
    given = [node.meta["val"] for node in module.graph.nodes if node.op == "placeholder"]
    made = make_fx(again, decomposition_table=select_decomp_table())(*given)
    for node in made.graph.nodes:
        if node.name in found:
            node.meta["op"] = found[node.name]
    with V.set_fake_mode(fake):
        replace_random_passes(made)
    _move(made)
    return made, [node.meta["val"] for node in made.graph.nodes if node.op == "placeholder"]


def _move(module: Torch) -> None:
    """Let a traced graph's tensors lie on the card: ops themselves cannot be traced there."""
    for node in module.graph.nodes:
        node.args, node.kwargs = tree_map(_on_card, (node.args, node.kwargs))
        if "val" in node.meta:
            node.meta["val"] = tree_map(_moved, node.meta["val"])


def _on_card(value: Torch) -> Torch:
    return torch.device(DEVICE) if isinstance(value, torch.device) else value


def _moved(value: Torch) -> Torch:
    if not isinstance(value, torch.Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=DEVICE)
