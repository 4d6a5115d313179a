"""Programs with published times, captured on the meta device as their sources describe them.

They require torch, and image classifiers timm. Nothing is computed, and no weights are loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from importlib import import_module
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec.structs import replace

from irgraph.capture.live import capture
from irgraph.diagnostics import IrgraphError, fail
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.language import load_pass, run

if TYPE_CHECKING:
    from torch import nn

Result = TypeVar("Result")

CLASSES = 1000
CUMSUM = "asynchronous_complete_cumsum"

DOT = 27
"""Number of vectors in DLRM's pairwise products: 26 tables and the bottom MLP."""


@lru_cache(maxsize=8)
def classifier(
    name: str,
    batch: int,
    image: int,
    *,
    mixed: bool = True,
    channels_last: bool = False,
    training: bool = True,
    backward_mixed: bool = True,
    fast: bool = False,
    older: bool = False,
) -> Graph:
    """Return a step of a model of timm over images that are on the device.

    Training: gradients zeroed in place, cross entropy, backward, SGD with momentum one tensor at a
    time; ``mixed`` runs forward, loss and, with ``backward_mixed``, backward under autocast in f16.
    ``fast`` is the setting of timm's benchmark in inference: fused attention, norms in the type of
    autocast (``--fast-norm``), sums of convolutions merged into one (``--reparam``). ``older``
    scales attention's scores instead of its queries, as timm did before fused attention (0.6).
    Raises ``IrgraphError`` if timm is missing or lacks the model, or it cannot be captured.
    """
    import torch

    model = _timm(name, fast).train(training)
    if older:
        _scale_scores(model)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)
    images = torch.empty(batch, 3, image, image, device="meta").contiguous(memory_format=layout)
    labels = torch.empty(batch, dtype=torch.long, device="meta")
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, nesterov=True, foreach=False)

    def infer() -> object:
        with torch.no_grad(), torch.autocast("meta", torch.float16, enabled=mixed):
            return model(images)

    def train() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("meta", torch.float16, enabled=mixed):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            if backward_mixed:
                loss.backward()
        if not backward_mixed:
            loss.backward()
        optimizer.step()

    return _capture_step(train if training else infer, model, name)


def _timm(name: str, fast: bool) -> nn.Module:
    timm, layers = import_with_torchvision("timm"), import_with_torchvision("timm.layers")
    try:
        layers.set_fused_attn(fast)
        layers.set_fast_norm(fast)
        model: nn.Module = timm.create_model(name, num_classes=CLASSES)
    except (RuntimeError, TypeError, ValueError) as error:
        raise fail(f"timm {timm.__version__} has no model {name!r}: {error}") from None
    fused_model = timm.utils.reparameterize_model(model.eval(), inplace=True) if fast else model
    return fused_model.to("meta")


def _scale_scores(model: nn.Module) -> None:
    attention = import_with_torchvision("timm.layers.attention").Attention
    for module in model.modules():
        if type(module) is attention and module.gate is None:
            module.forward = partial(_older_attention, module)


def _older_attention(module: Any, x: Any, **_: Any) -> Any:  # noqa: ANN401
    batch, length, _width = x.shape
    heads = module.qkv(x).reshape(batch, length, 3, module.num_heads, -1).permute(2, 0, 3, 1, 4)
    queries, keys, values = heads.unbind(0)
    scores = module.q_norm(queries) @ module.k_norm(keys).transpose(-2, -1) * module.scale
    mixed = module.attn_drop(scores.softmax(-1)) @ values
    merged_heads = mixed.transpose(1, 2).reshape(batch, length, -1)
    return module.proj_drop(module.proj(module.norm(merged_heads)))


def import_with_torchvision(name: str) -> Any:  # noqa: ANN401
    """Import a module that needs torchvision, even if torchvision's build differs from torch's.

    PyPI's torchvision is built for CUDA: its operators are missing with torch's CPU build.
    Raises ``IrgraphError`` (exit code 2) if the module is missing.
    """
    import torch

    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise fail(f"image classifiers need {package}: {error}", exit_code=2) from None
    except RuntimeError:  # operator torchvision::nms does not exist
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _LIBRARIES.append(library)
        for module in [m for m in sys.modules if m.startswith(("torchvision", "timm"))]:
            del sys.modules[module]
        return import_module(name)


_LIBRARIES: list[Any] = []
"""Libraries of the operators defined here: an operator exists as long as its library."""


def _capture_step(step: Callable[[], Any], model: nn.Module, name: str) -> Graph:
    step.model = model  # type: ignore[attr-defined]
    return capture(step, name=name).graph


