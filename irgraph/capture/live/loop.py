"""Captures steps of an existing loop: marked at their ends, at several batch sizes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any, Self
from unittest import mock

from msgspec.structs import replace

from irgraph.capture.common.result import Capture
from irgraph.capture.common.symbolic import with_symbolic_batch
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.cards.card import card_by_name
from irgraph.capture.emulate.communication import current_communication
from irgraph.capture.emulate.environment import Process, process_of
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.capture.emulate.patches import CudaEmulation, emulate_cuda
from irgraph.capture.emulate.unknown_values.assumptions import ROUNDS, read_assumptions
from irgraph.capture.live.batches import BatchSizes
from irgraph.capture.live.build_graph import (
    CaptureSpec,
    StepRecording,
    import_torch,
    lower_recording,
    record_step,
    with_notes,
)
from irgraph.capture.live.device_calls import recorder
from irgraph.capture.live.device_calls.loading import BATCH, LOADER
from irgraph.capture.live.device_calls.vmap import without_vmap
from irgraph.capture.live.discover import model_of
from irgraph.capture.live.loader_times import LoaderTimes
from irgraph.capture.live.rarer_steps import RarerSteps
from irgraph.capture.live.step_outputs import reachable_tensors, returned_tensors
from irgraph.capture.live.target import hint_of
from irgraph.capture.live.torch_warnings import warnings_as_notes
from irgraph.capture.live.typical_step import StepHistory
from irgraph.diagnostics import Diagnostic, fail
from irgraph.ir.loading import read_loading
from irgraph.ir.rarer_steps import OMITTED

NO_STEP = "no step of the loop was recorded: the second step, after one to warm up, did not end"
MORE_STEPS = (
    "let the program run more steps: {} ended (the first one warms up, and the last one may end "
    "only where the next one begins)"
)
STEP = "call capture.step() at the end of each step, within the loop"
NOT_CUT = (
    "no batch dimension: no DataLoader of torch gave the second step a batch; "
    "take batches from capture.batches(…), within the steps"
)
NOT_IN_PROPORTION = "batches of {} rows keep their size: not in proportion to those of {}"
FIXED_MICRO_BATCHES = "no batch dimension: the pipeline's micro-batches have fixed sizes"
MAX_STEPS = 24
"""Maximum number of steps before unusual ones are no longer repeated."""

UNUSUAL = f"most steps make other calls than the captured one: {OMITTED}"
ENDED = "no batch dimension: the loop ended after {} steps, and {} are needed"


SURROUNDING_PACKAGES = frozenset(("irgraph", "torch", "runpy", "importlib", "contextlib"))
"""Packages whose functions are on the stack between a program's functions."""


def program_variables(frame: FrameType) -> dict[str, Any]:
    """Return the locals and used globals of a frame, none of a frame of the listed packages."""
    module_globals = frame.f_globals
    if str(module_globals.get("__name__")).partition(".")[0] in SURROUNDING_PACKAGES:
        return {}
    used_globals = {
        name: module_globals[name] for name in frame.f_code.co_names if name in module_globals
    }
    return {**frame.f_locals, **used_globals}


def capturing(
    *,
    name: str = "step",
    device: str = "meta",
    pinned: bool = False,
    ranks: int | str | None = None,
    rank: int = 0,
    assume: Sequence[str] = (),
    rounds: int = ROUNDS,
    card: str | None = None,
    loader: str | None = None,
) -> Capturing:
    """Return a context in which an existing loop is captured.

    The loop calls ``step()`` at the end of each of its steps. The first step warms up, the next two
    are recorded, then two at other batch sizes. Within the block, the batches
    of every ``DataLoader`` of torch and of ``batches`` are cut in proportion, and end when no more
    steps are needed. Create the model and the optimizer within the block as well.

    Args:
        name: the graph's name.
        device: device of the step's tensors; ``meta`` emulates the accelerator, also if the program
            names ``cuda``.
        pinned: whether host tensors are in pinned memory although the program does not pin them.
        ranks: number of ranks of the program, as ``8`` or ``2x8`` (machines x ranks on each), if
            the program reads it from its environment, as under ``torchrun``; on meta.
        rank: the captured rank.
        assume: values for reads of unknown ones by lines of the program: ``train.py:12=false``.
        rounds: number of rounds of a loop that ends by an unknown value.
        card: device sheet of the card whose properties the program reads, an A100 by default.
        loader: time in which the program's loader makes a batch, such as ``12ms``, or with its
            number of workers ``12ms/4``; measured on this CPU by default.

    Raises:
        IrgraphError: torch is missing, or no step was recorded (raised at the end of the block).
    """
    import_torch()
    spec = CaptureSpec(
        name,
        device,
        {},
        "",
        pinned,
        read_assumptions(assume, rounds),
        card_by_name(card),
        read_loading(loader) if loader is not None else None,
    )
    return Capturing(spec, process_of(ranks, rank))


