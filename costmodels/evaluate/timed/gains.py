"""Pairs of timed steps that differ by one change, and the pass that makes the change, if any."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from costmodels.evaluate.timed.steps import Step

ABSENT = object()
"""Value of an option that is not given."""


class Change(Struct, frozen=True):
    """A change of a step: its options before and after, and the pass that makes it, if any.

    ``made_by`` may also be a statement of the language.
    """

    name: str
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    made_by: str = ""


CHANGES = (
    Change("mixed precision (autocast, f16)", {"kind": "f32"}, {"kind": "f16"}),
    Change("mixed precision (autocast, bf16)", {"kind": "f32", "tf32": False},
           {"kind": ABSENT, "tf32": False}),
    Change("TF32 for f32 products", {"tf32": False}, {"tf32": True}),
    Change("channels last", {"last": False}, {"last": True}),
    Change("channels last, inference", {"last": ABSENT, "program": "see"},
           {"last": True, "program": "see"}),
    Change("attention in one call", {"eager": True}, {"eager": ABSENT}, "fuse-attention"),
    Change("updates of a loop, foreach", {"update": "sgd_loop"}, {"update": ABSENT},
           "fuse-optimizer"),
    Change("updates of a loop, foreach", {"update": "loop", "program": "gpt"},
           {"update": ABSENT, "program": "gpt"}, "fuse-optimizer"),
    Change("updates of a loop, fused", {"update": "loop"}, {"update": "fused"}, "fuse-adam"),
    Change("no dropout", {"dropout": 0.1}, {"dropout": ABSENT}, "drop-dropout"),
    Change("blocks computed again", {"keep": ABSENT, "program": "gpt"},
           {"keep": False, "program": "gpt"}),
    Change("sparse gradients of tables", {"sparse": ABSENT, "program": "dlrm"},
           {"sparse": True, "program": "dlrm"}),
    Change("CUDA graph", {"how": ""}, {"how": "graph"}, "cuda-graph"),
    Change("torch.compile", {"how": ""}, {"how": "compile"}, "compile"),
    Change("vocabulary of 50,304 instead of 50,257", {"words": ABSENT, "program": "gpt"},
           {"words": 50304, "program": "gpt"}),
)  # fmt: skip


class StepPair(Struct, frozen=True):
    """Two timed steps, before and after a change."""

    change: Change
    before: Step
    after: Step

    @property
    def gain(self) -> float:
        """Speed of the step after the change, relative to the step before."""
        return self.before.time / self.after.time


def pairs(steps: Sequence[Step]) -> Iterator[StepPair]:
    """Yield the pairs among timed steps, by change."""
    step_by_key = {_key(_fields(step)): step for step in steps}
    for change in CHANGES:
        for step in filter(partial(_is_before, change), steps):
            fields_after = {
                k: v for k, v in {**_fields(step), **change.after}.items() if v is not ABSENT
            }
            after = step_by_key.get(_key(fields_after))
            if after is not None:
                yield StepPair(change, step, after)


def _is_before(change: Change, step: Step) -> bool:
    fields = _fields(step)
    return all(fields.get(key, ABSENT) == value for key, value in change.before.items())


def _fields(step: Step) -> dict[str, Any]:
    step_fields = {key: getattr(step, key) for key in ("program", "batch", "how", "tf32", "bench")}
    return {**step_fields, **step.options}


def _key(fields: Mapping[str, Any]) -> str:
    return json.dumps(fields, sort_keys=True)
