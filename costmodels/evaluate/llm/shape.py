"""Sizes of a decoder: ten numbers, and the choices between kernels."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Recompute = Literal["none", "full", "selective", "alternate"]
"""Recomputed blocks: none, all, all but attention and every second product, every second block."""


class Shape(Struct, frozen=True, forbid_unknown_fields=True):
    """A decoder.

    Attributes:
        layers: number of blocks.
        hidden: width of the residual.
        ffn: width of the perceptrons.
        heads: number of heads of queries.
        kv_heads: number of heads of keys and values.
        vocab: number of tokens.
        length: tokens of a sequence.
        is_gated: three matrices in perceptrons, RMS norms, rotary positions and no biases (Llama),
            instead of two, layer norms, learned positions and biases (GPT, MPT).
        is_tied: the embedding is also the matrix of the scores.
        fuses_qkv: queries, keys and values are one product.
        fuses_attention: attention is one kernel that stores no scores.
        fuses_norms: RMS norms are torch's, one kernel, instead of separate operations in f32.
        recompute: blocks recomputed in backward.
    """

    layers: int = 2
    hidden: int = 256
    ffn: int = 1024
    heads: int = 4
    kv_heads: int = 4
    vocab: int = 4096
    length: int = 256
    is_gated: bool = False
    is_tied: bool = True
    fuses_qkv: bool = True
    fuses_attention: bool = True
    fuses_norms: bool = True
    recompute: Recompute = "none"

    @property
    def has_bias(self) -> bool:
        """Whether linear layers have biases."""
        return not self.is_gated

    @property
    def block_parameters(self) -> int:
        """Number of parameters of a block, without norms and biases."""
        keys = self.hidden * self.kv_heads // self.heads
        matrices = 3 if self.is_gated else 2
        return self.hidden * (2 * self.hidden + 2 * keys + matrices * self.ffn)

    @property
    def outer_parameters(self) -> int:
        """Number of parameters of embedding, positions and scores."""
        tables = 1 if self.is_tied else 2
        return self.hidden * (tables * self.vocab + (0 if self.is_gated else self.length))

    @property
    def parameters(self) -> int:
        """Number of parameters, without norms and biases."""
        return self.layers * self.block_parameters + self.outer_parameters
