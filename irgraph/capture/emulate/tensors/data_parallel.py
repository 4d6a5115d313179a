"""``nn.DataParallel`` on one card: it moves the batch there and calls the module."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import SimpleNamespace

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.cards.answers import DEVICE
from irgraph.capture.emulate.tensors.queries import Translator

MANY_CARDS = "a capture has one device, and the step scatters a batch to {}"


class SecondDeviceError(NotImplementedError):
    """Raised if the step names a second card: a capture has one device."""


def data_parallel_patches(translator: Translator) -> Iterator[tuple[Torch, str, Torch]]:
    """Yield patches with which a module on one card is called on meta."""
    from torch import nn
    from torch.nn.parallel import scatter_gather

    original = nn.DataParallel.__init__

    def init(self: Torch, *args: Torch, **kwargs: Torch) -> None:
        original(self, *args, **kwargs)
        _require_one_card(self.device_ids)
        if self.device_ids:
            self.src_device_obj = translator.translate(DEVICE)

    def scatter(cards: Sequence[Torch], sizes: Torch, axis: int, tensor: Torch) -> tuple[Torch]:
        _require_one_card(cards)
        return (tensor.to(translator.translate(DEVICE)),)

    yield nn.DataParallel, "__init__", init
    yield scatter_gather, "Scatter", SimpleNamespace(apply=scatter)


def _require_one_card(cards: Sequence[Torch]) -> None:
    if len(cards) > 1:
        raise SecondDeviceError(MANY_CARDS.format(", ".join(map(str, cards))))
