"""Options of predictions: one record, as an object, as keyword arguments, or both."""

from __future__ import annotations

from typing import get_type_hints

import pytest

import irgraph
from costmodels.evaluate.dlrm_v100 import dlrm
from irgraph.predict.options import PredictFields, PredictOptions, predict_options
from irgraph.predict.pair import predict_pair
from irgraph.predict.prediction import predict
from irgraph.predict.variants import predict_variants
from irgraph.schedule.accounting import PAPER


def test_keyword_arguments_are_the_fields_of_the_record() -> None:
    assert get_type_hints(PredictFields) == get_type_hints(PredictOptions)
    assert set(PredictFields.__annotations__) == set(PredictOptions.__struct_fields__)


def test_keyword_arguments_replace_fields_of_an_object() -> None:
    options = PredictOptions(device="a100", host="v100-2021-05-14")
    assert predict_options(options, device="t4") == PredictOptions(
        device="t4", host="v100-2021-05-14"
    )
    assert predict_options("a100", mode="paper") == PredictOptions(device="a100", mode="paper")


def test_a_text_counts_as_a_list_of_one() -> None:
    assert PredictOptions(indices="zipf:1.05").indices == ("zipf:1.05",)


def test_an_unknown_option_is_named_with_the_nearest() -> None:
    with pytest.raises(TypeError, match="no option 'devise'; did you mean 'device'"):
        predict_options(devise="v100")  # type: ignore[call-arg]


def test_an_object_and_its_fields_give_the_same_prediction() -> None:
    graph = dlrm("DLRM_default", 512)
    options = PredictOptions(device="a100", dims={"B": 256}, accounting="paper")
    whole = irgraph.predict(graph, options)
    assert (
        whole.step_time
        == irgraph.predict(graph, "a100", dims={"B": 256}, accounting=PAPER).step_time
    )
    assert whole.step_time == irgraph.predict(graph, options=options).step_time
    assert whole.timeline.accounting == "paper"
    assert whole.sheet.name.startswith("A100")
    assert whole.priced.graph.dims == {"B": 256}


def test_all_that_predict_take_the_same_options() -> None:
    graph = dlrm("DLRM_default", 512)
    options = PredictOptions(dims={"B": 256}, software="torch-1.10-cuda-11.3", pinned=True)
    alone = predict(graph, options).step_time
    first, second = predict_pair(graph, graph, options)
    assert first.step_time == second.step_time == alone
    (found,) = predict_variants(graph, ["v100"], [{}], options).step_time[0]
    assert found == pytest.approx(alone, rel=1e-9)


def test_figures_that_cannot_be_are_refused() -> None:
    graph = dlrm("DLRM_default", 2048)
    wrong = {
        "device: give the name of a device": lambda: predict(graph, device=""),
        "the model has no device 'h100'": lambda: irgraph.peak_memory(graph, "h100"),
        "rounded: give a whole number from 1, not 0": lambda: irgraph.peak_memory(graph, rounded=0),
        "step_times: give microseconds above 0, not nan": lambda: irgraph.diff(
            graph, graph, step_times=(9.0, float("nan"))
        ),
        "starts: give microseconds from 0, not nan": lambda: irgraph.predict_ranks(
            [graph, graph], starts=[0.0, float("nan")]
        ),
    }
    for message, call in wrong.items():
        with pytest.raises(irgraph.IrgraphError, match=message) as caught:
            call()
        assert caught.value.exit_code == 2
