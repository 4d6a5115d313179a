"""Networks trained by the paper's method, as safetensors files: one op on one device."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import Struct

from costmodels.families import learned_families
from costmodels.learnable.family import WEIGHTS, LearnedFamily
from costmodels.learnable.hardware import Floats
from costmodels.learnable.inputs import Sizes
from costmodels.learned.files import Layers, load_network, save_network
from costmodels.learned.infer import forward
from irgraph.diagnostics import SourceSpan, fail

KIND = "irgraph-paper"

PAPER = WEIGHTS / "paper"
"""Folder of the shipped networks."""


class PaperNet(Struct, frozen=True):
    """A network from logarithms of sizes to the logarithm of the measured microseconds.

    Attributes:
        family, op, device: family, op and device of its training rows.
        layers: weights (1, out, in) and biases (1, out) of each layer.
        made: its row of Table II, its held-out errors and the command.
    """

    family: LearnedFamily
    op: str
    device: str
    layers: Layers
    made: Mapping[str, Any]

    def predict(self, sizes: Sizes) -> Floats:
        """Return microseconds as measured, including the host's launch."""
        inputs = np.stack([np.log(sizes[name]) for name in self.family.sizes])
        return np.asarray(np.exp(forward(self.layers, inputs.astype(np.float32))[0, 0]), np.float32)


def save_paper(net: PaperNet, path: str | Path) -> None:
    """Write a network to a file atomically."""
    head = {"family": net.family.name, "op": net.op, "device": net.device, "made": dict(net.made)}
    save_network(path, KIND, head, net.layers)


def load_paper(path: str | Path) -> PaperNet:
    """Read a network. Raises ``IrgraphError`` if the file has none."""
    head, layers, _ = load_network(path, KIND)
    family = learned_families().get(head.get("family", ""))
    if family is None:
        raise fail("no network of `irgraph search`", SourceSpan(str(path)))
    return PaperNet(family, head["op"], head["device"], layers, head["made"])


def shipped_paper() -> tuple[PaperNet, ...]:
    """Return the shipped networks, in order of their names."""
    return tuple(load_paper(path) for path in sorted(PAPER.glob("*.safetensors")))
