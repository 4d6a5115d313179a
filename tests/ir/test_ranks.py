"""How many ranks take part in a step, by what the model and its ops say."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.ranks import (
    Layout,
    check_fabric,
    groups_of,
    groups_text,
    layout_of,
    ranks_of,
    with_ranks,
)

GATHER = Op("_c10d_functional.all_gather_into_tensor", attributes={"group_size": 8})
EXCHANGE = Op("c10d.alltoall_base_", attributes={"output_split_sizes": (1, 1)})
REDUCTION = Op("c10d.allreduce_")


def test_an_op_may_name_its_ranks() -> None:
    assert [ranks_of(op) for op in (GATHER, EXCHANGE, REDUCTION)] == [8, 2, 0]
    unsaid = replace(EXCHANGE, attributes={"group_size": 0, "output_split_sizes": (1, 1, 1)})
    assert ranks_of(unsaid) == 3
    assert ranks_of(replace(EXCHANGE, attributes={"group_size": 1})) == 1


def test_groups_are_listed_or_evenly_spaced() -> None:
    graph = Graph("g", settings={"groups": "one=3 pp=3,11 tp=4-7 dp=1-25/8 ep=0-2,9"})
    wanted = {
        "one": (3,),
        "pp": (3, 11),
        "tp": (4, 5, 6, 7),
        "dp": (1, 9, 17, 25),
        "ep": (0, 1, 2, 9),
    }
    assert groups_of(graph) == wanted
    assert groups_of(replace(graph, settings={"groups": groups_text(wanted)})) == wanted


def test_the_models_setting_goes_first() -> None:
    graph = with_ranks(Graph("g", ops=(GATHER,)), "2x8")
    assert layout_of(graph) == Layout(16, 8, "as given")


def test_ops_that_agree_speak_for_the_others() -> None:
    graph = Graph("g", ops=(GATHER, GATHER, REDUCTION))
    assert layout_of(graph) == Layout(8, 8, "as other ops of the step say")
    assert layout_of(Graph("g", ops=(GATHER, EXCHANGE))) == Layout()


@pytest.mark.parametrize("ranks", ["", "x8", "0", "2x0", "-1", "8.5", "9" * 99, 0])
def test_what_is_no_number_of_ranks_is_refused(ranks: str | int) -> None:
    with pytest.raises(IrgraphError, match="ranks: expected N or MxN, not") as caught:
        with_ranks(Graph("g"), ranks)
    assert caught.value.exit_code == 2


def test_an_unknown_fabric_is_refused_with_the_nearest() -> None:
    assert check_fabric("a100", ("a100", "v100")) == "a100"
    with pytest.raises(IrgraphError, match="measured on 'a10'; did you mean 'a100'"):
        check_fabric("a10", ("a100", "v100"))


def test_a_model_remembers_its_ranks() -> None:
    graph = Graph("g")
    assert with_ranks(graph) is graph
    assert with_ranks(graph, "8").settings == {"ranks": 8}
    assert with_ranks(graph, "2x8", "a100").settings == {"ranks": "2x8", "fabric": "a100"}
    with pytest.raises(IrgraphError, match="not 'many'"):
        layout_of(replace(graph, settings={"ranks": "many"}))
