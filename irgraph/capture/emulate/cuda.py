"""Emulation of ``cuda``: programs that name it get meta tensors that report ``cuda`` as device.

``DEVICE`` in a call's arguments becomes ``meta``; ``cards``, ``streams`` and
``cuda_graphs`` replace the functions of ``torch.cuda`` and of ``torch.accelerator``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from unittest import mock

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.cards.answers import CUDA, DEVICE, MADE_UP, OF_CARD, answers_of
from irgraph.capture.emulate.cards.card import EmulatedCard
from irgraph.capture.emulate.environment import local_rank
from irgraph.capture.emulate.streams import EmulatedStreams
from irgraph.capture.emulate.tensors.data_parallel import SecondDeviceError, data_parallel_patches
from irgraph.capture.emulate.tensors.queries import (
    device_queries,
    dlpack_answers,
    is_called_by_program,
    type_queries,
)
from irgraph.capture.emulate.tensors.types import tensor_types

CARD = "the program reads properties of its card: those of {}; --card emulates another one"

CONVERSIONS = frozenset(
    ("to", "type", "type_as", "float", "double", "half", "bfloat16", "contiguous", "cuda", "cpu")
)
"""Methods of tensors that return the tensor itself if it needs no conversion."""

WRAPPER_CONVERSION = "irgraph.conversion#"
"""Label of a conversion of a tensor that wraps another: it may do nothing."""


class DeviceTranslator:
    """Translates devices in the arguments and results of torch's functions.

    Attributes:
        names_cuda: whether the program has named ``cuda``; then meta tensors report it as device.
        mode: torch's function mode for the translation.
        replacements: replacements of torch's functions that need more than a translation.
    """

    def __init__(self) -> None:
        from torch.overrides import TorchFunctionMode

        self.names_cuda = False
        owner = self

        class Mode(TorchFunctionMode):  # type: ignore[misc]
            """Forwards each call of a torch function to its owner."""

            def __torch_function__(
                self, func: Torch, types: Torch, args: Torch = (), kwargs: Torch = None
            ) -> Torch:
                return owner.call(func, args, kwargs or {})

        self.mode = Mode()
        self.replacements = _replacements(self)

    def call(self, func: Torch, args: Torch, kwargs: Mapping[str, Torch]) -> Torch:
        """Call a torch function with ``meta`` for ``cuda``."""
        with _conversion_label(func, args):
            replacement = self.replacements.get(func)
            if replacement is not None:
                return replacement(*args, **kwargs)
            args = tuple(map(self.translate, args))
            kwargs = {name: self.translate(value) for name, value in kwargs.items()}
            if "device" in kwargs:
                kwargs["device"] = self.translate(_device_name(kwargs["device"]))
            pinned = kwargs.pop("pin_memory", False)
            result = func(*args, **kwargs)
            return result.pin_memory() if pinned and result.device.type == "cpu" else result

    def translate(self, value: Torch) -> Torch:
        """Return ``meta`` for a value that names ``cuda``, any other value unchanged."""
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
        self.names_cuda = True
        return torch.device("meta")


def _conversion_label(func: Torch, args: Torch) -> Torch:
    """Return a label around a conversion of a tensor that wraps another, else nothing."""
    from torch.autograd.profiler import record_function
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    name = getattr(func, "__name__", "")  # a partial function has none
    if name in CONVERSIONS and args and is_traceable_wrapper_subclass(args[0]):
        return record_function(WRAPPER_CONVERSION)
    return contextlib.nullcontext()


def _replacements(translator: DeviceTranslator) -> dict[Torch, Callable[..., Torch]]:
    """Return replacements of torch's functions that need more than another device's name."""
    import torch

    tensor = torch.Tensor

    def cuda(
        self: Torch, device: Torch = None, non_blocking: bool = False, **kwargs: Torch
    ) -> Torch:
        return to_device(
            self, DEVICE if device is None else device, non_blocking=non_blocking, **kwargs
        )

    def to_device(self: Torch, *args: Torch, **kwargs: Torch) -> Torch:
        arguments = [_device_name(arg) if i == 0 else arg for i, arg in enumerate(args)]
        if "device" in kwargs:
            kwargs["device"] = _device_name(kwargs["device"])
        return tensor.to(
            self,
            *map(translator.translate, arguments),
            **{k: translator.translate(v) for k, v in kwargs.items()},
        )

    def literal_factory(func: Torch) -> Callable[..., Torch]:
        def make(data: Torch, *args: Torch, device: Torch = None, **kwargs: Torch) -> Torch:
            if kwargs.pop("pin_memory", False):
                return func(data, *args, **kwargs).pin_memory()
            device = translator.translate(_device_name(device))
            if device is None or torch.device(device).type != "meta" or _has_tensor(data):
                return func(data, *args, device=device, **kwargs)
            grad = kwargs.pop("requires_grad", False)
            return func(data, *args, **kwargs).to(device).requires_grad_(grad)

        return make

    def new_tensor(self: Torch, data: Torch, **kwargs: Torch) -> Torch:
        options = {"dtype": self.dtype, "device": tensor.device.__get__(self), **kwargs}
        return literal_factory(torch.tensor)(data, **options)

    def getitem(self: Torch, index: Torch) -> Torch:
        host_index = _host_indices(index) if tensor.is_meta.__get__(self) else index
        return tensor.__getitem__(self, host_index)

    def parse_to(*args: Torch, **kwargs: Torch) -> Torch:
        """Parse the arguments of ``Module.to``, with ``meta`` also for a card's number."""
        options = {k: translator.translate(_device_name(v)) for k, v in kwargs.items()}
        return torch._C._nn._parse_to(
            *(translator.translate(_device_name(arg)) for arg in args), **options
        )

    def set_data(self: Torch, value: Torch) -> None:
        """Set a tensor's data; torch refuses a move from the host to meta, unlike to a card."""
        if tensor.is_meta.__get__(self) == tensor.is_meta.__get__(value):
            tensor.data.__set__(self, value)
            return
        copy = tensor.detach(value)
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, requires_grad=self.requires_grad)
        torch.utils.swap_tensors(self, copy)

    def device_by_number(*args: Torch, **kwargs: Torch) -> Torch:
        return torch.device(*map(_device_name, args[:1]), *args[1:], **kwargs)

    return {
        tensor.cuda: cuda,
        tensor.to: to_device,
        torch.tensor: literal_factory(torch.tensor),
        torch.as_tensor: literal_factory(torch.as_tensor),
        tensor.new_tensor: new_tensor,
        **device_queries(translator),
        **type_queries(translator),
        tensor.__getitem__: getitem,
        tensor.data.__set__: set_data,
        torch._C._nn._parse_to: parse_to,
        torch.device: device_by_number,
        torch.Generator: lambda *_, **__: torch.Generator(),
    }


