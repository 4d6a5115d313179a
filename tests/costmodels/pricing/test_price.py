"""Pricing graphs: once, at the outermost op that a family knows; nothing silently free."""

from __future__ import annotations

import pytest

from costmodels.devices.library import load_device
from costmodels.learned.predictors import predictors
from costmodels.pricing.price import price
from irgraph.diagnostics import IrgraphError
from irgraph.ir.cost import Priced
from irgraph.ir.graph import Graph
from irgraph.text import parse

HEADER = """model "m" { format = 1  dims = {B = 64} }

device @gpu0 "v100"
input %h : f32[B, 32] @cpu in $b0
input %x : f32[B, 32] in $b1
param %w "w" : f32[16, 32] in $b2
param %c "c" : f32[16] in $b3

"""


def _graph(body: str) -> Graph:
    return parse(HEADER + body)


def _price(body: str, **options: object) -> Priced:
    return price(_graph(body), load_device("v100"), **options)  # type: ignore[arg-type]


LINEAR = """%y = aten.linear(%x, %w, %c) : f32[B, 16] in $b4 {
  %t = aten.t(%w) : f32[32, 16; 1, 32] in $b2
  %y = aten.addmm(%c, %x, %t) : f32[B, 16] in $b4
}
"""


def test_a_call_is_priced_once_at_the_outermost_op_that_is_known() -> None:
    priced = _price(LINEAR)
    (linear,) = priced.graph.ops
    assert [k.family for k in priced.kernels[linear]] == ["gemm"]
    assert all(child not in priced.kernels for child in linear.body)
    assert priced.unknown == ()


def test_scopes_are_priced_by_what_they_call() -> None:
    priced = _price(
        "autograd.ReluBackward0(%x) on backward phase backward {\n"
        "  %g = aten.threshold_backward(%x, %x, threshold = 0) : f32[B, 32] in $b9\n}\n"
    )
    (scope,) = priced.graph.ops
    assert scope not in priced.kernels
    assert len(priced.of(scope)) == 1


def test_views_launch_nothing_and_are_not_unknown() -> None:
    priced = _price("%v = aten.my_view(%x) : f32[32, B; 1, 32] in $b1\n")
    assert priced.kernels[priced.graph.ops[0]] == ()
    assert priced.unknown == ()


def test_an_op_that_nobody_knows_is_listed_and_gets_a_floor() -> None:
    priced = _price("%y = mylib.magic(%x) : f32[B, 32] in $b9\n")
    assert [op.name for op in priced.unknown] == ["mylib.magic"]
    (kernel,) = priced.of(priced.graph.ops[0])
    assert (kernel.by, kernel.outside, kernel.spread) == ("none", True, kernel.time)
    assert kernel.time > 0


def test_an_op_that_its_family_cannot_price_is_listed() -> None:
    priced = _price("%y = aten.mm(%c, %c) : f32[1] in $b9\n")
    assert [op.name for op in priced.unknown] == ["aten.mm"]


def test_work_on_the_host_is_not_the_devices() -> None:
    priced = _price("%y = aten.mul(%h, %h) : f32[B, 32] @cpu in $b9\n")
    assert priced.kernels[priced.graph.ops[0]] == ()


def test_an_autograd_node_that_handed_on_its_gradient_is_free_and_one_that_computes_is_not() -> (
    None
):
    priced = _price(
        "autograd.AccumulateGrad(%x) on backward phase backward\n"
        "autograd.MyFunctionBackward(%x) on backward phase backward\n"
    )
    assert [op.name for op in priced.unknown] == ["autograd.MyFunctionBackward"]


def test_labels_around_nothing_are_free() -> None:
    priced = _price('"Optimizer.zero_grad#SGD.zero_grad"() phase optimizer\n')
    assert priced.unknown == ()


def test_equal_calls_share_their_kernels() -> None:
    priced = _price(
        "%a = aten.relu(%x) : f32[B, 32] in $b7\n%b = aten.relu(%x) : f32[B, 32] in $b8\n"
        "%d = aten.relu(%w) : f32[16, 32] in $b9\n"
    )
    a, b, d = (priced.kernels[op] for op in priced.graph.ops)
    assert a is b
    assert a[0].time > d[0].time


