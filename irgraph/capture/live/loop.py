"""Steps of a loop that is there already: marked at their ends, at several batch sizes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any, Self
from unittest import mock

from irgraph.capture.common.result import Capture
from irgraph.capture.common.symbolic import with_symbolic_batch
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.environment import Process, process_of
from irgraph.capture.emulate.known_values import KnownValues
from irgraph.capture.emulate.patches import CudaEmulation, emulate_cuda
from irgraph.capture.live import recorder
from irgraph.capture.live.batches import Sizes
from irgraph.capture.live.build_graph import (
    CaptureSpec,
    StepRecording,
    import_torch,
    lowered,
    recorded,
    with_notes,
)
from irgraph.capture.live.discover import model_of
from irgraph.capture.live.marks import LOADER
from irgraph.capture.live.step_outputs import reachable_tensors, returned_tensors
from irgraph.capture.live.target import hint_of
from irgraph.capture.live.torch_warnings import warnings_as_notes
from irgraph.capture.live.vmap import without_vmap
from irgraph.diagnostics import fail

NO_STEP = "no step of the loop was recorded: the second step, after one to warm up, did not end"
STEP = "call capture.step() at the end of each step, within the loop"
NOT_CUT = (
    "no batch dimension: no DataLoader of torch gave the second step a batch; "
    "take batches from capture.batches(…), within the steps"
)
NOT_IN_PROPORTION = "batches of {} rows keep their size: not in proportion to those of {}"
ENDED = "no batch dimension: the loop ended after {} steps, and {} are needed"


AROUND = frozenset(("irgraph", "torch", "runpy", "importlib", "contextlib"))
"""Packages whose functions stand between a program's."""


def of_program(frame: FrameType) -> dict[str, Any]:
    """Return the variables that a frame of a program's, or of a library of its, has and names."""
    known = frame.f_globals
    if str(known.get("__name__")).partition(".")[0] in AROUND:
        return {}
    named = {name: known[name] for name in frame.f_code.co_names if name in known}
    return {**frame.f_locals, **named}


def capturing(
    *,
    name: str = "step",
    device: str = "meta",
    pinned: bool = False,
    ranks: int | str | None = None,
    rank: int = 0,
) -> Capturing:
    """Return a context in which a loop that is there already is captured.

    The loop calls ``step()`` at the end of each of its steps. The first one warms up, the next is
    recorded, then two at other batch sizes and one more at the first: batches of every
    ``DataLoader`` of torch, and those of ``batches``, are cut in proportion within the block, and
    end when no more steps are needed. Make the model and the optimizer within the block too.

    Args:
        name: the graph's name.
        device: where the step's tensors lie; ``meta`` stands for the accelerator, also where the
            program names ``cuda``.
        pinned: whether host tensors lie in pinned memory although the program does not pin them.
        ranks: how many ranks the program has, as ``8`` or ``2x8`` (machines x ranks on each), where
            the program reads that from its environment, as under ``torchrun``; on meta.
        rank: which of them is captured.

    Raises:
        IrgraphError: torch is missing; no step was recorded, which is said at the block's end.
    """
    import_torch()
    return Capturing(CaptureSpec(name, device, {}, "", pinned), process_of(ranks, rank))