def bags(
    rows: Sequence[int],
    width: int,
    *,
    keep_gradients: bool,
    batch: int = 64,
    ids: int = 32,
    rejoin_inputs: bool = False,
) -> Graph:
    """Return TorchRec's training step of separate embedding bags, summed, with SGD.

    ``rows``: rows of each table; ``ids``: indices per bag. Indices and lengths are copied from the
    host in one tensor each, split, and their offsets are summed table by table, as in TorchRec's
    keyed jagged tensors. ``keep_gradients``: gradients are zeroed in place and accumulated,
    otherwise freed; ``rejoin_inputs``: indices and lengths are concatenated again and cast back
    and forth, as in TorchRec's fused collection and FBGEMM's module.
    """
    import torch

    tables = torch.nn.ModuleList(
        torch.nn.EmbeddingBag(n, width, mode="sum", include_last_offset=True, device="meta")
        for n in rows
    )
    optimizer = torch.optim.SGD(tables.parameters(), 0.02, foreach=False)
    values = torch.zeros(len(rows) * batch * ids, dtype=torch.long)
    lengths = torch.zeros(len(rows) * batch, dtype=torch.int32)
    offsets = _offsets()

    def step() -> None:
        values_by_table = values.to("meta").split(batch * ids)
        sizes = lengths.to("meta").view(-1, batch).unbind()
        ends = [offsets(size) for size in sizes]
        if rejoin_inputs:
            torch.cat(values_by_table).int().long()
            offsets(torch.cat(sizes)).int().long()
        pooled_bags = [t(*bag) for t, *bag in zip(tables, values_by_table, ends, strict=True)]
        pooled = torch.cat(pooled_bags, 1)
        optimizer.zero_grad(set_to_none=not keep_gradients)
        torch.cat(pooled.split(width, 1), 1).sum().backward()
        optimizer.step()

    return _capture_step(step, tables, "bags")


def _offsets() -> Callable[[Any], Any]:
    """Return FBGEMM's cumulative sum with a leading zero, defined here if FBGEMM is missing."""
    import torch

    if not hasattr(torch.ops.fbgemm, CUMSUM):
        library = torch.library.Library("fbgemm", "FRAGMENT")
        library.define(f"{CUMSUM}(Tensor t_in) -> Tensor")
        library.impl(CUMSUM, lambda t: t.new_empty(t.numel() + 1), "Meta")
        _LIBRARIES.append(library)
    return getattr(torch.ops.fbgemm, CUMSUM)  # type: ignore[no-any-return]


@lru_cache(maxsize=8)
def dlrm_inference(batch: int, *, half: bool) -> Graph:
    """Return NVIDIA's DLRM at inference: one table for all features, inputs on the device.

    As in its program, Python calls one op for each MLP (apex) and one for the pairwise products
    (NVIDIA's own kernel); the bodies of these ops are the equivalent plain PyTorch ops.
    """
    import torch
    from torch import nn

    def layers(*sizes: int) -> nn.Sequential:
        pairs = pairwise(sizes)
        return nn.Sequential(*(layer for a, b in pairs for layer in (nn.Linear(a, b), nn.ReLU())))

    class Dot(nn.Module):  # type: ignore[misc]
        def forward(self, x: Any, vectors: Any, pairs: Any) -> Any:  # noqa: ANN401
            products = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)
            return torch.cat([x, products.index_select(1, pairs), x.new_zeros(len(x), 1)], 1)

    class Model(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.bottom, self.top = layers(13, 512, 256, 128), layers(480, 1024, 1024, 512, 256)
            self.table, self.dot, self.out = nn.Embedding(10_000_000, 128), Dot(), nn.Linear(256, 1)

        def forward(self, dense: Any, rows: Any, pairs: Any) -> Any:  # noqa: ANN401
            x = self.bottom(dense)
            vectors = torch.cat([x.unsqueeze(1), self.table(rows)], 1)
            return self.out(self.top(self.dot(x, vectors, pairs)))

    dtype = torch.float16 if half else torch.float32
    model = Model().to("meta", dtype).eval()
    dense = torch.empty(batch, 13, device="meta", dtype=dtype)
    rows = torch.empty(batch, DOT - 1, device="meta", dtype=torch.long)
    pairs = torch.empty(DOT * (DOT - 1) // 2, device="meta", dtype=torch.long)

    def step() -> object:
        with torch.no_grad():
            return model(dense, rows, pairs)

    return _merge_modules(_capture_step(step, model, "dlrm"), {"bottom", "dot", "top"})


def _merge_modules(graph: Graph, modules: set[str]) -> Graph:
    """Return a graph with one call of another library instead of each of these modules."""
    ops: list[Op] = []
    for name, module_ops in groupby(graph.ops, lambda op: op.module.partition(".")[0]):
        body = tuple(module_ops)
        ops += [Op(f"nvidia.{name}", body=body)] if name in modules else body
    return replace(graph, ops=tuple(ops))


def as_cuda_graph(graph: Graph) -> Graph:
    """Return a step as a launch of one CUDA graph, without copies from the host."""
    return run(load_pass("cuda-graph"), graph).graph


def result_or_reason(make: Callable[[], Result]) -> Result | str:
    """Return the result of ``make``, or the message of its ``IrgraphError``."""
    try:
        return make()
    except IrgraphError as error:
        return str(error).partition("\n")[0].removeprefix("error: ")