def _device_name(device: Torch) -> Torch:
    """Return the name of a card for its number, any other value unchanged."""
    return f"{DEVICE}:{device}" if type(device) is int else device


def _host_indices(index: Torch) -> Torch:
    """Return an index with host tensors for lists of numbers, whose values meta would lose."""
    import torch

    if isinstance(index, tuple):
        return tuple(map(_host_indices, index))
    is_number_list = (
        isinstance(index, list) and bool(index) and all(type(i) in (int, bool) for i in index)
    )
    return torch.tensor(index) if is_number_list else index


def _has_tensor(data: Torch) -> bool:
    import torch

    if isinstance(data, (list, tuple)):
        return any(map(_has_tensor, data))
    return isinstance(data, torch.Tensor)


@contextlib.contextmanager
def cuda_on_meta(notes: dict[str, None], card: EmulatedCard) -> Iterator[None]:
    """Run programs that name ``cuda`` on meta tensors within the context.

    A sentence that names the emulated functions is added to ``notes``.
    """
    import torch
    from torch.utils import _device

    translator, streams, queries = DeviceTranslator(), EmulatedStreams(), dict[str, None]()
    original_init, original_backward = (
        _device.DeviceContext.__init__,
        torch.autograd.graph._engine_run_backward,
    )

    def init(self: Torch, device: Torch) -> None:
        original_init(self, translator.translate(_device_name(device)))

    def run_backward(*args: Torch, **kwargs: Torch) -> Torch:
        with translator.mode:  # hooks and recomputed regions are the program's own
            return original_backward(*args, **kwargs)

    original_load = torch.load

    def load(file: Torch, map_location: Torch = None, *args: Torch, **kwargs: Torch) -> Torch:
        return original_load(
            file, translator.translate(_device_name(map_location)), *args, **kwargs
        )

    with contextlib.ExitStack() as stack:
        for owner in (torch.autograd, torch.autograd.graph):
            stack.enter_context(mock.patch.object(owner, "_engine_run_backward", run_backward))
        stack.enter_context(mock.patch.object(_device.DeviceContext, "__init__", init))
        stack.enter_context(mock.patch.object(torch.Tensor, "record_stream", _ignore))
        stack.enter_context(_restored_default_device())
        stack.enter_context(_translated_hooks(translator.mode))
        stack.enter_context(mock.patch.object(torch.version, "cuda", CUDA))
        for owner, name, value in data_parallel_patches(translator):
            stack.enter_context(mock.patch.object(owner, name, value))
        answers = {**answers_of(torch, card), **streams.answers(), (torch, "load"): load}
        answers |= dlpack_answers()
        answers |= {(torch.cuda, name): kind for name, kind in tensor_types().items()}
        for (owner, name), value in answers.items():
            answer = _recording_query(f"{owner.__name__}.{name}", value, queries)
            if isinstance(getattr(owner, name, None), type) and not isinstance(value, type):
                answer = _class_of(name, answer)
            stack.enter_context(mock.patch.object(owner, name, answer, create=True))
        stack.enter_context(translator.mode)
        yield
    queries.pop("torch.cuda.is_available", None)
    if translator.names_cuda or queries:
        names = f" ({', '.join(sorted(queries))})" if queries else ""
        notes[f"the program uses torch.cuda, which was emulated{names}"] = None
    if queries.keys() & OF_CARD:
        notes[CARD.format(card.sheet)] = None
    if queries.keys() & MADE_UP or streams.timed:
        notes["memory usage and event times are made-up values"] = None


