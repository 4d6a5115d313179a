"""Declarations of learned families: a family's file declares one as ``LEARNED``.

A declaration makes a family trainable: ``irgraph train`` and ``irgraph search`` read its
measurements and fit it, ``irgraph models`` lists its weights, ``irgraph evaluate kernels`` scores
them, and pricing queries it through ``Machine.learned_kernel``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct, field

from costmodels.learnable.campaign import SINGLE, Campaign
from costmodels.learnable.hardware import Hardware
from costmodels.learnable.inputs import Inputs, Sizes
from costmodels.learnable.launch import Law, no_launch
from costmodels.learnable.settings import Settings

WEIGHTS = Path(__file__).parent.parent / "weights"
"""The folder of the shipped weights."""


class Query(Struct, frozen=True):
    """A kernel that a trained model can price.

    Attributes:
        op: the measured op that runs the same kernel, one of the family's ``ops``.
        sizes: the family's sizes by name.
        doubt: half a 90 % interval of log errors to add if the kernel differs from the measured
            ones.
        outside: whether the kernel was not measured, regardless of its sizes.
    """

    op: str
    sizes: Mapping[str, float]
    doubt: float = 0.0
    outside: bool = False


class LearnedFamily(Struct, frozen=True):
    """A family of kernels whose times can be learned from measurements.

    Attributes:
        name: name of the model, of its weights file, of its measurements ``kernels/NAME.csv.gz``,
            and in ``Machine.learned_kernel`` and ``irgraph train``.
        ops: measured ops, column ``op`` of the measurements.
        sizes: columns of sizes.
        inputs: from sizes and devices to the network's inputs.
        query: from the keywords of ``Machine.learned_kernel`` to a measured kernel, ``None`` if
            the model does not apply. Only kernels of the campaign's types get here; ``card`` is
            the training card that represents the device, ``target`` its compilation target.
        settings: default settings of training. Choose them on training rows alone.
        launches: law that separates the host's launch from measured times; by default times are
            those of kernels alone, as ``irgraph measure`` measures them on GPUs.
        similar: the family whose launches ``launches`` builds on, if any.
        measured_as: names of the sweeps that measure its ops, if they differ from its own name.
        campaign: the measurements it learns from.
        flops: from the keywords of ``Machine.learned_kernel`` to FLOP on matrix units, which
            bound the time on unseen cards (``costmodels.learned.predictors``); ``None`` for no
            bound.
        folder: folder of its trained weights ``NAME.safetensors``.
    """

    name: str
    ops: tuple[str, ...]
    sizes: tuple[str, ...]
    inputs: Callable[[Sizes, Hardware], Inputs]
    query: Callable[[Mapping[str, float | str]], Query | None]
    settings: Settings = field(default_factory=Settings)
    launches: Law = no_launch
    similar: str = ""
    measured_as: tuple[str, ...] = ()
    campaign: Campaign = SINGLE
    flops: Callable[[Mapping[str, float | str]], float] | None = None
    folder: Path = WEIGHTS

    @property
    def weights(self) -> Path:
        """The file of the trained weights."""
        return self.folder / f"{self.name}.safetensors"
