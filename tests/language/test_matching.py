"""What patterns match, what they bind, and how near a miss came."""

from __future__ import annotations

import pytest

from irgraph.ir.graph import Graph
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor
from irgraph.language import load_script
from irgraph.language.expressions.evaluate import Pricer, Scope
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.select import SelectionResult, select
from irgraph.language.statements.find import Find
from irgraph.text import IrgraphError
from tests.language.models import mlp, model


def matched(pattern: str, graph: Graph, pricer: Pricer | None = None) -> SelectionResult:
    """Return what a selection matches."""
    (statement,) = load_script(f"find r = {pattern}").body
    assert isinstance(statement, Find)
    return select(statement.selection, Index(graph), Scope(pricer=pricer), {})


def names(pattern: str, graph: Graph) -> list[list[str]]:
    """Return the first results (or operands) of the ops of each match."""
    found = matched(pattern, graph)
    members = [[found.op(i) for i in match.ops] for match in found.matches]
    return [[(op.outputs or op.inputs)[0].name for op in ops] for ops in members]


def bound(pattern: str, graph: Graph) -> list[dict[str, Value]]:
    """Return what each match binds; tensors by their names."""
    return [
        {name: _plain(value) for name, value in match.values.items()}
        for match in matched(pattern, graph).matches
    ]


def _plain(value: Value) -> Value:
    if isinstance(value, Tensor):
        return value.name
    return tuple(map(_plain, value)) if isinstance(value, tuple) else value


def miss(pattern: str, graph: Graph) -> str:
    """Return why nothing matched."""
    found = matched(pattern, graph)
    assert not found.matches
    return found.misses.reason


LISTS = """
input %a : f32[4] in $a
input %b : f32[4] in $b
input %c : f32[4] in $c
%s = aten.cat([%a, %b, %c], dim = 0) : f32[12] in $s
%t = aten.cat([%b, %c]) : f32[8] in $t
aten._foreach_mul_([%a!, %b!], scalar = 0.9)
[%p, %q] = aten.split(%s, split_size = 6) : [f32[6] in $s, f32[6] in $s+24]
"""


def test_a_name_binds_operands_and_results() -> None:
    assert bound("many %y = aten.relu(%x)", mlp()) == [{"y": "y1", "x": "h1"}]


def test_without_many_the_first_match_counts_alone() -> None:
    found = matched("%h = aten.addmm(...)", mlp())
    assert (len(found.matches), found.total) == (1, 2)
    assert names("many %h = aten.addmm(...)", mlp()) == [["h1"], ["h2"]]


def test_a_blank_takes_anything_and_binds_nothing() -> None:
    assert bound("many %h = aten.addmm(_, %x, _)", mlp())[0] == {"h": "h1", "x": "x0"}


def test_a_pattern_without_rest_wants_just_these_arguments() -> None:
    graph = model(
        "input %x : f32[4, 4] in $x\n"
        "%y = aten.addmm(%x, %x, %x) : f32[4, 4] in $y\n"
        "%z = aten.addmm(%x, %x, %x, beta = 0.5) : f32[4, 4] in $z\n"
        "%v = aten.addmm(%x, %x, %x, beta = 1) : f32[4, 4] in $v\n"
    )
    assert names("many aten.addmm(%c, %a, %b)", graph) == [["y"], ["v"]]
    assert names("many aten.addmm(%c, %a, %b, ...)", graph) == [["y"], ["z"], ["v"]]
    assert miss("aten.addmm(%c, %a)", graph) == "it also has mat2 = %x"


def test_named_arguments_bind_the_defaults_that_the_model_omits() -> None:
    graph = model(
        "input %x : f32[4] in $x\n"
        "%y = aten.sub(%x, %x) : f32[4] in $y\n"
        "%z = aten.sub(%x, %x, alpha = 2) : f32[4] in $z\n"
    )
    assert [m["a"] for m in bound("many aten.sub(%x, _, alpha = %a)", graph)] == [1, 2]
    assert names("many aten.sub(%x, _, alpha = 1)", graph) == [["y"]]
    assert miss("aten.sub(%x, _, alpha = 3)", graph) == "1 is not 3"


def test_positions_follow_the_schema_beyond_the_tensors() -> None:
    assert bound("many aten._foreach_mul_(%v!, %beta)", model(LISTS)) == [
        {"v": ("a", "b"), "beta": 0.9}
    ]


def test_a_bang_insists_on_a_write_in_place() -> None:
    assert names("many aten.relu_(%h!)", mlp()) == [["h2"]]
    assert miss("aten.relu(%h!)", mlp()) == "it does not write %h1 in place"


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("aten.{addmm,relu}", 3), ("aten.relu*", 2), ("aten.*", 5), ("{ aten.t }", 2)],
)
def test_names_may_be_globs(pattern: str, count: int) -> None:
    assert matched(f"many {pattern}", mlp()).total == count


