"""Steps that were measured on rented GPUs: classifiers, a GPT-2, Llamas, DLRMs, each in variants.

Every function has the parameters (batch, device) and returns a step, as ``irgraph capture
FILE.py:NAME`` and ``irgraph record`` expect. ``examples/dlrm.py`` defines the DLRMs.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from costmodels.evaluate.llm.decoder import Decoder
from costmodels.evaluate.llm.shape import Shape

CLASSES, WORDS = 1000, 50257
"""Classes of ImageNet, and GPT-2's vocabulary."""

UPDATES: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "loop": partial(torch.optim.AdamW, foreach=False),
    "foreach": partial(torch.optim.AdamW, foreach=True),
    "fused": partial(torch.optim.AdamW, fused=True, capturable=True),
    "sgd_loop": partial(torch.optim.SGD, momentum=0.9, foreach=False),
    "sgd": partial(torch.optim.SGD, momentum=0.9, foreach=True),
}
"""Optimizers by name."""

TYPES = {"f32": None, "f16": torch.float16, "bf16": torch.bfloat16}
"""Types that autocast computes in, ``None`` for no autocast."""


def _autocast(device: str, kind: str) -> Any:  # noqa: ANN401  (a context)
    dtype = TYPES[kind]
    return nullcontext() if dtype is None else torch.autocast(torch.device(device).type, dtype)


def _classifier(name: str, device: str, last: bool) -> nn.Module:
    """Return a model of torchvision with random weights; ``last`` sets channels-last format."""
    import torchvision

    model: nn.Module = torchvision.models.get_model(name).to(device)
    return model.to(memory_format=torch.channels_last) if last else model


def _images(batch: int, device: str, size: int, last: bool) -> Tensor:
    with torch.device(device):
        images = torch.rand(batch, 3, size, size)
    return images.contiguous(memory_format=torch.channels_last) if last else images


def _trained(
    net: nn.Module, device: str, kind: str, update: str, rate: float, loss: Callable[[], Tensor]
) -> Callable[[], object]:
    """Return a training step: gradients cleared, forward and loss under autocast, an update."""
    optimizer = UPDATES[update](net.parameters(), lr=rate)

    def step() -> Tensor:
        optimizer.zero_grad()
        with _autocast(device, kind):
            loss_value = loss()
        loss_value.backward()
        optimizer.step()
        return loss_value

    step.model = net  # type: ignore[attr-defined]
    return step


def _inferred(net: nn.Module, given: Tensor, device: str, kind: str) -> Callable[[], object]:
    """Return an inference step under autocast."""

    def step() -> Tensor:
        with torch.inference_mode(), _autocast(device, kind):
            outputs: Tensor = net(given)
            return outputs

    step.model = net  # type: ignore[attr-defined]
    return step


def classify(
    batch: int,
    device: str,
    model: str = "resnet50",
    kind: str = "f32",
    last: bool = False,
    update: str = "sgd",
    size: int = 224,
) -> Callable[[], object]:
    """Return a training step of a classifier, images and labels on the device."""
    net = _classifier(model, device, last)
    images = _images(batch, device, size, last)
    with torch.device(device):
        labels = torch.arange(batch) % CLASSES
    return _trained(net, device, kind, update, 0.01, lambda: cross_entropy(net(images), labels))


def see(
    batch: int,
    device: str,
    model: str = "resnet50",
    kind: str = "f32",
    last: bool = False,
    size: int = 224,
) -> Callable[[], object]:
    """Return an inference step of a classifier, images on the device."""
    net = _classifier(model, device, last).eval()
    return _inferred(net, _images(batch, device, size, last), device, kind)


