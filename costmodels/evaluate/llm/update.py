"""The work of a rank outside its micro-batches: exchange between ranks, and the update."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import Struct

from costmodels.evaluate.llm.case import LlmCase
from costmodels.evaluate.llm.programs import ranks_text
from irgraph.ir.ranks import groups_text
from irgraph.predict.prediction import predict
from irgraph.text import parse

DATA, NEIGHBOURS = "data", "neighbours"
"""Groups of ranks: with different samples, and two neighbouring stages."""

REDUCE_SCATTER = (
    "%r = _c10d_functional.reduce_scatter_tensor(%g, reduce_op = 'sum', group_size = {ranks}, "
    "group_name = 'data') : {type}[{share}] in $r"
)
ALL_REDUCE = (
    "%r = _c10d_functional.all_reduce(%g, reduce_op = 'sum', group_name = 'data') : "
    "{type}[{size}] in $r"
)
ALL_GATHER = (
    "%r = _c10d_functional.all_gather_into_tensor(%g, group_size = {ranks}, "
    "group_name = 'data') : bf16[{size}] in $r"
)
ADAM = (
    "aten._fused_adamw_([%w!], [%g!], [%m!], [%v!], [], [%t], lr = 0.001, beta1 = 0.9, "
    "beta2 = 0.999, weight_decay = 0.01, eps = 1e-08, amsgrad = false, maximize = false)\n"
    "%h = aten._to_copy(%w, dtype = bf16) : bf16[{share}] in $h"
)
ADD = "aten.add_(%w!, %g)"
SEND = "c10d.send(%g, process_group = 'neighbours', dst = 1)"


class RankWork(Struct, frozen=True):
    """Milliseconds of the work of a rank outside its micro-batches.

    Attributes:
        reduction: reduction of the gradients.
        gathering: gathering of the updated parameters.
        optimizer: the update.
        accumulation: addition of a micro-batch's gradients, if that takes a kernel.
        transfer: activations of a micro-batch from one stage to the next.
    """

    reduction: float
    gathering: float
    optimizer: float
    accumulation: float
    transfer: float


def rank_work(case: LlmCase, parameters: int) -> RankWork:
    """Return the work of a rank that holds this number of parameters."""
    layout, shape = case.layout, case.shape
    shares = layout.data if layout.sharding == "zero1" else 1
    share = max(parameters // shares, 1)
    sums = "bf16" if case.reduces_half else "f32"
    sizes = {"share": share, "size": share * shares, "ranks": layout.data, "type": sums}
    gradients = f"g {sums}[{share * shares}]"
    reduce = REDUCE_SCATTER if shares > 1 else ALL_REDUCE
    states = [f"{name} f32[{share}]" for name in "gwmv"]
    activations = case.batch * shape.length * shape.hidden // layout.tensor
    totals = [f"w f32[{share * shares}]", f"g bf16[{share * shares}]"]
    work = RankWork(
        reduction=_time(case, reduce.format(**sizes), gradients),
        gathering=_time(case, ALL_GATHER.format(**sizes), f"g bf16[{share}]"),
        optimizer=_time(case, ADAM.format(**sizes), *states, "t f32[]"),
        accumulation=_time(case, ADD, *totals),
        transfer=_time(case, SEND, f"g bf16[{activations}]"),
    )
    return RankWork(
        reduction=work.reduction * (layout.data > 1),
        gathering=work.gathering * (shares > 1),
        optimizer=work.optimizer,
        accumulation=work.accumulation * case.accumulates,
        transfer=work.transfer * (layout.stages > 1),
    )


def _time(case: LlmCase, ops: str, *inputs: str) -> float:
    """Return the milliseconds of device work of a few ops on tensors ``NAME TYPE``."""
    graph = parse("\n".join(_lines(case, ops.replace("'", '"'), inputs)))
    prediction = predict(graph, case.card, software=case.software)
    return sum(kernel.time for kernel in prediction.kernels()) / 1e3


def _lines(case: LlmCase, ops: str, inputs: tuple[str, ...]) -> Iterator[str]:
    """Yield the text of a model: neighbours in a tensor group are neighbours on a machine."""
    layout = case.layout
    stage = layout.tensor * layout.data
    groups = {
        DATA: range(0, stage, layout.tensor),
        NEIGHBOURS: range(0, 2 * stage, stage),
    }
    ranks = ranks_text(max(layout.ranks, 2))
    yield f'model "update" {{ format = 1  ranks = "{ranks}"  rank = 0'
    yield f'  groups = "{groups_text(groups)}" }}'
    yield 'device @gpu0 "h100"'
    for tensor in inputs:
        name, _, kind = tensor.partition(" ")
        yield f"input %{name} : {kind} in ${name}"
    yield ops
