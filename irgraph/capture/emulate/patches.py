"""Patches of torch with which a capture on the meta device runs an accelerator's code paths."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from unittest import mock

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.autocast import autocast_on_meta
from irgraph.capture.emulate.cards.card import EmulatedCard
from irgraph.capture.emulate.composites import undivided_composites
from irgraph.capture.emulate.cuda import cuda_on_meta
from irgraph.capture.emulate.environment import Process, as_process
from irgraph.capture.emulate.flex.attention import flex_attention_on_meta
from irgraph.capture.emulate.fused_attention import fused_on_meta
from irgraph.capture.emulate.processes import processes_on_meta
from irgraph.capture.emulate.profilers import inert_profilers
from irgraph.capture.emulate.recurrent import cudnn_layers_on_meta
from irgraph.capture.emulate.switches import restored_switches
from irgraph.diagnostics import fail


@dataclass(slots=True)
class CudaEmulation:
    """Record of an emulation of an accelerator by the meta device.

    Attributes:
        notes: sentences about the emulation, in order.
        pinned: memory that the program pinned, by address.
    """

    notes: dict[str, None] = field(default_factory=dict)
    pinned: dict[int, Torch] = field(default_factory=dict)


@contextlib.contextmanager
def emulate_cuda(
    device: str, process: Process | None = None, card: EmulatedCard | None = None
) -> Iterator[CudaEmulation]:
    """Emulate a CUDA device by ``meta`` within the context; other devices are left unchanged.

    Optimizers choose their ``foreach`` and ``fused`` forms, attention and dropout their fused
    kernels, autocast casts, host memory can be pinned, parameters stay tied, and ``cuda`` means
    ``meta``. With ``process``, the program is that process of many. ``card`` is
    an A100 by default.
    """
    import torch

    if process is not None and device != "meta":
        message = f"one rank of many is captured on meta, not on {device}"
        raise fail(message, hint="leave the device out, or the ranks", exit_code=2)
    emulation = CudaEmulation()
    with contextlib.ExitStack() as stack:
        stack.enter_context(restored_switches())
        stack.enter_context(as_process(process))
        stack.enter_context(optimizers_on_meta())
        stack.enter_context(_without_workers())
        stack.enter_context(inert_profilers(emulation.notes))
        stack.enter_context(_without_compilation(emulation.notes))
        stack.enter_context(flex_attention_on_meta(emulation.notes))
        if device == "meta":
            stack.enter_context(autocast_on_meta())
            stack.enter_context(undivided_composites())
            stack.enter_context(fused_on_meta(emulation.notes))
            stack.enter_context(cudnn_layers_on_meta())
            if not torch.accelerator.is_available():
                stack.enter_context(_pinned_memory(emulation.pinned))
            stack.enter_context(_fused_dropout())
            stack.enter_context(_lengths_on_host())
            stack.enter_context(_preserved_parameters())
            stack.enter_context(_sparse_constructor())
            stack.enter_context(cuda_on_meta(emulation.notes, card or EmulatedCard()))
            stack.enter_context(processes_on_meta(emulation.notes, process))
        yield emulation


@contextlib.contextmanager
def optimizers_on_meta() -> Iterator[None]:
    """Enable an accelerator's optimizer kernels for meta tensors within the context.

    By default, optimizers update all parameters with one call on a device that is listed to have
    such kernels, and capturable optimizers have their step counts there.
    """
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    capturable = "_get_capturable_supported_devices"
    optimizer_modules = [
        module for name, module in sys.modules.items() if name.startswith("torch.optim.")
    ]

    with contextlib.ExitStack() as stack:
        for kind in ("foreach", "fused"):
            name = f"_get_{kind}_kernels_supported_devices"
            devices = [*getattr(_foreach_utils, name)(), "meta"]
            for module in (optimizer, _foreach_utils):
                answer = mock.Mock(return_value=devices)
                stack.enter_context(mock.patch.object(module, name, answer))
        for module in optimizer_modules:  # each has imported the function by its name
            if hasattr(module, capturable):
                stack.enter_context(mock.patch.object(module, capturable, _capturable_devices))
        yield


def _capturable_devices(supports_xla: bool = True) -> list[str]:
    """Return the devices that may store step counts.

    ``torch.distributed.optim`` scripts this function when it is imported, so it must be a plain
    function.
    """
    return ["cuda", "xpu", "hpu", "privateuseone", "xla", "meta"]


@contextlib.contextmanager
def _fused_dropout() -> Iterator[None]:
    """Run dropout of meta tensors as the single kernel of CUDA devices."""
    import torch
    from torch.library import Library

    composite = torch._C.DispatchKey.CompositeImplicitAutograd

    def kernel(tensor: Torch, p: float, train: bool) -> Torch:
        if train and 0 < p < 1 and tensor.numel():
            return torch.native_dropout(tensor, p, train)[0]
        return torch.ops.aten.dropout.default._op_dk(composite, tensor, p, train)

    library = Library("aten", "IMPL")
    library.impl("dropout", kernel, "AutogradMeta")
    try:
        yield
    finally:
        library._destroy()


@contextlib.contextmanager
def _lengths_on_host() -> Iterator[None]:
    """Accept lengths of ``ctc_loss`` on the host, as for a CUDA device.

    On CUDA, torch reads the lengths on the host and divides by a copy of the target lengths (torch,
    LossCTC.cpp); with a dispatch mode, it divides by the given host tensor.
    """
    import torch
    from torch.library import Library

    composite = torch._C.DispatchKey.CompositeImplicitAutograd

    def kernel(
        scores: Torch,
        targets: Torch,
        input_lengths: Torch,
        target_lengths: Torch,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Torch:
        if target_lengths.device == scores.device or reduction != 1:
            arguments = (
                scores,
                targets,
                input_lengths,
                target_lengths,
                blank,
                reduction,
                zero_infinity,
            )
            return torch.ops.aten.ctc_loss.Tensor._op_dk(composite, *arguments)
        device_targets = targets.to(scores.device, torch.int64)
        results = torch.ops.aten._ctc_loss.Tensor(
            scores, device_targets, input_lengths, target_lengths, blank, zero_infinity
        )
        losses = results[0]
        if zero_infinity:
            losses = torch.where(losses == float("inf"), losses.new_zeros(()), losses)
        return (losses / target_lengths.to(scores.device).clamp_min(1)).mean()

    library = Library("aten", "IMPL")
    library.impl("ctc_loss.Tensor", kernel, "AutogradMeta")
    try:
        yield
    finally:
        library._destroy()


UNCOMPILED = (
    "the program uses torch.compile: captured as if uncompiled; the statement compile of a script "
    "models the fused kernels"
)


@contextlib.contextmanager
def _without_compilation(notes: dict[str, None]) -> Iterator[None]:
    """Run compiled functions uncompiled; a call of one adds a note."""
    import torch

    original = torch.compile

    def compile_with_note(model: Torch = None, **options: Torch) -> Torch:
        if model is None:
            return functools.partial(compile_with_note, **options)
        compiled = original(model, **options)
        if isinstance(compiled, torch.nn.Module):
            compiled.register_forward_pre_hook(note_use)
            return compiled

        @functools.wraps(compiled)
        def call(*args: Torch, **kwargs: Torch) -> Torch:
            note_use()
            return compiled(*args, **kwargs)

        return call

    def note_use(*_: Torch) -> None:
        notes[UNCOMPILED] = None

    with (
        torch.compiler.set_stance("force_eager"),
        mock.patch.object(torch, "compile", compile_with_note),
    ):
        yield


@contextlib.contextmanager
def _preserved_parameters() -> Iterator[None]:
    """Preserve the parameter objects of a module that moves to meta, as in a move to CUDA.

    Parameters that modules share stay shared, and an optimizer created before the move still
    refers to the module's parameters.
    """
    from torch import __future__ as choices

    previous = choices.get_swap_module_params_on_conversion()
    choices.set_swap_module_params_on_conversion(True)
    try:
        yield
    finally:
        choices.set_swap_module_params_on_conversion(previous)


@contextlib.contextmanager
def _sparse_constructor() -> Iterator[None]:
    """Support SparseAdam's ``gradient.new(rows, values, size)`` on meta tensors."""
    import torch

    original = torch.Tensor.new

    def make(tensor: Torch, *args: Torch, **kwargs: Torch) -> Torch:
        if tensor.is_sparse and tensor.device.type == "meta" and len(args) == 3:
            return torch.sparse_coo_tensor(*args, check_invariants=False)
        return original(tensor, *args, **kwargs)

    with mock.patch.object(torch.Tensor, "new", make):
        yield