class Block(nn.Module):  # type: ignore[misc]
    """Causal attention and a two-layer perceptron, each after a normalisation."""

    def __init__(self, width: int, heads: int, dropout: float, eager: bool) -> None:
        super().__init__()
        self.heads, self.eager = heads, eager
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.together, self.apart = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU("tanh"), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return [B, L, width] for the same; ``mask`` [L, L] is true for scores to exclude."""
        x = x + self.dropout(self.attend(self.norm1(x), mask))
        return x + self.dropout(self.mlp(self.norm2(x)))

    def attend(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return causal attention over the words of a text, [B, L, width]."""
        batch, length, width = x.shape
        parts = self.together(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        if self.eager:
            scores = query @ key.transpose(-2, -1) * (width // self.heads) ** -0.5
            attended = scores.masked_fill(mask, float("-inf")).softmax(-1).to(value.dtype) @ value
        else:
            attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.apart(attended.transpose(1, 2).reshape(batch, length, width))


class GPT(nn.Module):  # type: ignore[misc]
    """GPT-2: embeddings, blocks, a normalisation, and scores by the words' embeddings."""

    def __init__(
        self,
        layers: int,
        width: int,
        length: int,
        dropout: float = 0.0,
        eager: bool = False,
        keep: bool = True,
        words: int = WORDS,
    ) -> None:
        super().__init__()
        self.keep = keep
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(
            Block(width, width // 64, dropout, eager) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, words, bias=False)
        self.scores.weight = self.words.weight
        self.register_buffer("mask", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, text: Tensor) -> Tensor:
        """Return scores [B, L, words] for words [B, L]."""
        x = self.words(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = (
                block(x, self.mask)
                if self.keep
                else checkpoint(block, x, self.mask, use_reentrant=False)
            )
        return self.scores(self.norm(x))


def gpt(
    batch: int,
    device: str,
    layers: int = 12,
    width: int = 768,
    length: int = 1024,
    kind: str = "bf16",
    update: str = "foreach",
    dropout: float = 0.0,
    eager: bool = False,
    keep: bool = True,
    words: int = WORDS,
) -> Callable[[], object]:
    """Return a training step of a GPT-2, text on the device.

    ``eager``: attention as separate operations; ``keep`` false: each block is recomputed.
    """
    with torch.device(device):
        net = GPT(layers, width, length, dropout, eager, keep, words)
        text = torch.arange(batch * (length + 1)).view(batch, -1) * 7919 % WORDS
    words_in, targets = text[:, :-1].contiguous(), text[:, 1:].reshape(-1)
    return _trained(
        net, device, kind, update, 1e-4, lambda: cross_entropy(net(words_in).flatten(0, 1), targets)
    )


def llama(
    batch: int,
    device: str,
    layers: int = 8,
    width: int = 2048,
    heads: int = 16,
    groups: int = 8,
    hidden: int = 5632,
    length: int = 2048,
    words: int = 32000,
    spelt: bool = True,
    wide: bool = False,
    keep: bool = True,
    chunks: int = 1,
    micro: int = 1,
    update: str = "fused",
) -> Callable[[], object]:
    """Return a training step of a Llama, all in bf16, text on the device.

    ``spelt``: norms as separate operations; ``wide``: queries, keys and values are one product;
    ``keep`` false: each block is recomputed; ``chunks``: parts of the text whose scores are
    computed separately, and again for the gradient; ``micro``: parts of the batch whose gradients
    are accumulated.
    """
    shape = Shape(
        layers=layers, hidden=width, ffn=hidden, heads=heads, kv_heads=groups, vocab=words,
        length=length, is_gated=True, is_tied=False, fuses_qkv=wide, fuses_norms=not spelt,
        recompute="none" if keep else "full",
    )  # fmt: skip
    with torch.device(device):
        net = Decoder(shape).to(torch.bfloat16)
        text = torch.arange(batch * (length + 1)).view(batch, -1) * 7919 % words
    optimizer = UPDATES[update](net.parameters(), lr=1e-4)
    inputs, targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    count = targets.numel()

    def loss_of(states: Tensor, labels: Tensor) -> Tensor:
        total: Tensor = cross_entropy(net.scores(states).float(), labels, reduction="sum")
        return total / count

    def step() -> None:
        optimizer.zero_grad()
        for words_in, labels in zip(inputs.chunk(micro), targets.chunk(micro), strict=True):
            states = net.states(words_in).flatten(0, 1)
            if chunks == 1:
                loss = loss_of(states, labels.flatten())
            else:
                pieces = zip(states.chunk(chunks), labels.flatten().chunk(chunks), strict=True)
                losses = [checkpoint(loss_of, *piece, use_reentrant=False) for piece in pieces]
                loss = torch.stack(losses).sum()
            loss.backward()
        optimizer.step()

    step.model = net  # type: ignore[attr-defined]
    return step


def read(
    batch: int,
    device: str,
    layers: int = 12,
    width: int = 768,
    length: int = 1024,
    kind: str = "bf16",
    eager: bool = False,
) -> Callable[[], object]:
    """Return an inference step of a GPT-2, text on the device."""
    with torch.device(device):
        net = GPT(layers, width, length, eager=eager).eval()
        text = torch.arange(batch * length).view(batch, -1) * 7919 % WORDS
    return _inferred(net, text, device, kind)


def _dlrm() -> Any:  # noqa: ANN401  (the module)
    """Return ``examples/dlrm.py`` of the checkout."""
    import sys

    if "dlrm_example" not in sys.modules:
        path = Path(__file__).parents[2] / "examples" / "dlrm.py"
        spec = importlib.util.spec_from_file_location("dlrm_example", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    return sys.modules["dlrm_example"]


def dlrm(
    batch: int,
    device: str,
    name: str = "default",
    rows: int = 1_000_000,
    sparse: bool = False,
    update: str = "loop",
) -> Callable[[], object]:
    """Return a training step of a DLRM, its inputs copied in the step; tables of ``rows`` at most.

    ``update``: SGD one tensor at a time (``loop``), or ``foreach``.
    """
    preset = _dlrm().preset(name, batch, device, max_rows=rows, sparse=sparse)
    parameters = preset.model.parameters()
    preset.optimizer = torch.optim.SGD(parameters, lr=0.1, foreach=update == "foreach")
    step: Callable[[], object] = preset
    return step


def score(
    batch: int, device: str, name: str = "default", rows: int = 1_000_000
) -> Callable[[], object]:
    """Return an inference step of a DLRM, its inputs on the device."""
    preset = _dlrm().preset(name, batch, device, max_rows=rows)
    dense, offsets, indices = (t.to(device) for t in preset.inputs[:3])
    net = preset.model
    count = len(net.tables) + 1
    with torch.device(device):
        pairs = torch.tril_indices(count, count, -1)

    def step() -> Tensor:
        with torch.inference_mode():
            x = net.bot_mlp(dense)
            bags = [bag(indices[k], offsets[k]) for k, bag in enumerate(net.tables)]
            vectors = torch.cat([x, *bags], dim=1).view(x.shape[0], -1, net.config.width)
            products = torch.bmm(vectors, vectors.transpose(1, 2))
            interactions = products.flatten(1).index_select(1, pairs[0] * count + pairs[1])
            scores: Tensor = net.top_mlp(torch.cat([x, interactions], dim=1))
            return scores

    step.model = net  # type: ignore[attr-defined]
    return step