def test_no_match_lies_inside_another() -> None:
    assert names("many aten.{linear,addmm,t}", mlp()) == [["h1"], ["h2"]]


def test_lists_match_by_items_and_by_what_is_left() -> None:
    graph = model(LISTS)
    assert bound("many aten.cat([%x, *%xs], ...)", graph) == [
        {"x": "a", "xs": ("b", "c")},
        {"x": "b", "xs": ("c",)},
    ]
    assert names("many %y = aten.cat([_, _], ...)", graph) == [["t"]]
    assert names("many %y = aten.cat([..., %z], dim = 0)", graph) == [["s"], ["t"]]
    assert bound("[%l, %r] = aten.split(...)", graph) == [{"l": "p", "r": "q"}]
    assert miss("aten.cat([_], ...)", graph) == "it has 3 items, the pattern has 1"
    assert miss("aten.cat([%x, %x, ...], ...)", graph) == ("%b is not the same as %x, which is %a")
    assert miss("aten.split([%x], ...)", graph) == "%s is not a list"


def test_results_are_counted_unless_the_rest_is_left_open() -> None:
    graph = model(
        "input %x : f32[4, 4] in $x\n%v, %i = aten.sort(%x) : f32[4, 4] in $v, i64[4, 4] in $i\n"
    )
    assert bound("%v, ... = aten.sort(...)", graph)[0] == {"v": "v"}
    assert bound("%v, _ = aten.sort(...)", graph)[0] == {"v": "v"}
    assert miss("%v = aten.sort(...)", graph) == "it has 2 results, the pattern has 1"


def test_a_nested_op_is_the_one_that_made_the_operand_at_any_level() -> None:
    assert names("many %y = aten.relu(aten.addmm(%c, %x, %w))", mlp()) == [["h1", "y1"]]
    assert names("many %y = aten.relu(aten.linear(%x, %w, %c))", mlp()) == [["h1", "y1"]]
    assert miss("aten.relu(aten.mm(%a, %b))", mlp()) == "%h1 is not made by aten.mm"


def test_a_nested_op_may_have_worked_in_place() -> None:
    assert names("aten.sum(aten.relu_(%h!), ...)", mlp()) == [["h2", "s"]]
    assert miss("aten.sum(aten.addmm(...), ...)", mlp()) == "%h2 is not made by aten.addmm"


def test_a_series_matches_in_order_with_others_between() -> None:
    assert names("{ %y = aten.relu(_)  aten.addmm(_, %y, _) }", mlp()) == [["y1", "h2"]]
    assert miss("{ aten.sum(%h)  aten.relu_(%h!) }", mlp()) == "no aten.relu_(%h!) follows it"


def test_the_members_of_a_series_may_lie_at_different_depths() -> None:
    assert names("many { %h = aten.addmm(...)  aten.relu_(%h!) }", mlp()) == [["h2", "h2"]]


def test_a_second_use_must_be_of_the_same_bytes() -> None:
    graph = model(
        "input %x : f32[4] in $x\n"
        "%y = aten.relu(%x) : f32[4] in $y\n"
        "aten.neg_(%x!)\n"
        "%z = aten.abs(%x) : f32[4] in $z\n"
    )
    assert miss("{ aten.relu(%x)  aten.abs(%x) }", graph) == (
        "aten.neg_ writes %x between the uses of %x"
    )
    assert names("{ aten.relu(%x)  aten.neg_(%x!)  aten.abs(%x) }", graph) == [["y", "x", "z"]]


def test_other_bytes_of_the_buffer_may_be_written_between() -> None:
    graph = model(
        "input %x : f32[4] in $x\ninput %o : f32[4] in $x+16\n"
        "%y = aten.relu(%x) : f32[4] in $y\naten.neg_(%o!)\n%z = aten.abs(%x) : f32[4] in $z\n"
    )
    assert names("{ aten.relu(%x)  aten.abs(%x) }", graph) == [["y", "z"]]


def test_a_series_takes_another_way_where_the_first_one_fails() -> None:
    graph = model(
        "input %x : f32[4] in $x\ninput %g : f32[8] in $g\n"
        "%a = aten.neg(%x) : f32[4] in $a\n"
        "%b = aten.neg(%g) : f32[8] in $b\n"
        "%y = aten.abs(%x) : f32[4] in $y\n"
        "%z = aten.abs(%g) : f32[8] in $z\n"
    )
    pattern = "{ %p = aten.neg(_)  %q = aten.abs(_) } where %q.numel == 8 and %p.numel == 4"
    assert names(pattern, graph) == [["a", "z"]]


def test_no_op_is_in_two_matches() -> None:
    graph = model(
        "input %x : f32[4] in $x\n"
        + "".join(f"%a{k} = aten.neg(%x) : f32[4] in $a{k}\n" for k in range(2))
        + "".join(f"%b{k} = aten.abs(%x) : f32[4] in $b{k}\n" for k in range(2))
    )
    assert names("many { aten.neg(%x)  aten.abs(%x) }", graph) == [["a0", "b0"], ["a1", "b1"]]


