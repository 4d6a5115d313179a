"""Networks trained the paper's way, as safetensors files: one op on one device."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from costmodels.learned.features import FAMILIES, Family, Sizes
from costmodels.learned.hardware import Floats
from costmodels.learned.infer import forward
from costmodels.learned.weights import FOLDER, Layers
from irgraph.text.diagnostics import Place, fail

PAPER = FOLDER / "paper"
"""Where the shipped ones lie."""


@dataclass(frozen=True, slots=True)
class PaperNet:
    """A network from logarithms of sizes to the logarithm of the measured microseconds.

    Attributes:
        family, op, device: what it was trained for.
        layers: weights (1, out, in) and biases (1, out) of each layer.
        made: its place in Table II, its held-out errors and the command.
    """

    family: Family
    op: str
    device: str
    layers: Layers
    made: Mapping[str, Any]

    def predict(self, sizes: Sizes) -> Floats:
        """Return microseconds as measured, the host's launch included."""
        inputs = np.stack([np.log(sizes[name]) for name in self.family.sizes])
        return np.asarray(np.exp(forward(self.layers, inputs.astype(np.float32))[0, 0]), np.float32)


def save_paper(net: PaperNet, path: str | Path) -> None:
    """Write a network to a file, whole or not at all."""
    from safetensors.numpy import save as encode

    from irgraph.report.files import write_atomic

    tensors: dict[str, Floats] = {}
    for number, (matrix, bias) in enumerate(net.layers):
        tensors |= {f"layer{number}.weight": matrix, f"layer{number}.bias": bias}
    head = {"family": net.family.name, "op": net.op, "device": net.device, "made": dict(net.made)}
    write_atomic(str(path), encode(tensors, {"irgraph-paper": json.dumps(head, sort_keys=True)}))


def load_paper(path: str | Path) -> PaperNet:
    """Read a network. Raises ``IrgraphError`` where the file holds none."""
    from safetensors import SafetensorError, safe_open

    place = Place(str(path))
    try:
        with safe_open(str(path), "numpy") as file:
            head = json.loads((file.metadata() or {}).get("irgraph-paper", "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise fail(f"cannot read weights: {error}", place, exit_code=2) from None
    if not head or head["family"] not in FAMILIES:
        raise fail("no network of `irgraph search`", place)
    layers = tuple(
        (tensors[f"layer{i}.weight"], tensors[f"layer{i}.bias"]) for i in range(len(tensors) // 2)
    )
    return PaperNet(FAMILIES[head["family"]], head["op"], head["device"], layers, head["made"])


def shipped_paper() -> tuple[PaperNet, ...]:
    """Return the networks that are shipped, in order of their names."""
    return tuple(load_paper(path) for path in sorted(PAPER.glob("*.safetensors")))