class Capturing:
    """A loop that is being captured; created by ``capturing``.

    Attributes:
        result: the capture, once the block has ended.
        done: whether all required steps were recorded.
    """

    _no_step, _hint = NO_STEP, STEP

    def __init__(
        self, spec: CaptureSpec, process: Process | None = None, observed_steps: int = 0
    ) -> None:
        self.result: Capture | None = None
        self.done = False
        self._spec, self._process = spec, process
        self._sizes = BatchSizes(observed_steps, not spec.symbolic)
        self._outer_context, self._recording = contextlib.ExitStack(), contextlib.ExitStack()
        self._notes: dict[str, None] = {}
        self._captures: dict[int, Capture] = {}
        self._history = StepHistory()
        self._rarer = RarerSteps(self._history, self._sizes)
        self._loader_times = LoaderTimes(spec.loading)
        self._step_recording: StepRecording | None = None
        self._known_values = KnownValues(spec.assumptions)
        self._frame: FrameType | None = None
        self._emulation = CudaEmulation()

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, cut or repeated, until no more steps are needed.

        Only tensors and lists with the first tensor's length along their first axis are cut.
        """
        import torch

        cut = isinstance(loader, torch.utils.data.DataLoader)  # cuts them itself
        batches = iter(loader)
        label = f"{BATCH}{self._loader_times.name(loader)}"
        while not self.done:
            with torch.autograd.profiler.record_function(LOADER):
                batch = next(batches, self)
                if batch is self:
                    return
            with torch.autograd.profiler.record_function(label):  # the batch exists
                batch = batch if cut else self._sizes.resize_batch(loader, batch)
            yield batch

    def step(self, model: Torch = None) -> bool:
        """End a step; return whether no more are needed.

        Args:
            model: module that names parameters and modules; by default the modules that the loop's
                variables reach.
        """
        return self.done or self._finish_step(self._variables(sys._getframe(1)), model)

    def _finish_step(self, scope: object, model: Torch = None, result: object = None) -> bool:
        """End a step; return whether no more are needed.

        ``scope`` are the loop's variables, or the function that ran the step and returned
        ``result``.
        """
        model = model if model is not None else model_of(scope)
        self._end_recording(scope, model, result)
        self._begin(model)
        return self.done

    def _begin(self, model: Torch) -> None:
        """Start the next step, which is recorded if the plan requires it."""
        enter = self._recording.enter_context
        is_recorded = self._sizes.ended in self._sizes.recorded or self._rarer.is_recording
        if not self.done and is_recorded:
            names = self._history.current
            self._step_recording = enter(record_step(self._spec, model, self._known_values, names))
        else:
            self._known_values.unknown.begin_step()
            names = self._history.current
            enter(recorder.dispatch_mode(None, {}, self._known_values, names))

    def callback(self) -> Torch:
        """Return a callback that ends the steps, for the ``Trainer`` of transformers."""
        owner, base = self, import_module("transformers").TrainerCallback

        class StepCallback(base):  # type: ignore[misc,valid-type]
            """Ends a step of the capture with each step of the trainer."""

            def on_step_end(
                self, _: Torch, state: Torch, control: Torch, **arguments: Torch
            ) -> None:
                control.should_training_stop = owner.step(arguments["model"])

        return StepCallback()

    def __enter__(self) -> Self:
        """Emulate an accelerator, and repair calls that the device cannot run."""
        with contextlib.ExitStack() as outer_context:
            outer_context.enter_context(warnings_as_notes(self._notes))
            self._emulation = outer_context.enter_context(
                emulate_cuda(self._spec.device, self._process, self._spec.card)
            )
            outer_context.enter_context(self._patched_loaders())
            outer_context.enter_context(without_vmap())
            # the recording ends first, and the other contexts end even if that fails
            outer_context.enter_context(self._recording)
            self._recording.enter_context(recorder.dispatch_mode(None, {}, self._known_values))
            self._outer_context = outer_context.pop_all()
        self._frame = sys._getframe(1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Build the model of the steps, unless the loop raised."""
        self._outer_context.__exit__(kind, error, traceback)
        self._frame = None
        self._notes |= self._emulation.notes
        hint = hint_of(error) if error is not None else ""
        if hint and error is not None:
            error.add_note(f"irgraph: {hint}")
        if error is None:
            self.result = self._build_result()

    def _end_recording(self, scope: object, model: Torch, result: object) -> None:
        """Stop recording, and store the step's model."""
        self._recording.close()
        step_recording, self._step_recording = self._step_recording, None
        self._history.end_step()
        is_needed = self._rarer.is_needed() if self._rarer.is_recording else True
        if step_recording is not None and is_needed:
            step_recording.recording.note_results(
                returned_tensors(result), reachable_tensors(scope, model)
            )
            captured = lower_recording(step_recording, self._spec, model, scope)
            if self._rarer.is_recording:
                self._rarer.add(captured)
            else:
                self._captures[self._sizes.ended] = captured
        comm = current_communication.get()
        if comm is not None and comm.has_pipeline:
            self._sizes.is_fixed = True
            self._notes[FIXED_MICRO_BATCHES] = None
        self._sizes.end_step()
        self._repeat_unusual_steps()
        self.done = self._sizes.is_done and not self._rarer.continue_loop()

    @property
    def is_complete(self) -> bool:
        """Whether all steps ended without which the capture has no batch dimension."""
        return self._sizes.ended >= self._sizes.required

    def _repeat_unusual_steps(self) -> None:
        """Plan steps again that were to be recorded and made other calls than most steps."""
        sizes = self._sizes
        if not sizes.plan or sizes.ended != sizes.required:
            return
        self._select_typical_steps()
        if sizes.required > MAX_STEPS:
            return
        for step in [step for step in sizes.recorded if not self._history.is_typical(step)]:
            sizes.repeat(step)

    def _select_typical_steps(self) -> None:
        """Replace recorded steps that most steps differ from by typical ones of their size.

        Which calls are typical may only show in later steps.
        """
        sizes, history = self._sizes, self._history
        recorded = sizes.recorded
        typical_steps = [step for step in self._captures if history.is_typical(step)]
        for place, step in enumerate(recorded):
            others = [
                other
                for other in typical_steps
                if sizes.planned_size(other) == sizes.planned_size(step)
                and other not in recorded[:place]
            ]
            if step in typical_steps or not others:
                continue
            other = min(others, key=recorded.__contains__)
            recorded[:] = [step if later == other else later for later in recorded]
            recorded[place] = other

    def _build_result(self) -> Capture:
        if not self._captures:
            lines = [Diagnostic(line, severity="note") for line in self._known_values.unknown.lines]
            raise fail(self._no_step, hint=self._hint_of_missing_steps(), notes=lines)
        sizes = self._sizes
        self._select_typical_steps()
        # the loop may have ended before a step that was to be recorded again
        first = next(
            step for step in (*sizes.recorded[:1], *self._captures) if step in self._captures
        )
        captured = self._captures[first]
        if not self._history.is_typical(first):
            self._notes[UNUSUAL] = None
        if not sizes.plan:
            self._notes[NOT_CUT] = None
        elif not sizes.is_fixed:
            captured = self._with_batch(captured)
        captured, *rarer = map(self._loader_times.apply, (captured, *self._rarer.merged()))
        notes = dict.fromkeys(note for step in (captured, *rarer) for note in step.notes)
        graph = replace(captured.graph, rarer=tuple(step.graph for step in rarer))
        captured = replace(captured, graph=graph, notes=tuple(notes))
        self._notes |= dict.fromkeys(self._history.notes(self._rarer.included))
        for rows in sorted(sizes.unfit):
            self._notes[NOT_IN_PROPORTION.format(rows, sizes.batch)] = None
        return with_notes(captured, self._spec.source, tuple(self._notes))

    def _with_batch(self, captured: Capture) -> Capture:
        """Return a capture with sizes that depend on the batch, if steps of other sizes ended."""
        sizes = self._sizes
        if sizes.ended < sizes.required:
            self._notes[ENDED.format(sizes.ended, len(sizes.plan))] = None
            return captured
        repeat, *other_captures = (self._captures[step] for step in sizes.recorded[1:])
        batch_sizes = [sizes.plan[step] for step in sizes.recorded[2:]]
        capture_by_size = dict(zip(batch_sizes, other_captures, strict=True))
        return with_symbolic_batch(
            captured, sizes.batch, capture_by_size.__getitem__, batch_sizes, repeat.graph
        )

    def _hint_of_missing_steps(self) -> str:
        ended = self._sizes.ended
        return MORE_STEPS.format(ended) if ended else self._hint

    def _patched_loaders(self) -> Any:  # noqa: ANN401
        """Return a patch with which every loader of torch yields batches cut to size."""
        from torch.autograd.profiler import record_function
        from torch.utils.data import DataLoader

        owner, inner = self, DataLoader.__iter__

        def batches(loader: Torch) -> Iterator[Any]:
            with record_function(LOADER):  # the loader draws a seed
                iterator = inner(loader)
            owner._loader_times.add(iterator, loader)
            return owner.batches(iterator)

        return mock.patch.object(DataLoader, "__iter__", batches)

    def _variables(self, frame: FrameType | None) -> dict[str, Any]:
        """Return the variables, by name, of the functions from the block to the end of the step."""
        variables: dict[str, Any] = {}
        while frame is not None:
            for name, value in program_variables(frame).items():
                variables[name if name not in variables else f"{name}_{len(variables)}"] = value
            frame = None if frame is self._frame else frame.f_back
        return variables
