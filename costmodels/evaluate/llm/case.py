"""A measured step of a language model: its decoder, its layout over ranks, and its software."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from costmodels.evaluate.llm.shape import Shape

Sharding = Literal["fsdp", "retained", "zero1", "replicated"]
"""State shared by ranks with different samples: parameters, freed or retained between forward and
backward, the optimizer's state, or nothing."""


class RankLayout(Struct, frozen=True):
    """Ranks of a step.

    Attributes:
        data: ranks with different samples.
        tensor: ranks that share linear layers.
        splits_sequence: those ranks share norms and residuals along the sequence, too.
        stages: stages of the pipeline.
        chunks: parts of the model on each stage (interleaved schedule).
        sharding: state shared by ranks with different samples.
        overlaps: gradients are reduced during the backward pass of the last micro-batch.
    """

    data: int = 1
    tensor: int = 1
    splits_sequence: bool = False
    stages: int = 1
    chunks: int = 1
    sharding: Sharding = "zero1"
    overlaps: bool = True

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.data * self.tensor * self.stages

    @property
    def kind(self) -> str:
        """Forms of parallelism, such as ``TP + PP``."""
        name_by_sharding = {
            "fsdp": "FSDP",
            "retained": "FSDP",
            "zero1": "ZeRO-1",
            "replicated": "DP",
        }
        names = [
            name_by_sharding[self.sharding] if self.data > 1 else "",
            "TP" if self.tensor > 1 else "",
            "PP" if self.stages > 1 else "",
        ]
        return " + ".join(filter(None, names)) or "one card"


class LlmCase(Struct, frozen=True):
    """A measured step.

    Attributes:
        source: publication.
        name: name of the row.
        card: device sheet.
        precision: precision as published.
        shape: the decoder.
        layout: its ranks.
        batch: sequences of a micro-batch.
        rounds: micro-batches of a step on each rank with different samples.
        measured: milliseconds of a step.
        memory: peak GiB of a rank, ``None`` if not published.
        software: profile of the release of torch.
        is_compiled: ``torch.compile`` fused its element-wise ops.
        reduces_half: gradients are summed over ranks in 16 bits.
        accumulates: separate kernels add gradients up in float32.
    """

    source: str
    name: str
    card: str
    precision: str
    shape: Shape
    layout: RankLayout
    batch: int
    rounds: int
    measured: float
    memory: float | None = None
    software: str = "torch-2.7"
    is_compiled: bool = False
    reduces_half: bool = False
    accumulates: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of a step on all ranks."""
        return self.batch * self.rounds * self.shape.length * self.layout.data

    @property
    def flop(self) -> float:
        """Operations of a rank in a step: three passes of all products, causal attention."""
        shape = self.shape
        matrices = shape.layers * shape.block_parameters + shape.hidden * shape.vocab
        attention = shape.layers * shape.hidden * shape.length
        tokens = self.batch * self.rounds * shape.length
        return 6 * (matrices + attention) * tokens / (self.layout.tensor * self.layout.stages)

    @property
    def rate(self) -> float:
        """Measured operations per second of a rank."""
        return self.flop / self.measured * 1e3
