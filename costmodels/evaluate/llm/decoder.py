"""Decoders built from ten numbers, as plain PyTorch: GPT, MPT and Llama.

``irgraph capture costmodels/evaluate/llm/decoder.py:train --batch 2 --ranks 8`` captures a step
with sharded parameters (FSDP2), ``…:micro_batch`` forward and backward on one card in bfloat16,
which ``shard`` splits over ranks. ``"…:train(layers=32, hidden=4096)"`` gives other sizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from torch.utils import checkpoint

from costmodels.evaluate.llm.shape import Shape

SAVED = ("mm", "_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention",
         "_scaled_dot_product_fused_attention_overrideable", "_scaled_dot_product_cudnn_attention",
         "reduce_scatter_tensor")  # fmt: skip
"""Ops whose results selective checkpointing saves, but only every second product (torchtitan)."""


class Attention(nn.Module):  # type: ignore[misc]
    """Causal attention: one fused kernel, or products and a softmax over all scores."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.size = shape, shape.hidden // shape.heads
        queries, keys = shape.hidden, shape.kv_heads * self.size
        if shape.fuses_qkv:
            self.query_key_value = nn.Linear(shape.hidden, queries + 2 * keys, shape.has_bias)
        else:
            self.query = nn.Linear(shape.hidden, queries, shape.has_bias)
            self.key = nn.Linear(shape.hidden, keys, shape.has_bias)
            self.value = nn.Linear(shape.hidden, keys, shape.has_bias)
        self.out = nn.Linear(queries, shape.hidden, shape.has_bias)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return [B, T, hidden] for [B, T, hidden]."""
        batch, length, _ = x.shape
        query, key, value = (part.unflatten(2, (-1, self.size)) for part in self._project(x))
        if rotation is not None:
            query, key = rotate(query, rotation), rotate(key, rotation)
        query, key, value = (
            part.transpose(1, 2) for part in (query, self._repeat(key), self._repeat(value))
        )
        mixed = self._mix(query, key, value)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, -1))

    def _project(self, x: Tensor) -> tuple[Tensor, ...]:
        if not self.shape.fuses_qkv:
            return self.query(x), self.key(x), self.value(x)
        keys = self.shape.kv_heads * self.size
        parts: tuple[Tensor, ...] = self.query_key_value(x).split(
            (self.shape.hidden, keys, keys), 2
        )
        return parts

    def _repeat(self, x: Tensor) -> Tensor:
        """Return keys or values for each head of the queries."""
        copies = self.shape.heads // self.shape.kv_heads
        if copies == 1:
            return x
        return x.unsqueeze(3).expand(-1, -1, -1, copies, -1).flatten(2, 3)

    def _mix(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if self.shape.fuses_attention:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        scores = (query * self.size**-0.5) @ key.transpose(2, 3)
        return scores.softmax(3) @ value


class Perceptron(nn.Module):  # type: ignore[misc]
    """Two matrices with GELU between, or three with a SiLU gate."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.is_gated = shape.is_gated
        self.up = nn.Linear(shape.hidden, shape.ffn, shape.has_bias)
        if self.is_gated:
            self.gate = nn.Linear(shape.hidden, shape.ffn, shape.has_bias)
        self.down = nn.Linear(shape.ffn, shape.hidden, shape.has_bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, T, hidden] for [B, T, hidden]."""
        if self.is_gated:
            return self.down(functional.silu(self.gate(x)) * self.up(x))
        return self.down(functional.gelu(self.up(x), approximate="tanh"))


class SpeltNorm(nn.Module):  # type: ignore[misc]
    """An RMS norm of separate operations in float32."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalised tensor, in its own type."""
        wide = x.to(torch.float32)
        scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * (wide * scale).to(x.dtype)


