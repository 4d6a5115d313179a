"""Live capture: runs a PyTorch step, on the meta device or another one, and records its calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from irgraph.capture.common.result import Capture
from irgraph.capture.common.symbolic import other_sizes, with_symbolic_batch
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.cards.card import card_by_name
from irgraph.capture.emulate.environment import Process, process_of
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.capture.emulate.patches import emulate_cuda
from irgraph.capture.emulate.unknown_values.assumptions import ROUNDS, read_assumptions
from irgraph.capture.live.batches import cut_to
from irgraph.capture.live.build_graph import (
    CaptureSpec,
    import_torch,
    lower_recording,
    record_step,
    with_notes,
)
from irgraph.capture.live.capture_cache import cached_capture
from irgraph.capture.live.device_calls import recorder
from irgraph.capture.live.device_calls.vmap import without_vmap
from irgraph.capture.live.discover import model_of
from irgraph.capture.live.loader_times import LoaderTimes
from irgraph.capture.live.module import ModuleStep, batch_of, refuse_without_inputs
from irgraph.capture.live.neighbours import note_size, run_with_neighbours
from irgraph.capture.live.script import capture_program
from irgraph.capture.live.step_outputs import reachable_tensors, returned_tensors
from irgraph.capture.live.target import (
    StepFunction,
    is_program,
    load_target,
    refuse_unrun,
    split_target,
    user_error,
)
from irgraph.capture.live.ties import possible_ties
from irgraph.capture.live.torch_warnings import warnings_as_notes
from irgraph.diagnostics import fail
from irgraph.ir.loading import read_loading

BATCH = 2048
"""Default batch size of a step by a function of (batch, device)."""

OWN_BATCH = "{} has a batch size of its own, that of its loader"
NOT_PROGRAM = "{} makes a step: it takes no arguments, and --step-at says nothing of it"
NAME_OPTIONS = "write options of the function by name, such as dlrm.py:default(lookups=10)"
RESIZE = "set another one afterwards, such as irgraph predict model.ir --dim B=512"


def capture(
    step: Callable[..., object],
    example_inputs: Torch = None,
    *,
    loss: Callable[[Torch], Torch] | None = None,
    optimizer: Callable[[Torch], Torch] | None = None,
    name: str = "step",
    device: str = "meta",
    model: Torch = None,
    dims: Mapping[str, int] | None = None,
    source: str = "",
    pinned: bool = False,
    ranks: int | str | None = None,
    rank: int = 0,
    assume: Sequence[str] = (),
    rounds: int = ROUNDS,
    card: str | None = None,
) -> Capture:
    """Run a step twice, once to warm up, and return its calls as a graph.

    Args:
        step: function without arguments that runs one training or inference step. With
            ``example_inputs``, a module, of which a copy is moved to the device.
        example_inputs: arguments of a module, on the host: a tensor, several, or several by name.
            The size of their first axes, if all are equal, becomes the dimension ``B``.
        loss: function from the module's result to the loss, whose gradients are then computed.
        optimizer: function from the module's parameters to their optimizer, such as
            ``torch.optim.AdamW``.
        name: the graph's name.
        device: device of the step's tensors. ``meta`` emulates the accelerator: nothing is
            computed, and tensors on the CPU are host tensors.
        model: module that names parameters and modules; by default ``step.model``, or else the
            modules that the step reaches.
        dims: symbolic sizes to declare.
        source: the file of the step; errors name their line in it.
        pinned: whether host tensors are in pinned memory although the program does not pin them.
        ranks: number of ranks of the program, as ``8`` or ``2x8`` (machines x ranks on each), if
            the program reads it from its environment, as under ``torchrun``; on meta.
        rank: the captured rank.
        assume: values for reads of unknown ones by lines of the program: ``train.py:12=false``.
        rounds: number of rounds of a loop that ends by an unknown value.
        card: device sheet of the card whose properties the program reads, an A100 by default.

    Raises:
        IrgraphError: the step raised, or torch is missing; a module without inputs (exit code 2);
            the graph breaks a rule of the IR, which is a defect (exit code 70).
    """
    import_torch()
    if example_inputs is None:
        refuse_without_inputs(step, loss, optimizer)
    assumptions = read_assumptions(assume, rounds)
    spec = CaptureSpec(
        name, device, dict(dims or {}), source, pinned, assumptions, card_by_name(card)
    )
    notes: dict[str, None] = {}
    process = process_of(ranks, rank)
    with warnings_as_notes(notes), emulate_cuda(device, process, spec.card) as emulation:
        if example_inputs is None:
            ties = possible_ties(model if model is not None else model_of(step))
            notes.update(dict.fromkeys(ties))
            captured = _capture(step, model, spec)
        else:

            def capture_at(size: int) -> Capture:
                inputs = cut_to(example_inputs, size) if size else example_inputs
                return _capture(ModuleStep(step, inputs, loss, optimizer, device), None, spec)

            batch = batch_of(example_inputs)
            captured = capture_at(batch)
            if batch:
                captured = with_symbolic_batch(captured, batch, capture_at, other_sizes(batch))
    return with_notes(captured, spec.source, (*notes, *emulation.notes))


def _capture(step: Callable[[], object], model: Torch, spec: CaptureSpec) -> Capture:
    """Capture a step within an emulation of an accelerator."""
    model = model if model is not None else model_of(step)
    known_values = KnownValues(spec.assumptions)
    with recorder.dispatch_mode(None, {}, known_values):
        _call(step, spec, "first running")
    with record_step(spec, model, known_values) as step_recording:
        result = _call(step, spec, "capturing")
    step_recording.recording.note_results(returned_tensors(result), reachable_tensors(step, model))
    return lower_recording(step_recording, spec, model, step)


def capture_file(
    target: str,
    *,
    batch: int | None = None,
    arguments: Sequence[str] = (),
    step_at: str = "update",
    device: str = "meta",
    symbolic: bool = True,
    batches: Sequence[int] = (),
    pinned: bool = False,
    ranks: int | str | None = None,
    rank: int = 0,
    assume: Sequence[str] = (),
    rounds: int = ROUNDS,
    card: str | None = None,
    loader: str | None = None,
    doing: Callable[[str], None] = lambda _: None,
    cache: str | Path | None = None,
) -> Capture:
    """Capture the step of ``FILE.py:NAME``, with its batch size as the dimension ``B``.

    Args:
        target: names a function of (batch, device) that returns a step; literal options may
            follow its name, as in ``dlrm.py:default(lookups=10)``. Or names a training script, or a
            function without arguments: it is run, and a step of its loop captured.
        batch: batch size of the captured step, 2048 by default; a loop has its own.
        arguments: arguments of a script, as in ``sys.argv``.
        step_at: event that ends steps of its loop: ``update`` (an optimizer's update, or the next
            batch after it), ``batch`` (the next batch) or ``backward`` (a backward pass).
        device: ``meta``, or ``cpu`` to compute the step.
        symbolic: whether to capture at other batch sizes as well, to find sizes that depend on it.
        batches: these other batch sizes; chosen if empty.
        pinned: whether host tensors are in pinned memory although the program does not pin them.
        ranks: number of ranks of the program, as ``8`` or ``2x8`` (machines x ranks on each), if
            the program reads it from its environment, as under ``torchrun``; on meta.
        rank: the captured rank.
        assume: values for reads of unknown ones by lines of the program: ``train.py:12=false``.
        rounds: number of rounds of a loop that ends by an unknown value.
        card: device sheet of the card whose properties the program reads, an A100 by default.
        loader: time in which the program's loader makes a batch, such as ``12ms``, or with its
            number of workers ``12ms/4``; a script's loader is measured on this CPU by default.
        doing: called with a description of the work in progress.
        cache: cache folder. A capture with the same arguments is read from it, unless the program,
            a Python file that it loads, or an installed version changed; other inputs, such as
            data files and environment variables, are not checked.

    Raises:
        IrgraphError: the target cannot be found or run; its own errors name their line.
    """
    process = process_of(ranks, rank)
    loading = read_loading(loader) if loader is not None else None
    assumptions, emulated_card = read_assumptions(assume, rounds), card_by_name(card)
    settings = CaptureSpec(
        "", device, {}, "", pinned, assumptions, emulated_card, loading, symbolic
    )

    def run_as(process: Process | None, size: int) -> Capture:
        if is_program(target):
            if batch is not None:
                raise fail(OWN_BATCH.format(target), hint=RESIZE, exit_code=2)
            doing(f"running {target} on {device}")
            return capture_program(target, arguments, settings, step_at=step_at, process=process)
        if arguments or step_at != "update":
            raise fail(NOT_PROGRAM.format(target), hint=NAME_OPTIONS, exit_code=2)
        import_torch()
        notes: dict[str, None] = {}
        with warnings_as_notes(notes), emulate_cuda(device, process, settings.card) as emulation:
            sizes = (size or batch or BATCH, symbolic, batches)
            captured = _capture_function(load_target(target), settings, sizes, doing)
            captured = LoaderTimes(loading).apply(captured)
        return with_notes(captured, split_target(target)[0], (*notes, *emulation.notes))

    def run_capture() -> Capture:
        return run_with_neighbours(run_as, process, doing)

    if cache is None:
        return run_capture()
    inputs = (
        (step_at, *arguments),
        (batch, symbolic, *batches),
        (device, pinned, ranks, rank),
        (*assume, rounds, card, loader),
    )
    return cached_capture(cache, *split_target(target), inputs, run_capture)


def _capture_function(
    function: StepFunction,
    settings: CaptureSpec,
    sizes: tuple[int, bool, Sequence[int]],
    doing: Callable[[str], None],
) -> Capture:
    """Capture the step of a function of (batch, device) at a size, and at others if symbolic."""
    name = f"{Path(function.path).stem}_{function.name}"
    spec = replace(settings, name=name, source=function.path)
    batch, symbolic, batches = sizes

    def capture_at(size: int) -> Capture:
        doing(f"capturing {function.name} at batch size {size}")
        note_size(size)
        # the function may read values; the step's parameters have none
        with recorder.dispatch_mode(None, {}, KnownValues(spec.assumptions)):
            step = function.step(size, spec.device)
        return _capture(step, None, spec)

    captured = capture_at(batch)
    if symbolic:
        return with_symbolic_batch(captured, batch, capture_at, batches or other_sizes(batch))
    return captured


def _call(step: Callable[[], object], spec: CaptureSpec, doing: str) -> object:
    try:
        with without_vmap():
            result = step()
    except (Exception, SystemExit) as error:
        message = f"{spec.name} failed while {doing} it"
        raise user_error(message, error, spec.source) from error
    refuse_unrun(result, f"the step of {spec.name}", spec.source)
    return result
