"""Steps of a loop that is there already: marked at their ends, at several batch sizes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import FrameType, TracebackType
from typing import Any, Self
from unittest import mock

from msgspec.structs import replace

from irgraph.capture.common.result import Capture
from irgraph.capture.common.symbolic import other_sizes, with_symbolic_batch
from irgraph.capture.emulate.fallbacks import Torch
from irgraph.capture.emulate.known import Known
from irgraph.capture.emulate.patches import StandIn, standing_in
from irgraph.capture.live import recorder
from irgraph.capture.live.batches import cut_to, length_of
from irgraph.capture.live.discover import model_of
from irgraph.capture.live.marks import LOADER
from irgraph.capture.live.returned import kept_tensors
from irgraph.capture.live.steady import steady
from irgraph.capture.live.taken import (
    Taken,
    Words,
    import_torch,
    lowered,
    recorded,
    with_notes,
)
from irgraph.capture.live.target import hint_of
from irgraph.capture.live.vmap import without_vmap
from irgraph.capture.live.warned import warnings_as_notes
from irgraph.diagnostics import fail

NO_STEP = "no step of the loop was recorded: the second one, after one to warm up, did not end"
STEP = "call capture.step() at the end of each step, within the loop"
NOT_CUT = (
    "no batch dimension: the loop's batches come from no DataLoader of torch; "
    "take them from capture.batches(…)"
)
ENDED = "no batch dimension: the loop ended after {} steps, and {} are needed"


def capturing(
    *, name: str = "step", device: str = "meta", pinned: bool = False, per_step: int = 1
) -> Capturing:
    """Return a context in which a loop that is there already is captured.

    The loop calls ``step()`` at the end of each of its steps. The first one warms up, the next is
    recorded, then two at other batch sizes and one more at the first: batches of a ``DataLoader``
    of torch, and those of ``batches``, are cut to size within the block, and end when no more steps
    are needed. Make the model and the optimizer within the block too.

    Args:
        name: the graph's name.
        device: where the step's tensors lie; ``meta`` stands for the accelerator, also where the
            program names ``cuda``.
        pinned: whether host tensors lie in pinned memory although the program does not pin them.
        per_step: batches that each step takes, where gradients are accumulated.

    Raises:
        IrgraphError: torch is missing; no step was recorded, which is said at the block's end.
    """
    import_torch()
    return Capturing(Words(name, device, {}, "", pinned), per_step)


class Capturing:
    """A loop that is being captured; ``capturing`` makes it.

    Attributes:
        result: the capture, once the block has ended.
        done: whether all steps that are needed were recorded.
    """

    def __init__(self, words: Words, per_step: int) -> None:
        self.result: Capture | None = None
        self.done = False
        self._words, self._per_step = words, per_step
        self._around, self._recording = contextlib.ExitStack(), contextlib.ExitStack()
        self._notes: dict[str, None] = {}
        self._captures: list[tuple[int, Capture]] = []
        self._sizes: list[int] = []
        self._given = self._ended = 0
        self._taken: Taken | None = None
        self._frame: FrameType | None = None
        self._stand_in = StandIn()

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
                batch = batch if cut else self._sized(batch)
            yield batch

    def step(self, model: Torch = None) -> bool:
        """End a step; return whether no more are needed.

        Args:
            model: names parameters and modules; without it the modules that the loop's variables
                reach do.
        """
        if self.done:
            return True
        variables = self._variables(sys._getframe(1))
        model = model if model is not None else model_of(variables)
        self._end(variables, model)
        self._ended += 1
        self.done = self._ended >= max(2, len(self._sizes))
        enter = self._recording.enter_context
        if self.done:
            enter(recorder.dispatch_mode(None, {}, Known()))  # for what the loop does at its end
        else:
            self._taken = enter(recorded(self._words, model, Known()))
        return self.done

    def callback(self) -> Torch:
        """Return a callback for the ``Trainer`` of transformers, which ends the steps."""
        owner, base = self, import_module("transformers").TrainerCallback

        class Stepping(base):  # type: ignore[misc,valid-type]
            """Ends a step of the capture with each step of the trainer."""

            def on_train_begin(self, args: Torch, *_: Torch, **__: Torch) -> None:
                owner._per_step = args.gradient_accumulation_steps

            def on_step_end(self, _: Torch, state: Torch, control: Torch, **given: Torch) -> None:
                control.should_training_stop = owner.step(given["model"])

        return Stepping()

    def __enter__(self) -> Self:
        """Let the device stand for an accelerator, and repair what it cannot run."""
        enter = self._around.enter_context
        enter(warnings_as_notes(self._notes))
        self._stand_in = enter(standing_in(self._words.device))
        enter(self._loaders())
        enter(without_vmap())
        self._recording.enter_context(recorder.dispatch_mode(None, {}, Known()))
        self._frame = sys._getframe(1)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """Make the model of the steps, unless the loop raised."""
        self._recording.__exit__(kind, error, at)
        self._around.__exit__(kind, error, at)
        self._frame = None
        self._notes |= self._stand_in.notes
        hint = hint_of(error) if error is not None else ""
        if hint and error is not None:
            error.add_note(f"irgraph: {hint}")
        if error is None:
            self.result = self._captured()

    def _end(self, variables: Mapping[str, Any], model: Torch) -> None:
        """Stop recording and keep the step's model."""
        self._recording.close()
        if self._taken is not None:
            self._taken.recording.note_results((), kept_tensors(variables, model))
            size = self._sizes[self._ended] if self._sizes else 0
            self._captures.append((size, lowered(self._taken, self._words, model, variables)))

    def _captured(self) -> Capture:
        if not self._captures:
            raise fail(NO_STEP, hint=STEP)
        batch, found = self._captures[0]
        if not batch:
            self._notes[NOT_CUT] = None
        elif not self.done:
            self._notes[ENDED.format(self._ended, len(self._sizes))] = None
        else:
            again = self._captures[-1][1].graph
            held = {
                size: replace(other, graph=steady(other.graph, found.graph, again))
                for size, other in self._captures[1:-1]
            }
            found = with_symbolic_batch(found, batch, held.__getitem__, list(held))
        return with_notes(found, "", tuple(self._notes))

    def _sized(self, batch: object) -> object:
        """Return a batch of the size that its step is captured at."""
        if not self._sizes:
            size = length_of(batch)
            self._sizes = [size, size, *other_sizes(size), size] if size else []
        step, self._given = self._given // self._per_step, self._given + 1
        return cut_to(batch, self._sizes[min(step, len(self._sizes) - 1)]) if self._sizes else batch

    def _loaders(self) -> Any:  # noqa: ANN401
        """Let every loader of torch give batches cut to size."""
        from torch.utils.data import DataLoader

        owner, inner = self, DataLoader.__iter__

        def batches(loader: Torch) -> Iterator[Any]:
            return owner.batches(inner(loader))

        return mock.patch.object(DataLoader, "__iter__", batches)

    def _variables(self, frame: FrameType | None) -> dict[str, Any]:
        """Return what the functions between the block and the end of the step hold, by name."""
        found: dict[str, Any] = {}
        while frame is not None:
            for name, value in frame.f_locals.items():
                found[name if name not in found else f"{name}_{len(found)}"] = value
            frame = None if frame is self._frame else frame.f_back
        return found
