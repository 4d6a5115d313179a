"""``bucket``: sums over ranks become fewer, and nothing else changes its meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from irgraph.api import rewrite
from irgraph.capture.live import capture_file
from irgraph.execute import compare
from irgraph.ir.graph import Graph
from irgraph.ops.verify import verify
from irgraph.predict.prediction import predict
from irgraph.text import parse
from irgraph.verbs.bucket import bucket, buckets, check_bucket
from irgraph.verbs.refusal import RefusedError

START = """model "m" {{ format = 2  ranks = 8 }}

device @gpu0 "v100"
stream comm @gpu0
input %a : f32[8] in $a
input %b : f32[8] in $b
input %c : bf16[8] in $c
input %d : bf16[8] in $d

{}
return %a, %b, %c, %d
"""
LAST = ', process_group = "world", reduce_op = "sum", sparse_indices = none)'


def bucketed(text: str, limit: str = "25MiB") -> tuple[Graph, list[list[str]]]:
    """Return what the pass makes, which must compute the same, and the names in each sum."""
    lines = text.replace("sum %", "c10d.allreduce_([%").replace(" !", f"!]{LAST}")
    before = parse(START.format(lines))
    after = rewrite(before, f"bucket-allreduce(limit = {limit})").graph
    assert verify(after) == []
    result = compare(before, after)
    assert result.same, str(result)
    sums = [op for op in after.leaves() if op.name.startswith("c10d.allreduce")]
    return after, [[t.name for t in op.inputs] for op in sums]


def test_as_functions() -> None:
    graph = parse(START.format(f"c10d.allreduce_([%a!]{LAST}\n%y = aten.neg(%a) : f32[8] in $y"))
    first, other = graph.ops
    check_bucket(first)
    with pytest.raises(RefusedError, match=r"aten\.neg is not an in-place sum over ranks"):
        check_bucket(other)
    (one,) = buckets(graph, [first], 64)
    assert (one.members, one.later) == ((first,), ())
    after, (made,) = bucket(graph, [one])
    assert after.ops[0] is made and made.name == "c10d.allreduce_coalesced_"


def test_sums_of_one_type_go_together() -> None:
    text = "sum %a !\nsum %c !\nsum %b !\nsum %d !"
    assert bucketed(text)[1] == [["a", "b"], ["c", "d"]]


@pytest.mark.parametrize(("limit", "sums"), [("64B", [["a", "b"]]), ("63B", [["a"], ["b"]])])
def test_a_bucket_holds_no_more_than_its_limit(limit: str, sums: list[list[str]]) -> None:
    assert bucketed("sum %a !\nsum %b !", limit)[1] == sums


def test_what_uses_a_sum_comes_after_the_bucket() -> None:
    after, sums = bucketed(
        "sum %a !\n%y = aten.neg(%a) : f32[8] in $y\naten.mul_(%y!, 2)\nsum %b !\n"
        "aten.add_(%a!, %y)"
    )
    assert sums == [["a", "b"]]
    names = [op.name for op in after.ops]
    assert names == ["c10d.allreduce_coalesced_", "aten.neg", "aten.mul_", "aten.add_"]


@pytest.mark.parametrize(
    "between",
    [
        "aten.add_(%b!, %a)",
        "%y = aten.neg(%a) : f32[8] in $y\naten.add_(%b!, %y)",
        "sync.device()",
        "%i = aten.select(%a, 0, 0) : f32[] in $a\naten.item(%i)",
        "sum %a !",
    ],
)
def test_a_bucket_ends_where_a_sum_is_used_or_waited_for_before_the_next(between: str) -> None:
    _, sums = bucketed(f"sum %a !\n{between}\nsum %b !")
    assert sums[0] == ["a"]


def test_what_two_buckets_would_both_put_off_ends_one() -> None:
    text = "sum %a !\nsum %c !\n%y = aten.add(%a, %c) : f32[8] in $y\nsum %b !\nsum %d !"
    _, sums = bucketed(text)
    assert sorted(map(len, sums)) == [1, 1, 2]


def test_a_host_s_wait_for_an_event_ends_a_bucket() -> None:
    text = "sum %a !\n%e = sync.record() : u8[] @cpu in $e\nsync.event(%e)\nsum %b !"
    assert bucketed(text)[1] == [["a"], ["b"]]


PROGRAM = """
import torch
import torch.distributed as dist
from torch import nn

def train(batch, device, kind="plain"):
    dist.init_process_group("nccl")
    model = nn.Sequential(*(nn.Linear(16, 16) for _ in range(3))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, works = torch.rand(batch, 16), []

    def hook(parameter):
        works.append(dist.all_reduce(parameter.grad, op=dist.ReduceOp.AVG, async_op=True))

    for parameter in model.parameters() if kind == "hooks" else ():
        parameter.register_post_accumulate_grad_hook(hook)

    def step():
        optimizer.zero_grad()
        loss = model(x.to(device)).square().mean()
        loss.backward()
        for parameter in model.parameters() if kind != "hooks" else ():
            work = dist.all_reduce(parameter.grad, async_op=kind == "waiting")
            if work:
                work.wait()
            parameter.grad.div_(dist.get_world_size())
        for work in works:
            work.wait()
        works.clear()
        optimizer.step()
        return loss.detach()

    return step
"""


@pytest.mark.parametrize("kind", ["plain", "waiting", "hooks"])
def test_a_program_that_sums_each_gradient_by_itself(kind: str, tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    before = capture_file(f'{file}:train(kind="{kind}")', batch=8, ranks=8).graph
    after = rewrite(before, "bucket-allreduce(limit = 2KiB)").graph
    assert verify(after) == []
    sums = [[op for op in g.leaves() if op.name.startswith("c10d")] for g in (before, after)]
    assert (len(sums[0]), len(sums[1])) == (6, 3)
    result = compare(before, after)
    assert result.same, str(result)
    times = [predict(graph, device="v100").step_time for graph in (before, after)]
    assert times[1] < times[0]
