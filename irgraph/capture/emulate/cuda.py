"""``cuda`` where there is none: programs that name it get meta tensors, which say they lie there.

``DEVICE`` in a call's arguments becomes ``meta``; the functions of ``torch.cuda`` and of
``torch.accelerator`` are answered in ``cuda_answers``, ``streams`` and ``cuda_graphs``.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from unittest import mock

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.cuda_answers import DEVICE, MADE_UP, answers_of
from irgraph.capture.emulate.environment import local_rank
from irgraph.capture.emulate.streams import StandInStreams

FRAMES = 4
"""Calls from the code that asks a tensor something to ``_by_program``."""


BETWEEN = ("torch.utils._device", "torch.overrides")
"""Modules whose calls stand between, where a default device is set."""


class SecondDeviceError(NotImplementedError):
    """The step names a second card: a capture has one device."""


class OnMeta:
    """Translates devices on the way in and out of torch's functions.

    Attributes:
        named: whether the program has named ``cuda``; then meta tensors say they lie there.
        mode: torch's function mode that does so.
    """

    def __init__(self) -> None:
        from torch.overrides import TorchFunctionMode

        self.named = False
        owner = self

        class Mode(TorchFunctionMode):  # type: ignore[misc]
            """Hands each call of a torch function to its owner."""

            def __torch_function__(
                self, func: Torch, types: Torch, args: Torch = (), kwargs: Torch = None
            ) -> Torch:
                return owner.call(func, args, kwargs or {})

        self.mode = Mode()
        self.special = _special(self)

    def call(self, func: Torch, args: Torch, kwargs: Mapping[str, Torch]) -> Torch:
        """Call a torch function with ``meta`` for ``cuda``."""
        found = self.special.get(func)
        if found is not None:
            return found(*args, **kwargs)
        args = tuple(map(self.place, args))
        kwargs = {name: self.place(value) for name, value in kwargs.items()}
        pinned = kwargs.pop("pin_memory", False)
        made = func(*args, **kwargs)
        return made.pin_memory() if pinned and made.device.type == "cpu" else made

    def place(self, value: Torch) -> Torch:
        """Return ``meta`` for a value that names ``cuda``, any other as it is."""
        import torch

        if isinstance(value, torch.device):
            return self._meta(value) if value.type == DEVICE else value
        if isinstance(value, str) and value.partition(":")[0] == DEVICE:
            return self._meta(torch.device(value))
        return value

    def _meta(self, device: Torch) -> Torch:
        import torch

        if device.index not in (None, local_rank()):
            raise SecondDeviceError(f"a capture has one device, and the step names {device}")
        self.named = True
        return torch.device("meta")


def _special(on: OnMeta) -> dict[Torch, Callable[..., Torch]]:
    """Return what stands for torch's functions that need more than another device's name."""
    import torch

    tensor = torch.Tensor

    def cuda(
        self: Torch, device: Torch = None, non_blocking: bool = False, **kwargs: Torch
    ) -> Torch:
        return to(self, DEVICE if device is None else device, non_blocking=non_blocking, **kwargs)

    def to(self: Torch, *args: Torch, **kwargs: Torch) -> Torch:
        given = [_numbered(arg) if i == 0 else arg for i, arg in enumerate(args)]
        if "device" in kwargs:
            kwargs["device"] = _numbered(kwargs["device"])
        return tensor.to(self, *map(on.place, given), **{k: on.place(v) for k, v in kwargs.items()})

    def literal(func: Torch) -> Callable[..., Torch]:
        def make(data: Torch, *args: Torch, device: Torch = None, **kwargs: Torch) -> Torch:
            device = on.place(_numbered(device))
            if device is None or torch.device(device).type != "meta" or _has_tensor(data):
                return func(data, *args, device=device, **kwargs)
            grad = kwargs.pop("requires_grad", False)
            return func(data, *args, **kwargs).to(device).requires_grad_(grad)

        return make

    def new_tensor(self: Torch, data: Torch, **kwargs: Torch) -> Torch:
        given = {"dtype": self.dtype, "device": tensor.device.__get__(self), **kwargs}
        return literal(torch.tensor)(data, **given)

    def parsed(*args: Torch, **kwargs: Torch) -> Torch:
        """Read the arguments of ``Module.to``; ``meta`` would do where the program says ``0``."""
        given = {k: on.place(_numbered(v)) for k, v in kwargs.items()}
        return torch._C._nn._parse_to(*(on.place(_numbered(arg)) for arg in args), **given)

    return {
        tensor.cuda: cuda,
        tensor.to: to,
        torch.tensor: literal(torch.tensor),
        torch.as_tensor: literal(torch.as_tensor),
        tensor.new_tensor: new_tensor,
        **_facts(on),
        torch._C._nn._parse_to: parsed,
        torch.device: torch.device,
        torch.Generator: lambda *_, **__: torch.Generator(),
    }


def _facts(on: OnMeta) -> dict[Torch, Callable[..., Torch]]:
    """Return what tensors tell the program of where they are, and take as an index."""
    import torch

    tensor, meta = torch.Tensor, torch.device("meta")

    def getitem(self: Torch, index: Torch) -> Torch:
        host = _indices(index) if tensor.is_meta.__get__(self) else index
        return tensor.__getitem__(self, host)

    def device(self: Torch) -> Torch:
        real = tensor.device.__get__(self)
        told = on.named and real == meta and _by_program()
        return torch.device(DEVICE, local_rank()) if told else real

    def is_cuda(self: Torch) -> bool:
        real = bool(tensor.is_cuda.__get__(self))
        return real or (on.named and tensor.is_meta.__get__(self) and _by_program())

    return {
        tensor.__getitem__: getitem,
        tensor.device.__get__: device,
        tensor.is_cuda.__get__: is_cuda,
    }


def _by_program(frames: int = FRAMES) -> bool:
    """Return whether the code so many calls further out is the program's, not torch's."""
    frame: FrameType | None = sys._getframe(frames)
    while frame is not None and frame.f_globals.get("__name__") in BETWEEN:
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "") if frame is not None else ""
    return name.partition(".")[0] not in ("torch", "irgraph")


def _numbered(device: Torch) -> Torch:
    """Return the name of a card that a program gives by its number."""
    return f"{DEVICE}:{device}" if type(device) is int else device


def _indices(index: Torch) -> Torch:
    """Return an index with tensors on the host for lists of numbers, whose values meta loses."""
    import torch

    if isinstance(index, tuple):
        return tuple(map(_indices, index))
    plain = isinstance(index, list) and bool(index) and all(type(i) in (int, bool) for i in index)
    return torch.tensor(index) if plain else index


def _has_tensor(data: Torch) -> bool:
    import torch

    if isinstance(data, (list, tuple)):
        return any(map(_has_tensor, data))
    return isinstance(data, torch.Tensor)


@contextlib.contextmanager
def cuda_on_meta(notes: dict[str, None]) -> Iterator[None]:
    """Let programs that name ``cuda`` run on meta tensors while it lasts.

    ``notes`` gets one sentence that names what was answered by a stand-in.
    """
    import torch
    from torch.utils import _device

    on, streams, asked = OnMeta(), StandInStreams(), dict[str, None]()
    enter, run = _device.DeviceContext.__init__, torch.autograd.graph._engine_run_backward

    def init(self: Torch, device: Torch) -> None:
        enter(self, on.place(_numbered(device)))

    def run_backward(*args: Torch, **kwargs: Torch) -> Torch:
        with on.mode:  # hooks and recomputed regions are the program's own
            return run(*args, **kwargs)

    loading = torch.load

    def load(file: Torch, map_location: Torch = None, *args: Torch, **kwargs: Torch) -> Torch:
        return loading(file, on.place(_numbered(map_location)), *args, **kwargs)

    with contextlib.ExitStack() as stack:
        for owner in (torch.autograd, torch.autograd.graph):
            stack.enter_context(mock.patch.object(owner, "_engine_run_backward", run_backward))
        stack.enter_context(mock.patch.object(_device.DeviceContext, "__init__", init))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", lambda *_: None))
        stack.enter_context(_default_device())
        answers = {**answers_of(torch), **streams.answers(), (torch, "load"): load}
        for (owner, name), value in answers.items():
            known = _recording_query(f"{owner.__name__}.{name}", value, asked)
            if isinstance(getattr(owner, name, None), type) and not isinstance(value, type):
                known = _class_of(name, known)
            stack.enter_context(mock.patch.object(owner, name, known, create=True))
        stack.enter_context(on.mode)
        yield
    asked.pop("torch.cuda.is_available", None)
    if on.named or asked:
        names = f" ({', '.join(sorted(asked))})" if asked else ""
        notes[f"the program uses torch.cuda, which was emulated{names}"] = None
    if asked.keys() & MADE_UP or streams.timed:
        notes["memory usage and event times are made-up values"] = None


@contextlib.contextmanager
def _default_device() -> Iterator[None]:
    """Let the default device be again what it was."""
    import torch

    kept = torch.utils._device.CURRENT_DEVICE
    try:
        yield
    finally:
        if kept != torch.utils._device.CURRENT_DEVICE:
            torch.set_default_device(kept)


def _recording_query(name: str, value: Torch, asked: dict[str, None]) -> Torch:
    """Return a function that notes that it was asked; classes stay as they are."""
    if isinstance(value, type):
        return value

    def answer(*args: Torch, **kwargs: Torch) -> Torch:
        if _by_program(2):
            asked[name] = None
        return value(*args, **kwargs)

    return answer


def _class_of(name: str, make: Torch) -> type:
    """Return a class that makes what a function does: programs name classes in annotations."""
    return type(name, (), {"__new__": lambda _, *args, **kwargs: make(*args, **kwargs)})