def _ignore(*_: Torch, **__: Torch) -> None:
    """Do nothing: the stream of a tensor's memory matters only to a real allocator."""


@contextlib.contextmanager
def _translated_hooks(mode: Torch) -> Iterator[None]:
    """Translate devices in hooks of saved tensors, which torch calls with function modes off."""
    import torch

    hooks = torch.autograd.graph.saved_tensors_hooks
    original = hooks.__init__

    def in_mode(hook: Torch) -> Torch:
        def call(value: Torch) -> Torch:
            with mode:
                return hook(value)

        return call

    def init(self: Torch, pack_hook: Torch, unpack_hook: Torch) -> None:
        original(self, in_mode(pack_hook), in_mode(unpack_hook))

    with mock.patch.object(hooks, "__init__", init):
        yield


@contextlib.contextmanager
def _restored_default_device() -> Iterator[None]:
    """Restore the default device at the end of the context."""
    import torch

    previous = torch.utils._device.CURRENT_DEVICE
    try:
        yield
    finally:
        if previous != torch.utils._device.CURRENT_DEVICE:
            torch.set_default_device(previous)


def _recording_query(name: str, value: Torch, queries: dict[str, None]) -> Torch:
    """Return a function that adds its name to ``queries`` if called; classes stay unchanged."""
    if isinstance(value, type):
        return value

    def answer(*args: Torch, **kwargs: Torch) -> Torch:
        if is_called_by_program(2):
            queries[name] = None
        return value(*args, **kwargs)

    return answer


def _class_of(name: str, make: Torch) -> type:
    """Return a class whose constructor calls a function: programs name classes in annotations."""
    return type(name, (), {"__new__": lambda _, *args, **kwargs: make(*args, **kwargs)})