class DecoderBlock(nn.Module):  # type: ignore[misc]
    """Attention and a perceptron, each after a norm and with a residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(shape), norm(shape)
        self.attention, self.mlp = Attention(shape), Perceptron(shape)

    def forward(self, x: Tensor, rotation: Tensor | None) -> Tensor:
        """Return [B, T, hidden] for [B, T, hidden]."""
        x = x + self.attention(self.norm1(x), rotation)
        return x + self.mlp(self.norm2(x))


class Decoder(nn.Module):  # type: ignore[misc]
    """Embedding, blocks, and scores of the next token."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(shape.vocab, shape.hidden)
        if not shape.is_gated:
            self.positions = nn.Parameter(torch.empty(shape.length, shape.hidden))
        self.blocks = nn.ModuleList(DecoderBlock(shape) for _ in range(shape.layers))
        self.norm = norm(shape)
        if not shape.is_tied:
            self.head = nn.Linear(shape.hidden, shape.vocab, bias=False)

    def forward(self, text: Tensor) -> Tensor:
        """Return [B, T, vocab] for [B, T]."""
        return self.scores(self.states(text))

    def scores(self, x: Tensor) -> Tensor:
        """Return [..., vocab] for the last states [..., hidden]."""
        return functional.linear(x, self.embedding.weight) if self.shape.is_tied else self.head(x)

    def states(self, text: Tensor) -> Tensor:
        """Return the last states [B, T, hidden] for [B, T]."""
        x, rotation = self.embedding(text), None
        if self.shape.is_gated:
            size = self.shape.hidden // self.shape.heads
            rotation = torch.ones(2, self.shape.length, 1, size, dtype=x.dtype, device=x.device)
        else:
            x = x + self.positions
        for number, block in enumerate(self.blocks):
            x = self._run(block, number)(x, rotation)
        return self.norm(x)

    def _run(self, block: Any, number: int) -> Any:  # noqa: ANN401
        """Return a block, or its recomputation in backward."""
        recompute = self.shape.recompute
        if recompute == "none" or (recompute == "alternate" and number % 2 == 0):
            return block
        run = partial(checkpoint.checkpoint, block, use_reentrant=False)
        if recompute != "selective":
            return run
        contexts = partial(checkpoint.create_selective_checkpoint_contexts, saving_policy())
        return partial(run, context_fn=contexts)


def saving_policy() -> Callable[..., checkpoint.CheckpointPolicy]:
    """Return the policy of a new block: attention and every second product are saved."""
    counts: dict[object, int] = {}

    def policy(context: Any, op: Any, *_: object, **__: object) -> checkpoint.CheckpointPolicy:  # noqa: ANN401
        name = op.__name__.partition(".")[0]
        mode = context.is_recompute
        if name == "mm":
            counts[mode] = counts.get(mode, 0) + 1
        is_saved = name in SAVED and not (name == "mm" and counts[mode] % 2 == 0)
        policies = checkpoint.CheckpointPolicy
        return policies.MUST_SAVE if is_saved else policies.PREFER_RECOMPUTE

    return policy


def norm(shape: Shape) -> nn.Module:
    """Return the norm of an architecture: RMS norm with gates, else layer norm."""
    if shape.is_gated and not shape.fuses_norms:
        return SpeltNorm(shape.hidden)
    kind = nn.RMSNorm if shape.is_gated else nn.LayerNorm
    return kind(shape.hidden, eps=1e-5)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Return rotary positions of [B, T, heads, size] by cosines and sines [2, T, 1, size]."""
    first, second = x.chunk(2, 3)
    return x * rotation[0] + torch.cat((-second, first), 3) * rotation[1]


class DecoderStep:
    """Forward and backward of a batch, and an update if there is an optimizer."""

    def __init__(self, model: Decoder, batch: int, device: str, optimizer: Any = None) -> None:  # noqa: ANN401
        self.model, self.optimizer = model, optimizer
        self.text = torch.zeros(batch, model.shape.length + 1, dtype=torch.long, device=device)

    def __call__(self) -> Tensor:
        """Train once and return the loss."""
        self.model.zero_grad()
        scores = self.model(self.text[:, :-1]).flatten(0, 1)
        loss = functional.cross_entropy(scores.float(), self.text[:, 1:].flatten())
        loss.backward()
        if self.optimizer is not None:
            self.optimizer.step()
        return loss.detach()


def train(
    batch: int,
    device: str,
    reshard: bool = True,
    reduces_half: bool = False,
    **sizes: Any,  # noqa: ANN401
) -> DecoderStep:
    """Return a step with sharded float32 parameters (FSDP2) that computes in bfloat16.

    ``reshard`` frees gathered parameters between forward and backward, ``reduces_half`` sums
    gradients over ranks in bfloat16 instead of float32; ``sizes`` are fields of ``Shape``.
    """
    shape = Shape(**sizes)
    card = torch.device(device if device == "cpu" else "cuda:" + os.environ.get("LOCAL_RANK", "0"))
    mesh = init_device_mesh(card.type, (int(os.environ["WORLD_SIZE"]),), mesh_dim_names=("dp",))
    with card:
        model = Decoder(shape)
    reduced = torch.bfloat16 if reduces_half else torch.float32
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduced)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    return DecoderStep(model, batch, str(card), optimizer)


def micro_batch(batch: int, device: str, **sizes: Any) -> DecoderStep:  # noqa: ANN401
    """Return forward and backward of a micro-batch with bfloat16 parameters on one card."""
    with torch.device(device):
        model = Decoder(Shape(**sizes)).to(torch.bfloat16)
    return DecoderStep(model, batch, device)
