"""Answers of a meta tensor to a program that put it on ``cuda``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from types import FrameType
from typing import Protocol

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.cards.answers import DEVICE
from irgraph.capture.emulate.environment import local_rank

QUERY_FRAMES = 4
"""Number of calls from the code that queries a tensor to ``is_called_by_program``."""

WRAPPER_MODULES = ("torch.utils._device", "torch.overrides")
"""Modules whose calls are in between if a default device is set."""

SHARDING_MODULES = ("torch.distributed.fsdp._fully_shard._fsdp_param",)
"""Modules of torch that replace a parameter's shard unless the parameter is still on meta."""

TYPES = "torch.cuda."
"""Prefix of the names of a card's tensor types, such as ``torch.cuda.FloatTensor``."""


class Translator(Protocol):
    """A translator of devices, which stores whether the program has named ``cuda``."""

    names_cuda: bool

    def translate(self, value: Torch) -> Torch:
        """Return ``meta`` for a value that names ``cuda``."""


def is_called_by_program(frames: int = QUERY_FRAMES, modules: Collection[str] = ()) -> bool:
    """Return whether the code ``frames`` calls further out is the program's, not torch's.

    Code of the listed ``modules`` of torch counts as the program's.
    """
    frame: FrameType | None = sys._getframe(frames)
    while frame is not None and frame.f_globals.get("__name__") in WRAPPER_MODULES:
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return name in modules or name.partition(".")[0] not in ("torch", "irgraph")


def device_queries(translator: Translator) -> Mapping[Torch, Callable[..., Torch]]:
    """Return replacements of the queries of a tensor's device, by torch's function."""
    import torch

    tensor, meta = torch.Tensor, torch.device("meta")

    def is_on_card(subject: Torch) -> bool:
        return translator.names_cuda and tensor.device.__get__(subject) == meta

    def poses_as_cuda(subject: Torch, modules: Collection[str] = ()) -> bool:
        return is_on_card(subject) and is_called_by_program(QUERY_FRAMES + 1, modules)

    def device(self: Torch) -> Torch:
        if poses_as_cuda(self):
            return torch.device(DEVICE, local_rank())
        return tensor.device.__get__(self)

    def is_cuda(self: Torch) -> bool:
        return bool(tensor.is_cuda.__get__(self)) or poses_as_cuda(self)

    def is_meta(self: Torch) -> bool:
        return bool(tensor.is_meta.__get__(self)) and not poses_as_cuda(self, SHARDING_MODULES)

    def get_device(self: Torch) -> int:
        return local_rank() if poses_as_cuda(self) else int(tensor.get_device(self))

    def array_interface(self: Torch) -> Mapping[str, object]:
        if not is_on_card(self):
            return dict(tensor.__cuda_array_interface__.__get__(self))
        host = tensor.new_empty(self, 0, device="cpu").numpy()
        shape, strides = tuple(self.shape), tuple(n * self.itemsize for n in self.stride())
        names = {"typestr": host.dtype.str, "shape": shape, "strides": strides}
        return {**names, "data": (0, False), "version": 2}

    return {
        tensor.device.__get__: device,
        tensor.is_cuda.__get__: is_cuda,
        tensor.is_meta.__get__: is_meta,
        tensor.get_device: get_device,
        torch.get_device: get_device,
        tensor.__cuda_array_interface__.__get__: array_interface,
    }


def type_queries(translator: Translator) -> Mapping[Torch, Callable[..., Torch]]:
    """Return replacements of ``Tensor.type`` and of formatting, which reads a tensor's value."""
    import torch

    tensor = torch.Tensor

    def convert(self: Torch, dtype: Torch = None, non_blocking: bool = False) -> Torch:
        if dtype is None:
            is_cuda = translator.names_cuda and tensor.is_meta.__get__(self)
            return str(tensor.type(self)).replace("torch.meta.", TYPES if is_cuda else "")
        name = _type_name(dtype)
        if not name.startswith(TYPES):
            return tensor.type(self, dtype, non_blocking)
        element_type = getattr(torch, name.removeprefix(TYPES)).dtype
        return tensor.to(self, translator.translate(DEVICE), element_type, non_blocking)

    def format_value(self: Torch, text: str) -> str:
        is_number = not tensor.dim(self) and tensor.is_meta.__get__(self)
        return format(tensor.item(self) if is_number else tensor.__repr__(self), text)

    def format_tensor(self: Torch, text: str) -> str:
        if tensor.is_meta.__get__(self) and (text or not tensor.dim(self)):
            return format_value(self, text)
        return str(tensor.__format__(self, text))

    return {tensor.type: convert, tensor.__format__: format_tensor}


def dlpack_answers() -> Mapping[tuple[Torch, str], Callable[..., Torch]]:
    """Return replacements of the exchange of tensors by DLPack, by module and name.

    A capsule is its tensor, so only torch can read it.
    """
    import torch

    packs, unpacks = torch.to_dlpack, torch.from_dlpack

    def to_dlpack(value: Torch) -> Torch:
        return value if value.is_meta else packs(value)

    def from_dlpack(value: Torch, **options: Torch) -> Torch:
        is_tensor = isinstance(value, torch.Tensor) and value.is_meta
        return torch.ops.aten.alias(value) if is_tensor else unpacks(value, **options)

    modules = (torch, torch.utils.dlpack)
    answers = {(module, "to_dlpack"): to_dlpack for module in modules}
    return answers | {(module, "from_dlpack"): from_dlpack for module in modules}


def _type_name(dtype: Torch) -> str:
    """Return the name of a tensor type, which is given as text or as a class."""
    if isinstance(dtype, type):
        return f"{dtype.__module__}.{dtype.__name__}"
    return str(dtype)