def test_where_reads_tensors_and_ops() -> None:
    graph = mlp()
    assert names('many %h = aten.addmm(%c, %x, %w) where %x.name == "y1"', graph) == [["h2"]]
    assert names('many %h = aten.addmm(...) where op.module ~ "*.0"', graph) == [["h1"], ["h2"]]
    assert names('many aten.t where op.scope == "aten.linear"', graph) == [["t1"], ["t2"]]
    assert names("many r: aten.relu(%x) where r.phase == forward", graph) == [["y1"]]
    assert names("many aten.relu* where op.bytes == 256B", graph) == [["y1"], ["h2"]]
    assert names('many aten.t(%w) where %w.type == "f32[8, 8] @gpu0"', graph) == [["t1"], ["t2"]]


def test_a_false_condition_shows_its_values() -> None:
    assert miss("aten.relu(%x) where %x.rank == 2 and %x.shape[0] > 5", mlp()) == (
        "%x.shape[0] > 5 is false: %x.shape[0] is 4"
    )
    assert miss("aten.relu(%x) where %x.shape[7] > 5", mlp()) == (
        "7 is out of range: %x.shape has 2 items"
    )
    assert miss("aten.cat(%x, ...) where %x.rank == 1", model(LISTS)) == (
        "%x.rank == 1 is false: %x.rank is [1, 1, 1]"
    )
    assert miss("aten.cat(_, dim = %d) where %d.rank == 1", model(LISTS)) == (
        "%d is 0, which is not a tensor: it has no rank"
    )


def test_within_takes_a_module_a_label_or_a_phase() -> None:
    graph = model(
        "input %x : f32[4] in $x\nparam %w : f32[4] in $w\n"
        '"Optimizer.step#SGD.step"() phase optimizer {\n  aten.add_(%w!, %x, alpha = -1)\n}\n'
        '%y = aten.relu(%x) : f32[4] in $y in module "top.1"\n'
    )
    assert matched("many aten.relu within forward", graph).total == 1
    assert matched("many aten.add_ within optimizer", graph).total == 1
    assert matched('many aten.add_ within "Optimizer.step#SGD.step"', graph).total == 1
    assert matched('many aten.relu within "top"', graph).total == 1
    assert miss('many aten.relu within "to"', graph) == "it is not within 'to'"
    assert miss("aten.relu within backward", graph) == "its phase is forward, not backward"


def test_a_module_is_its_outermost_ops() -> None:
    assert names('many module "top"', mlp()) == [["h2"], ["h2"]]
    assert names('many module "bot.0"', mlp()) == [["h1"]]


def test_autograd_scopes_hand_on_what_others_use() -> None:
    graph = model(
        "input %g : f32[4] in $g\nparam %w : f32[4] in $w\nstate %s : f32[4] in $s\n"
        "autograd.AccumulateGrad(%g) phase backward {\n  %d = aten.detach(%g) : f32[4] in $g\n}\n"
        "autograd.AccumulateGrad(%g) phase backward\n"
        "autograd.AccumulateGrad(%g) phase backward {\n  aten.add_(%s!, %g)\n}\n"
        "aten.add_(%w!, %d)\n"
    )
    found = [m["r"] for m in bound("many %r = autograd.AccumulateGrad(%x)", graph)]
    assert found == ["d", "g", "s"]


def test_quoted_names_match_other_calls() -> None:
    graph = model('input %x : f32[4] in $x\n"CppNode<Mine>"(%x)\n')
    assert names('"CppNode<Mine>"(%v)', graph) == [["x"]]


class Fixed:
    """Takes as many microseconds as an op has operands."""

    def time(self, graph: Graph, op: object) -> float:
        return float(len(getattr(op, "operands", ())))


def test_a_pricer_tells_the_time_of_ops() -> None:
    found = matched("many aten.{addmm,relu} where op.time >= 3us", mlp(), Fixed())
    assert found.total == 2


@pytest.mark.long
def test_a_loose_pattern_is_refused_not_tried_for_ever() -> None:
    graph = model(
        "input %x : f32[4] in $x\n"
        + "".join(f"%a{k} = aten.neg(%x) : f32[4] in $a{k}\n" for k in range(80))
    )
    pattern = "{ aten.neg(_) aten.neg(_) aten.neg(_) aten.neg(%y) } where %y.rank == 3"
    with pytest.raises(IrgraphError, match="too loose: its ops can be combined in too many ways"):
        matched(pattern, graph)


def test_a_miss_tells_the_time_with_its_unit() -> None:
    found = matched("many aten.addmm where op.time >= 30us", mlp(), Fixed())
    assert "op.time is 3us" in str(found.misses.reason)