def test_adding_a_tensor_to_itself_is_not_confused_with_adding_another() -> None:
    priced = _price(
        "%a = aten.add(%x, %x) : f32[B, 32] in $b7\n%b = aten.add(%x, %a) : f32[B, 32] in $b8\n"
    )
    a, b = (priced.kernels[op][0].time for op in priced.graph.ops)
    assert a < b


def test_copies_of_host_tensors_follow_the_graphs_pinned_setting() -> None:
    copy = "%y = aten.to(%big, device = @gpu0) : f32[4096, 4096] in $b9\n"
    text = HEADER.replace("param %w", "input %big : f32[4096, 4096] @cpu in $b5\nparam %w", 1)
    plain, pinned = (
        parse(text + copy),
        parse(text.replace("{ format", "{ pinned = true  format") + copy),
    )
    sheet = load_device("v100")
    slow, fast = (price(g, sheet).of(g.ops[0])[0].time for g in (plain, pinned))
    assert slow > 1.4 * fast
    assert price(plain, sheet, pinned=True).of(plain.ops[0])[0].time == fast


def test_a_sparse_gradient_is_priced_by_its_values() -> None:
    body = (
        "%i = aten.arange() : i64[1, 10] in $b20\n"
        "%v = aten.relu(%x) : f32[10, 32] in $b21\n"
        "%s = aten._sparse_coo_tensor_unsafe(%i, %v, size = [100000, 32])"
        " : f32[100000, 32; 0, 0] in $b22\n"
        "%big = aten.zeros(size = [100000, 32]) : f32[100000, 32] in $b23\n"
        "aten.add_(%big!, %s, alpha = -0.1)\n"
    )
    priced = _price(body)
    update = priced.of(priced.graph.ops[-1])
    assert sum(k.time for k in update) < 20
    assert "10 rows" in update[-1].name


def test_the_era_of_the_software_changes_the_kernels() -> None:
    old = _price(LINEAR, software="torch-1.10-cuda-11.3")
    assert [k.family for k in old.of(old.graph.ops[0])] == ["elementwise", "gemm"]


def test_an_unknown_mode_suggests_the_nearest() -> None:
    with pytest.raises(IrgraphError, match="no pricing mode named 'papers'; did you mean 'paper'"):
        _price("", mode="papers")


def test_an_unknown_software_profile_lists_the_known_ones() -> None:
    with pytest.raises(IrgraphError, match=r"no software profile named 'torch-9'") as caught:
        _price("", software="torch-9")
    assert "torch-1.10-cuda-11.3" in str(caught.value)
    assert caught.value.exit_code == 2


@pytest.fixture(scope="module", params=["default", "mlperf", "ddp"])
def captured(request: pytest.FixtureRequest) -> Graph:
    """Return a captured step of one of the paper's models."""
    from irgraph.capture.live import capture_file

    target = f"examples/dlrm.py:{request.param}"
    return capture_file(target, batch=256, device="meta", symbolic=False).graph


def test_every_op_of_the_papers_models_is_known(captured: Graph) -> None:
    for software in ("torch-2", "torch-1.10-cuda-11.3"):
        priced = price(captured, load_device("v100"), software=software)
        assert priced.unknown == ()


def test_every_op_of_the_papers_models_is_known_after_fusion(captured: Graph) -> None:
    from irgraph.api import rewrite

    fused = rewrite(captured, "fuse-embedding").graph
    priced = price(fused, load_device("v100"))
    assert priced.unknown == ()
    names = [op.name for op in fused.walk()]
    assert "irgraph.batched_embedding" in names


def test_a_product_of_nothing_has_a_time_that_is_a_number() -> None:
    sheet = load_device("v100")
    learned = predictors(sheet, "torch-2")
    graph = _graph(
        "%e = aten.slice(%x, dim = 0, end = 0) : f32[0, 32] in $b1\n"
        "%t = aten.t(%w) : f32[32, 16; 1, 32] in $b2\n"
        "%y = aten.mm(%e, %t) : f32[0, 16] in $b9\n"
    )
    (kernel,) = price(graph, sheet, learned=learned).of(graph.ops[2])
    assert 0 < kernel.time < 10
