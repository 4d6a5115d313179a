"""Captures unmodified training scripts: runs them until the required steps have ended."""

from __future__ import annotations

import contextlib
import functools
import gc
import runpy
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self
from unittest import mock

from msgspec.structs import replace

from irgraph.capture.common.result import Capture
from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.environment import Process
from irgraph.capture.live.build_graph import CaptureSpec, import_torch
from irgraph.capture.live.discover import model_of
from irgraph.capture.live.loop import Capturing
from irgraph.capture.live.target import load_target, split_target, user_error
from irgraph.diagnostics import IrgraphError, fail

NOT_SAVED = "torch.save was skipped: tensors on meta have no values to save"

OBSERVED_STEPS = 5
"""Number of steps after the recorded ones whose calls are compared with theirs."""

MAX_UPDATES = 10
"""Maximum number of updates by one optimizer with one batch, in a loop over a loader."""

MAX_BACKWARD = 100
"""Maximum number of backward passes before an update."""

BACKWARD_WITHOUT_OPTIMIZER = 3
"""Number of backward passes after which a program without an optimizer is refused."""

NO_UPDATE = "no optimizer made an update in {} backward passes"
AT_BACKWARD = (
    "for programs without an optimizer, --step-at backward ends steps with backward passes"
)


class StopProgramError(BaseException):
    """Raised to stop a program after the required steps; ``except Exception`` does not catch it."""


class UnmarkedLoop(Capturing):
    """A loop whose steps end without marks.

    A step ends when the loop requests the next batch of a ``DataLoader`` after an update by an
    optimizer with a batch of that loader. In a loop without a loader, it ends with each update by
    one optimizer: the first that makes a second update. With ``step_at``, steps can also end with
    each batch or backward pass.
    """

    _no_step = "no step was recorded: too few steps of the loop ended"
    _hint = (
        "say where steps end (--step-at batch: where the loop takes the next one), name a function "
        "that returns a step, as FILE.py:NAME, or mark the steps with irgraph.capturing()"
    )

    def __init__(self, spec: CaptureSpec, step_at: str, process: Process | None = None) -> None:
        super().__init__(spec, process, OBSERVED_STEPS)
        self._step_at = step_at
        self._updated = False
        self._batches = self._backward = 0
        self._updates: Counter[int] = Counter()
        self._step_optimizer: int | None = None
        self._iterations: set[object] = set()
        self._updated_iterations: set[object] = set()

    def __enter__(self) -> Self:
        """Register hooks of optimizers and of backward; on meta, skip ``torch.save``."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        super().__enter__()
        backward = functools.partial(self._note_backward, torch.autograd.backward)
        self._outer_context.enter_context(mock.patch.object(torch.autograd, "backward", backward))
        self._outer_context.callback(register_optimizer_step_post_hook(self._note_update).remove)
        if self._spec.device == "meta":
            self._outer_context.enter_context(mock.patch.object(torch, "save", self._skip_save))
        self._frame = sys._getframe(1)
        return self

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, and end the step of each batch."""
        iteration = object()
        for batch in super().batches(loader):
            self._batches += 1
            self._updates.clear()
            self._iterations.add(iteration)
            yield batch
            if self._step_at == "batch" or self._ends_step(iteration):
                self._finish_or_stop(self._variables(sys._getframe(1)))
        # what follows, such as an evaluation, belongs to the first step of the next epoch
        if self._ends_step(iteration):
            self._finish_or_stop(self._variables(sys._getframe(1)))

    def _ends_step(self, iteration: object) -> bool:
        """Return whether a step ends with the next request of an iteration over a loader.

        An evaluation after the update iterates another loader, which has no batch in the update.
        """
        is_updated = self._updated and self._step_optimizer is None
        return is_updated and iteration in self._updated_iterations

    def call_until_done(self, function: Callable[[], object]) -> None:
        """Call a function until enough steps, of its loop or its own calls, have ended.

        If the function returns a step instead of running one, the step is called.
        """
        makes_step = True
        while True:
            ended_before = self._sizes.ended
            self._updates.clear()
            self._backward = 0
            result = function()
            if makes_step and callable(result) and self._sizes.ended == ended_before:
                function, self._updated = result, False
                makes_step = False
                continue
            makes_step = False
            if self._sizes.ended == ended_before or (
                self._updated and self._step_optimizer is None
            ):
                self._finish_or_stop(function, result)
            elif self._step_optimizer is None:
                self._discard_step(function)

    def _discard_step(self, function: Callable[[], object]) -> None:
        """Discard the recording of a step that a loop started and did not end."""
        self._recording.close()
        self._step_recording = None
        self._begin(model_of(function))

    def _note_update(self, optimizer: Torch, *_: Torch) -> None:
        """Count an optimizer's update; without a loader, one optimizer's update ends a step."""
        if self._step_at != "update":
            return
        self._updated, self._backward = True, 0
        self._updated_iterations |= self._iterations
        self._updates[id(optimizer)] += 1
        if self._updates[id(optimizer)] > (MAX_UPDATES if self._batches else 1):
            self._step_optimizer = self._step_optimizer or id(optimizer)
        if self._step_optimizer == id(optimizer):
            self._finish_or_stop(self._variables(sys._getframe(1)))

    def _note_backward(
        self, backward: Callable[..., None], *arguments: Torch, **keywords: Torch
    ) -> None:
        """Run a backward pass, and count it."""
        backward(*arguments, **keywords)
        self._backward += 1
        if self._step_at == "backward":
            self._finish_or_stop(self._variables(sys._getframe(1)))
        elif self._step_at == "update" and (
            self._backward > MAX_BACKWARD
            or (self._backward == BACKWARD_WITHOUT_OPTIMIZER and not _has_optimizer())
        ):
            raise fail(NO_UPDATE.format(self._backward), hint=AT_BACKWARD)

    def _finish_or_stop(self, scope: object, result: object = None) -> None:
        """End a step; stop the program after the last required step."""
        self._updated = False
        self._iterations.clear()
        self._updated_iterations.clear()
        if self._finish_step(scope, result=result):
            raise StopProgramError

    def _skip_save(self, *_: Torch, **__: Torch) -> None:
        self._notes[NOT_SAVED] = None


