"""Inputs and weights of a model as a module, whose buffers a capture names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from irgraph.capture.common.torch_object import Torch


class Weights(torch.nn.Module):  # type: ignore[misc]
    """A module with tensors by the names of an ONNX model, which need not be identifiers."""

    def __init__(self, declared: Mapping[str, tuple[str, Torch]]) -> None:
        super().__init__()
        self._tensors = [(name, tensor) for name, (_, tensor) in declared.items()]

    def named_buffers(self, *_: Any, **__: Any) -> Iterator[tuple[str, Torch]]:  # noqa: ANN401
        """Yield every tensor by its name."""
        yield from self._tensors