@contextlib.contextmanager
def _without_workers() -> Iterator[None]:
    """Run loaders in this process: worker processes would write the same recording."""
    from torch.utils.data import DataLoader

    original = DataLoader._get_iterator

    def get_iterator(loader: Torch) -> Torch:
        previous = loader.num_workers, loader.timeout
        loader.num_workers, loader.timeout = 0, 0
        try:
            return original(loader)
        finally:
            loader.num_workers, loader.timeout = previous

    with mock.patch.object(DataLoader, "_get_iterator", get_iterator):
        yield


@contextlib.contextmanager
def _pinned_memory(pinned: dict[int, Torch]) -> Iterator[None]:
    """Track pinned memory on a machine without an accelerator to pin it for."""
    import torch

    def pin(tensor: Torch, device: Torch = None) -> Torch:
        if is_pinned(tensor):
            return tensor
        copy = tensor.clone(memory_format=torch.contiguous_format)
        pinned[copy.untyped_storage()._cdata] = copy
        return copy

    def is_pinned(tensor: Torch, device: Torch = None) -> bool:
        return tensor.device.type == "cpu" and tensor.untyped_storage()._cdata in pinned

    with (
        mock.patch.object(torch.Tensor, "pin_memory", pin),
        mock.patch.object(torch.Tensor, "is_pinned", is_pinned),
    ):
        yield
