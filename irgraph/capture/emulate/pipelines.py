"""Stages of pipelines: messages between ranks, and shapes that neighbouring ranks send.

``torch.distributed.pipelining`` queries neighbouring stages for the shapes of activations before
the first step, unless each stage has examples of them (``input_args`` and ``output_args`` of
``PipelineStage``). A single process has no neighbours. ``irgraph.capture.live.neighbours`` runs
the program as the ranks of earlier stages for their shapes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from irgraph.capture.common.torch_object import Torch
from irgraph.capture.emulate.communication import Communication
from irgraph.diagnostics import IrgraphError, fail

PIPELINING = "torch.distributed.pipelining"
MISSING_SHAPES = (
    "stage {} of the pipeline asks its neighbours for the shapes of activations: give its "
    "PipelineStage examples of a micro-batch, input_args=… and output_args=…"
)
RUN_AS_FILE = "or capture it as a file with --ranks: other ranks are then run for their shapes"
SENDS_DTENSORS = (
    "stage {} of the pipeline sends DTensors, and the layout of their gradients is unknown"
)
GIVE_GRADIENTS = "give its PipelineStage output_grads=…, or send local tensors (to_local())"


class StageSentError(BaseException):
    """Raised when a neighbouring rank has sent the awaited shapes; programs do not catch it."""


class MissingStageError(BaseException):
    """Raised if a stage needs the shapes that an earlier one sends; programs do not catch it.

    Attributes:
        refusal: the error if they cannot be found out.
        ranks: the ranks of all earlier stages, in order.
    """

    def __init__(self, refusal: IrgraphError, ranks: Sequence[int]) -> None:
        super().__init__(str(refusal))
        self.refusal, self.ranks = refusal, ranks


@dataclass
class StageShapes:
    """Shapes that the stages of a pipeline send to later ones.

    Attributes:
        size: batch size for which a step is built, 0 in a loop.
        by_stage: torch's description of the tensors sent, by batch size and stage.
        awaited: stage after whose message the run of a neighbouring rank ends.
    """

    size: int = 0
    by_stage: dict[tuple[int, int], Torch] = field(default_factory=dict)
    awaited: int | None = None

    def send(self, stage: Torch, message: Torch) -> None:
        """Store the shapes that a stage sends, and end the run if they are awaited."""
        if not hasattr(message, "forward_metas"):
            return  # of gradients, for an earlier stage
        self.by_stage[self.size, stage.stage_index] = message
        if self.awaited == stage.stage_index:
            raise StageSentError

    def receive(self, stage: Torch, source: int) -> Torch:
        """Return the shapes that a stage receives from its neighbour ``source``."""
        if source > stage.stage_index:
            return _gradient_shapes(stage)
        message = self.by_stage.get((self.size, source))
        if message is None:
            ranks = [stage._resolve_peer_global_rank(i) for i in range(stage.stage_index)]
            raise MissingStageError(_refusal(stage), ranks)
        return message


stage_shapes: ContextVar[StageShapes | None] = ContextVar("stage_shapes", default=None)
"""The shapes of the current capture, if its program can be run as other ranks."""


def _refusal(stage: Torch) -> IrgraphError:
    return fail(MISSING_SHAPES.format(stage.stage_index), hint=RUN_AS_FILE)


def _gradient_shapes(stage: Torch) -> Torch:
    """Return the shapes of a stage's gradients, which are the shapes of its outputs."""
    utilities = sys.modules[f"{PIPELINING}._utils"]
    outputs = stage._stage_meta.outputs
    gradients = utilities._derive_grad_metas(outputs)
    pairs = zip(outputs, gradients, strict=True)
    if any(output.requires_grad and not gradient for output, gradient in pairs):
        raise fail(SENDS_DTENSORS.format(stage.stage_index), hint=GIVE_GRADIENTS)
    return utilities._StageBackwardMeta(backward_metas=gradients)


def call_in_sequence(operations: Torch) -> Torch:
    """Return the works of a batch of ``isend`` and ``irecv``, called in sequence.

    Each has a separate stream, to or from its rank, so their order makes no difference.
    """
    works = []
    for operation in operations:
        peer_argument = "group_dst" if operation.op.__name__ == "isend" else "group_src"
        works.append(
            operation.op(
                operation.tensor,
                group=operation.group,
                tag=operation.tag,
                **{peer_argument: operation.group_peer},
            )
        )
    return works


def stage_patches(comm: Communication) -> Iterator[tuple[Torch, str, Torch]]:
    """Yield patches with which a schedule starts without neighbours, if the program has one."""
    if f"{PIPELINING}.schedules" not in sys.modules:  # they take long to import
        return
    schedules: Torch = sys.modules[f"{PIPELINING}.schedules"]
    stage_module: Torch = sys.modules[f"{PIPELINING}.stage"]
    mode: Torch = getattr(stage_module, "InferenceMode", None)
    if mode is None or not hasattr(schedules._PipelineSchedule, "_warmup_p2p"):
        return

    def choose_mode(_: Torch, stages: Torch, has_backward: bool, *__: Torch) -> None:
        comm.has_pipeline = True
        needs_dynamic = [mode.needs_dynamic(s._user_meta, has_backward) for s in stages]
        for stage in stages:
            stage._inference_mode = mode.DYNAMIC if any(needs_dynamic) else mode.STATIC

    def send(stage: Torch, message: Torch, _: int) -> None:
        _shapes_for(stage).send(stage, message)

    def receive(stage: Torch, source: int) -> Torch:
        return _shapes_for(stage).receive(stage, source)

    yield schedules._PipelineSchedule, "_warmup_p2p", choose_mode
    yield stage_module.PipelineStage, "_send_meta", send
    yield stage_module.PipelineStage, "_recv_meta", receive


def _shapes_for(stage: Torch) -> StageShapes:
    shapes = stage_shapes.get()
    if shapes is None:
        raise _refusal(stage)
    return shapes
