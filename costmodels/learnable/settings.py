"""Architecture and training settings of a family's networks."""

from __future__ import annotations

from msgspec import Struct, field


class Architecture(Struct, frozen=True):
    """Size of a network and of the ensemble that shares its training rows.

    Attributes:
        width: units of each hidden layer.
        depth: number of hidden layers.
        members: number of networks with different seeds, whose mean is the prediction.
    """

    width: int = 128
    depth: int = 3
    members: int = 3


class Settings(Struct, frozen=True):
    """Settings of training.

    Attributes:
        seed: seed of initial weights, of the order of rows and of the choice of validation rows.
        steps: number of weight updates.
        batch: rows for each update.
        rate: maximum learning rate; it rises linearly and falls as a cosine.
        decay: AdamW's weight decay.
        refit: whether to train again on all rows after the intervals are scaled.
        architecture: architecture of the networks.
    """

    seed: int = 0
    steps: int = 6000
    batch: int = 2048
    rate: float = 2e-3
    decay: float = 1e-4
    refit: bool = True
    architecture: Architecture = field(default_factory=Architecture)
