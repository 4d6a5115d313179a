"""What irgraph says that ops write, beside what they write when torch runs them."""

from __future__ import annotations

from irgraph.ir.effects import CONDITIONAL_WRITES
from tests.ir.calling import all_calls, chosen

ELSEWHERE = {
    "aten.cudnn_batch_norm", "aten.miopen_batch_norm", "aten.batch_norm_gather_stats",
    "aten.batch_norm_gather_stats_with_counts", "_c10d_functional.wait_tensor",
    "c10d_functional.wait_tensor",
}  # fmt: skip
"""Norms that run on a GPU alone, and waits for other processes."""


def test_torch_writes_what_is_said() -> None:
    found = list(all_calls())
    unsaid = [one for one in found if not set(one["changed"]) <= set(one["said"])]
    assert not unsaid
    ran = {one["name"] for one in found}
    assert ran >= CONDITIONAL_WRITES.keys() - ELSEWHERE
    assert len(ran) > len(chosen()) // 2, "most of the ops with buffers or flags can be run"
    for name in CONDITIONAL_WRITES.keys() - ELSEWHERE:
        governed = {argument for _, names in CONDITIONAL_WRITES[name] for argument in names}
        for one in (one for one in found if one["name"] == name):
            assert governed & set(one["changed"]) == governed & set(one["said"]), one