class Capturing:
    """A loop that is being captured; ``capturing`` makes it.

    Attributes:
        result: the capture, once the block has ended.
        done: whether all steps that are needed were recorded.
    """

    _no_step, _hint = NO_STEP, STEP

    def __init__(self, words: CaptureSpec, process: Process | None = None) -> None:
        self.result: Capture | None = None
        self.done = False
        self._words, self._sizes, self._process = words, Sizes(), process
        self._around, self._recording = contextlib.ExitStack(), contextlib.ExitStack()
        self._notes: dict[str, None] = {}
        self._captures: list[Capture] = []
        self._taken: StepRecording | None = None
        self._known = KnownValues()
        self._frame: FrameType | None = None
        self._stand_in = CudaEmulation()

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, cut or repeated, until no more steps are needed.

        Tensors and lists that are as long as the first tensor along their first axis are cut.
        """
        import torch

        cut = isinstance(loader, torch.utils.data.DataLoader)  # cuts them itself
        batches = iter(loader)
        while not self.done:
            with torch.autograd.profiler.record_function(LOADER):
                batch = next(batches, self)
                if batch is self:
                    return
                batch = batch if cut else self._sizes.sized(loader, batch)
            yield batch

    def step(self, model: Torch = None) -> bool:
        """End a step; return whether no more are needed.

        Args:
            model: names parameters and modules; without it the modules that the loop's variables
                reach do.
        """
        return self.done or self._ended(self._variables(sys._getframe(1)), model)

    def _ended(self, held: object, model: Torch = None, made: object = None) -> bool:
        """End a step; return whether no more are needed.

        ``held`` are the loop's variables, or the function that made the step and returned ``made``.
        """
        model = model if model is not None else model_of(held)
        self._end(held, model, made)
        self._begin(model)
        return self.done

    def _begin(self, model: Torch) -> None:
        """Record the next step, if it is one of those to be recorded."""
        enter = self._recording.enter_context
        if not self.done and self._sizes.ended in self._sizes.recorded:
            self._taken = enter(recorded(self._words, model, self._known))
        else:
            enter(recorder.dispatch_mode(None, {}, self._known))

    def callback(self) -> Torch:
        """Return a callback for the ``Trainer`` of transformers, which ends the steps."""
        owner, base = self, import_module("transformers").TrainerCallback

        class Stepping(base):  # type: ignore[misc,valid-type]
            """Ends a step of the capture with each step of the trainer."""

            def on_step_end(self, _: Torch, state: Torch, control: Torch, **given: Torch) -> None:
                control.should_training_stop = owner.step(given["model"])

        return Stepping()

    def __enter__(self) -> Self:
        """Let the device stand for an accelerator, and repair what it cannot run."""
        with contextlib.ExitStack() as around:
            around.enter_context(warnings_as_notes(self._notes))
            self._stand_in = around.enter_context(emulate_cuda(self._words.device, self._process))
            around.enter_context(self._loaders())
            around.enter_context(without_vmap())
            around.enter_context(self._recording)  # ended first, and the rest even where that fails
            self._recording.enter_context(recorder.dispatch_mode(None, {}, self._known))
            self._around = around.pop_all()
        self._frame = sys._getframe(1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Make the model of the steps, unless the loop raised."""
        self._around.__exit__(kind, error, at)
        self._frame = None
        self._notes |= self._stand_in.notes
        hint = hint_of(error) if error is not None else ""
        if hint and error is not None:
            error.add_note(f"irgraph: {hint}")
        if error is None:
            self.result = self._captured()

    def _end(self, held: object, model: Torch, made: object) -> None:
        """Stop recording and keep the step's model."""
        self._recording.close()
        taken, self._taken = self._taken, None
        if taken is not None:
            taken.recording.note_results(returned_tensors(made), reachable_tensors(held, model))
            self._captures.append(lowered(taken, self._words, model, held))
        self.done = self._sizes.end_step()

    def _captured(self) -> Capture:
        if not self._captures:
            raise fail(self._no_step, hint=self._hint)
        found, *others = self._captures
        sizes = self._sizes
        if not sizes.plan:
            self._notes[NOT_CUT] = None
        elif not self.done:
            self._notes[ENDED.format(sizes.ended, len(sizes.plan))] = None
        else:
            at = [sizes.plan[step] for step in sizes.recorded[1:]]
            held = dict(zip(at, others, strict=True))
            found = with_symbolic_batch(found, sizes.batch, held.__getitem__, at)
        for rows in sorted(sizes.unfit):
            self._notes[NOT_IN_PROPORTION.format(rows, sizes.batch)] = None
        return with_notes(found, self._words.source, tuple(self._notes))

    def _loaders(self) -> Any:  # noqa: ANN401
        """Let every loader of torch give batches cut to size."""
        from torch.autograd.profiler import record_function
        from torch.utils.data import DataLoader

        owner, inner = self, DataLoader.__iter__

        def batches(loader: Torch) -> Iterator[Any]:
            with record_function(LOADER):  # it draws a seed
                found = inner(loader)
            return owner.batches(found)

        return mock.patch.object(DataLoader, "__iter__", batches)

    def _variables(self, frame: FrameType | None) -> dict[str, Any]:
        """Return what the functions between the block and the end of the step hold, by name."""
        found: dict[str, Any] = {}
        while frame is not None:
            for name, value in of_program(frame).items():
                found[name if name not in found else f"{name}_{len(found)}"] = value
            frame = None if frame is self._frame else frame.f_back
        return found
