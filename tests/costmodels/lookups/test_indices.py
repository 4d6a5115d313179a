"""What is said of the lookups of a model's tables, by the model and by the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from costmodels.devices.library import load_device
from costmodels.lookups.indices import indices_of
from costmodels.lookups.pooling import EQUAL, Lengths, Normal, Poisson
from costmodels.lookups.popularity import UNIFORM, HeavyHitters, Histogram, Zipf
from costmodels.lookups.rules import parse_distribution
from costmodels.pricing.price import price
from irgraph.cli.main import main
from irgraph.diagnostics import IrgraphError
from irgraph.ir.graph import Graph
from irgraph.predict.prediction import predict
from irgraph.text import parse, print_graph

MODEL = """model "two tables" {{ format = 1{setting} }}

device @gpu0 "v100"
param %w1 "emb.small" : f32[3, 64] in $b1
param %w2 "emb.large" : f32[1000000, 64] in $b2
input %i1 : i64[20480] in $b3
input %i2 : i64[20480] in $b4
input %o : i64[2048] in $b5
input %g : f32[2048, 64] in $b6

%y1, _, _, _ = aten._embedding_bag(%w1, %i1, %o) : f32[2048, 64] in $b7, none, none, none
%y2, _, _, _ = aten._embedding_bag(%w2, %i2, %o) : f32[2048, 64] in $b8, none, none, none
"""


def model(setting: str = "") -> Graph:
    """Return a model of two tables, with a setting that says how they are looked up."""
    return parse(MODEL.format(setting=f"  indices = {setting}" if setting else ""))


def test_nothing_said_is_uniform_and_named_an_assumption() -> None:
    assert indices_of(model()).summary() == ("uniform (assumed): emb.small, emb.large",)


def test_the_option_goes_before_the_model() -> None:
    said = model('"zipf:1.2"')
    assert indices_of(said).summary() == ("zipf:1.2 (the model): emb.small, emb.large",)
    both = indices_of(said, ["emb.l*=zipf:0.9"]).summary()
    assert both == ("zipf:1.2 (the model): emb.small", "zipf:0.9 (--indices): emb.large")


def test_the_model_may_say_it_table_by_table() -> None:
    found = indices_of(model('"zipf:1.2; emb.small=uniform"'))
    assert [table.distribution for table in found.tables] == [UNIFORM, Zipf(1.2)]


def test_the_setting_survives_printing() -> None:
    said = model('"zipf:1.2; emb.small=uniform"')
    assert parse(print_graph(said)) == said


def test_a_file_holds_a_distribution_for_each_table(tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    content = {"emb.small": [5, 0, 1], "emb.large": [[1000, 0.9], [999_000, 0.1]]}
    path.write_text(json.dumps(content))
    found = indices_of(model(), [str(path)])
    laws = [table.distribution for table in found.tables]
    assert laws == [
        Histogram((1.0, 1.0, 1.0), (0.0, 1.0, 5.0)),
        Histogram((1000, 999_000), (0.9, 0.1)),
    ]
    assert {table.source for table in found.tables} == {str(path)}


def test_popular_rows_make_lookups_and_their_gradients_faster() -> None:
    sheet = load_device("v100")
    graph = model()

    def times(*said: str) -> list[float]:
        priced = price(graph, sheet, indices=indices_of(graph, said))
        return [priced.of(op)[0].time for op in graph.ops]

    even, skewed = times(), times("zipf:1.2")
    assert skewed[0] == pytest.approx(even[0], rel=0.01)  # three rows fit any cache
    assert skewed[1] < 0.6 * even[1]
    assert times("emb.large=zipf:1.2")[1] == skewed[1]


def test_equal_calls_of_other_distributions_are_priced_apart() -> None:
    text = MODEL.format(setting="").replace("[3, 64]", "[1000000, 64]")
    graph = parse(text)
    priced = price(graph, load_device("v100"), indices=indices_of(graph, ["emb.large=zipf:1.2"]))
    first, second = (priced.of(op)[0] for op in graph.ops)
    assert first.time > second.time
    assert "uniform" in first.formula and "zipf:1.2" in second.formula


def test_a_prediction_says_how_tables_are_looked_up(capsys: pytest.CaptureFixture[str]) -> None:
    found = predict(model(), indices=["zipf:1.05"])
    assert found.summary()["indices"] == ["zipf:1.05 (--indices): emb.small, emb.large"]


def test_the_command_takes_distributions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "m.ir"
    path.write_text(print_graph(model()))
    assert (
        main(["predict", str(path), "--show", "figures", "--indices", "emb.large=zipf:1.05"]) == 0
    )
    assert "zipf:1.05 (--indices): emb.large" in capsys.readouterr().out
    assert main(["predict", str(path), "--indices", "zipfy:1.05"]) == 2
    assert "did you mean 'zipf'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zipf", "an exponent from 0"),
        ("zipf:", "an exponent from 0"),
        ("zipf:-1", "an exponent from 0"),
        ("zipf:1,2,3", "an exponent from 0"),
        ("zipf:nan", "an exponent from 0"),
        ("uniform:1", "no distribution of indices is called 'uniform:1'"),
        ("", "no distribution of indices is called ''"),
    ],
)
def test_a_distribution_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(IrgraphError, match=message):
        parse_distribution(text)


def test_a_table_that_is_not_there_gets_a_near_word() -> None:
    with pytest.raises(IrgraphError, match=r"'emb.smal'; did you mean 'emb.small'"):
        indices_of(model(), ["emb.smal=uniform"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read how tables are looked up"),
        ("[1]", "not an object from tables' names"),
        ('{"emb.small": []}', "table 'emb.small': not a distribution"),
        ('{"emb.small": [[1, 2], 3]}', "not a distribution"),
        ('{"emb.small": [[0, 2]]}', "not a distribution"),
        ('{"emb.small": [0, 0]}', "not a distribution"),
        ('{"emb.small": [1, -1]}', "not a distribution"),
        ('{"emb.small": 3}', "not a distribution"),
        (f'{{"emb.small": [{"9" * 400}]}}', "not a distribution"),
        ('{"emb.small": [NaN, 1]}', "not a distribution"),
        ('{"emb.small": "zipf:x"}', "an exponent from 0"),
    ],
)
def test_a_file_that_holds_no_distributions_is_refused(
    tmp_path: Path, content: str, message: str
) -> None:
    path = tmp_path / "tables.json"
    path.write_text(content)
    with pytest.raises(IrgraphError, match=message):
        indices_of(model(), [str(path)])


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(IrgraphError, match=r"none\.json.*cannot read how tables are looked up"):
        indices_of(model(), [str(tmp_path / "none.json")])


def test_bags_are_said_beside_rows_or_alone() -> None:
    said = model('"zipf:1.2 bags poisson"')
    assert parse(print_graph(said)) == said
    found = indices_of(said, ["emb.large=bags normal:21,35", "emb.small=uniform"])
    assert found.summary() == (
        "uniform (--indices): emb.small",
        "bags poisson (the model): emb.small",
        "zipf:1.2 (the model): emb.large",
        "bags normal:21,35 (--indices): emb.large",
    )
    assert [table.pooling for table in found.tables] == [Poisson(), Normal(21, 35)]
    graph = model()
    i1, i2 = graph.by_name["i1"], graph.by_name["i2"]
    assert found.bags(i2, 1_000_000) == Normal(21, 35) and found.bags(i1, 3) == Poisson()
    assert indices_of(graph).bags(i1, 3) == EQUAL


def test_heavy_hitters_are_read_as_they_print() -> None:
    law = parse_distribution("zipf:0.89,2.75+0.0032+0.001")
    assert law == HeavyHitters((0.0032, 0.001), Zipf(0.89, 2.75))
    assert parse_distribution(str(law)) == law


def test_a_file_says_rows_and_bags(tmp_path: Path) -> None:
    path = tmp_path / "tables.json"
    bags = [[40, 1], [1, 99]]
    path.write_text(
        json.dumps({"emb.small": {"bags": bags}, "emb.*e": {"rows": "zipf:1.2", "bags": "poisson"}})
    )
    small, large = indices_of(model(), [str(path)]).tables
    assert (small.pooling, small.distribution) == (Lengths((1, 40), (99, 1)), UNIFORM)
    assert (large.pooling, large.distribution) == (Poisson(), Zipf(1.2))


def test_uneven_bags_make_a_lookup_slower() -> None:
    def times(*said: str) -> list[float]:
        graph = parse(MODEL.format(setting="").replace("20480", "204800"))
        priced = price(graph, load_device("v100"), indices=indices_of(graph, said))
        assert "lognormal" in priced.of(graph.ops[1])[0].formula or not said
        return [priced.of(op)[0].time for op in graph.ops]

    plain, heavy = times(), times("emb.large=bags lognormal:2.5")
    assert heavy[0] == plain[0] and heavy[1] > 3 * plain[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("zipf:1+0", "chances of single rows are above 0"),
        ("zipf:1+0.5+0.5", "below 1 together"),
        ("zipf:1+x", "an exponent from 0"),
        ("uniform bags", "no lengths of bags are called ''"),
        ("bags poison", "did you mean 'poisson'"),
        ("bags normal:1", "numbers above 0"),
        ("bags lognormal:nan", "numbers above 0"),
        ("zipf:1 bag poisson", "an exponent from 0"),
    ],
)
def test_bags_that_cannot_be_read_are_refused(text: str, message: str) -> None:
    with pytest.raises(IrgraphError, match=message):
        indices_of(model(), [text])


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"rows": "uniform", "more": 1},
        {"bags": [[0, 5]]},
        {"bags": [1, 2]},
        {"bags": []},
        {"rows": []},
    ],
)
def test_a_file_that_says_no_bags_is_refused(tmp_path: Path, given: object) -> None:
    path = tmp_path / "tables.json"
    path.write_text(json.dumps({"emb.small": given}))
    with pytest.raises(IrgraphError, match=r"table 'emb\.small': no"):
        indices_of(model(), [str(path)])
