"""Stages of pipelines: messages between ranks, and shapes without neighbouring ranks.

``torch.distributed.pipelining`` queries neighbouring stages for the shapes of activations before
the first step, unless each stage has examples of them (``input_args`` and ``output_args`` of
``PipelineStage``). A single process has no neighbours, so the examples are required.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from irgraph.capture.common.torch_object import Torch
from irgraph.diagnostics import fail

PIPELINING = "torch.distributed.pipelining"
MISSING_SHAPES = (
    "stage {} of the pipeline asks its neighbours for the shapes of activations: give its "
    "PipelineStage examples of a micro-batch, input_args=… and output_args=…"
)


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


def static_stages() -> Iterator[tuple[Torch, str, Torch]]:
    """Yield the patch with which a schedule starts without neighbours, if the program has one."""
    if f"{PIPELINING}.schedules" not in sys.modules:  # they take long to import
        return
    schedules: Torch = sys.modules[f"{PIPELINING}.schedules"]
    mode: Torch = getattr(sys.modules[f"{PIPELINING}.stage"], "InferenceMode", None)

    def begin(_: Torch, stages: Torch, has_backward: bool, *__: Torch) -> None:
        for stage in stages:
            if mode.needs_dynamic(stage._user_meta, has_backward):
                raise fail(MISSING_SHAPES.format(stage.stage_index))
            stage._inference_mode = mode.STATIC

    if mode is not None and hasattr(schedules._PipelineSchedule, "_warmup_p2p"):
        yield schedules._PipelineSchedule, "_warmup_p2p", begin