def _has_optimizer() -> bool:
    """Return whether the program has created an optimizer."""
    import torch

    return any(issubclass(type(instance), torch.optim.Optimizer) for instance in gc.get_objects())


def capture_program(
    target: str,
    arguments: Sequence[str],
    settings: CaptureSpec,
    *,
    step_at: str = "update",
    process: Process | None = None,
) -> Capture:
    """Run a training script, or a function without arguments, and capture a step of its loop.

    Args:
        target: ``FILE.py``, or ``FILE.py:NAME`` with literal options.
        arguments: the script's arguments, as in ``sys.argv``.
        settings: properties of the capture, without name and source.
        step_at: event that ends steps: ``update``, ``batch`` or ``backward``.
        process: the captured process of a distributed program.

    Raises:
        IrgraphError: the program raised, or ran no steps.
    """
    import_torch()
    path, call = split_target(target)
    name = "_".join(filter(None, (Path(path).stem, call.partition("(")[0])))
    loop = UnmarkedLoop(replace(settings, name=name, source=path), step_at, process)
    with loop, _script_environment(path, arguments):
        try:
            _run(loop, target, path, call)
        except StopProgramError:
            pass  # the rest of the program is not run
        except IrgraphError:
            raise
        except (Exception, SystemExit) as error:
            # batches of other sizes may not fit the program's state in the steps after them
            if not loop.is_complete and (not isinstance(error, SystemExit) or error.code):
                raise user_error("the program failed", error, path) from error
    assert loop.result is not None
    return loop.result


def _run(loop: UnmarkedLoop, target: str, path: str, call: str) -> None:
    if not call:
        runpy.run_path(path, run_name="__main__")
        return
    function = load_target(target)
    loop.call_until_done(functools.partial(function.make, **function.options))


@contextlib.contextmanager
def _script_environment(path: str, arguments: Sequence[str]) -> Iterator[None]:
    """Set ``sys.argv`` to a script's arguments, and add its folder to ``sys.path``."""
    folder = str(Path(path).resolve().parent)
    with (
        mock.patch.object(sys, "argv", [path, *arguments]),
        mock.patch.object(sys, "path", [folder, *sys.path]),
    ):
        yield
