"""Rewrites that would be wrong, each in its smallest form: refused, or done right."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from irgraph.execute import compare
from irgraph.language import load_script, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError
from irgraph.verbs import RefusedError, resize
from tests.differential.fuzz import judged
from tests.language.models import model


@dataclass(frozen=True)
class Case:
    """A model, a script, and how it must go: ``refused`` or ``changed``."""

    name: str
    text: str
    script: str
    outcome: str = "refused"


RETURNED_MEAN = """
input %x : f32[4, 8] in $x
%m = aten.mean(%x) : f32[] in $m
return %m
"""

RETURNED_CLONE = """
input %x : f32[4, 8] in $x
%h = aten.relu(%x) : f32[4, 8] in $h
%k = aten.clone(%h) : f32[4, 8] in $k
aten.mul_(%k!, other = 2)
%s = aten.sum(%k) : f32[] in $s
return %h, %s
"""

RETURNED_COPY_OF_A_WEIGHT = """
param %w : f32[4] in $w
%d = aten.detach(%w) : f32[4] in $w
%k = aten.clone(%d) : f32[4] in $k
return %k
"""

RETURNED_TWICE = """
input %x : f32[4] in $x
%h = aten.neg(%x) : f32[4] in $h
%k = aten.clone(%h) : f32[4] in $k
return %h, %k
"""

RETURNED = (
    Case("what is returned stays", RETURNED_CLONE, "remove aten.relu"),
    Case("a returned tensor is not written", RETURNED_CLONE, "apply clean-copies", "same"),
    Case("a returned copy stays a copy", RETURNED_COPY_OF_A_WEIGHT, "apply clean-copies", "same"),
    Case("two returned tensors stay apart", RETURNED_TWICE, "apply clean-copies", "same"),
    Case(
        "a returned view goes where its source does",
        "input %x : f32[4] in $x\n%h = aten.neg(%x) : f32[4] in $h\n"
        "%k = aten.clone(%h) : f32[4] in $k\nreturn %k\n",
        "apply clean-copies",
        "changed",
    ),
    Case(
        "a new value is returned",
        "input %x : f32[4] in $x\n%h = aten.neg(%x) : f32[4] in $h\nreturn %h\n",
        "replace %y = aten.neg(%x) with %y = aten.mul(%x, other = -1)",
        "changed",
    ),
    Case(
        "what is not returned goes",
        "input %x : f32[4] in $x\n%h = aten.neg(%x) : f32[4] in $h\n"
        "%k = aten.abs(%x) : f32[4] in $k\nreturn %k\n",
        "apply remove-dead expect 1 aten.*",
        "changed",
    ),
)


@pytest.mark.parametrize("case", RETURNED, ids=lambda case: case.name)
def test_what_a_step_returns(case: Case) -> None:
    assert judged(model(case.text), [case.script]) == case.outcome


def test_a_returned_value_is_compared() -> None:
    before = model(RETURNED_MEAN)
    script = "replace %m = aten.mean(%x) with { %s = aten.sum(%x)  %m = aten.mul(%s, other = 5.0) }"
    after = run(load_script(script), before).graph
    assert judged(before, [script]) == "wrong: %m differs"
    assert not compare(before, after).same


NORM = """
input %x : f32[5, 4] in $x
state %m : f32[4] in $m
state %v : f32[4] in $v
state %k : f32[4] in $k
"""
READ = "%c = aten.clone(%m) : f32[4] in $c\n"
KEEP = "aten.copy_(%k!, %c)\n"
CALLS = {
    "native": "%y, %a, %b = aten.native_batch_norm(%x, weight = none, bias = none,"
    " running_mean = %m, running_var = %v, training = true, momentum = 0.1, eps = 0.1)"
    " : f32[5, 4] in $y, f32[4] in $a, f32[4] in $b\n",
    "positional": "%y, %a, %b = aten.native_batch_norm(%x, none, none, %m, %v, true, 0.1, 0.1)"
    " : f32[5, 4] in $y, f32[4] in $a, f32[4] in $b\n",
    "composite": "%y = aten.batch_norm(%x, none, none, %m, %v, true, 0.1, 0.1, true)"
    " : f32[5, 4] in $y\n",
    "instance": "%z = aten.unsqueeze(%x, dim = 0) : f32[1, 5, 4] in $x\n"
    "%t = aten.transpose(%z, dim0 = 1, dim1 = 2) : f32[1, 4, 5; 20, 1, 4] in $x\n"
    "%y = aten.instance_norm(%t, none, none, %m, %v, true, 0.1, 0.1, true) : f32[1, 4, 5] in $y\n",
    "update": "%a, %b = aten.batch_norm_update_stats(%x, %m, %v, 0.1)"
    " : f32[4] in $a, f32[4] in $b\n",
}
UNSAID = [
    Case(
        f"{name}: {what}",
        NORM + text,
        script,
        outcome,
    )
    for name, call in CALLS.items()
    for op in [call.partition(" = ")[2].partition("(")[0].removeprefix("%t = ")]
    for what, text, script, outcome in (
        (
            "a clone of a statistic stays",
            READ + call + KEEP,
            "remove many %y = aten.clone(%x) using %x for %y",
            "same",
        ),
        (
            "a reader does not move across",
            READ + call + KEEP,
            "reorder aten.clone after aten.{*norm*,*stats}",
            "refused",
        ),
        ("the statistics are kept", call, "remove aten.{*norm*,*stats}", "refused"),
        (
            "what is written is not swapped for a copy",
            "%c = aten.alias(%m) : f32[4] in $m\n" + call.replace("%m", "%c"),
            "insert %z = aten.clone(%y) after %y = aten.alias(%x) using %z for %y",
            "refused",
        ),
        (
            "one cast serves until the statistics are written",
            "%c = aten.neg(%m) : f32[4] in $c\n"
            + call
            + "%d = aten.neg(%m) : f32[4] in $d\naten.copy_(%k!, %d)\n",
            "cast many aten.neg to bf16",
            "changed",
        ),
    )
]


@pytest.mark.parametrize("case", UNSAID, ids=lambda case: case.name)
def test_writes_that_no_schema_declares(case: Case) -> None:
    assert judged(model(case.text), [case.script]) == case.outcome


TWO_READERS = """
input %x : f32[4] in $x
state %s : f32[4] in $s
%h = aten.neg(%x) : f32[4] in $h
%y = aten.relu(%h) : f32[4] in $y
%z = aten.add(%y, %h) : f32[4] in $z
aten.copy_(%s!, %z)
"""
IN_TURN = """
state %s : f32[4] in $s
input %x : f32[4] in $x
%n = aten.neg(%x) : f32[4] in $n
%m = aten.neg(%x) : f32[4] in $m
aten.mul_(%n!, other = 2.0)
aten.add_(%n!, %m)
aten.zero_(%m!)
aten.copy_(%n!, %n)
aten.copy_(%s!, %n)
"""
IN_PLACE = "replace %y = aten.relu(%x) with { aten.relu_(%x!)  %y = aten.clone(%x) }"
FUSED_NEG = "fuse many %y = aten.neg(%x) into %y = aten.neg(%x)"

TEMPLATES = (
    Case("a template may not write what is read later", TWO_READERS, IN_PLACE),
    Case(
        "nor what outlives the step",
        TWO_READERS.replace("aten.relu(%h)", "aten.relu(%x)").replace("%h) :", "%y) :"),
        IN_PLACE,
    ),
    Case(
        "nor what is returned",
        TWO_READERS.replace("(%y, %h)", "(%y, %y)") + "return %h\n",
        IN_PLACE,
    ),
    Case(
        "it may write what nobody reads any more",
        TWO_READERS.replace("(%y, %h)", "(%y, %y)"),
        IN_PLACE,
        "changed",
    ),
    Case(
        "writes keep their order",
        IN_TURN,
        "replace { aten.mul_(%a!, other = %c)  aten.add_(%a!, %b) }"
        " with { aten.add_(%a!, %b)  aten.mul_(%a!, other = %c) }",
    ),
    Case(
        "a read before a write stays before it",
        IN_TURN,
        "replace { aten.add_(%a!, %b)  aten.zero_(%b!) }"
        " with { aten.zero_(%b!)  aten.add_(%a!, %b) }",
    ),
    Case(
        "two names of one tensor are not written before they are read",
        IN_TURN,
        "replace aten.copy_(%a!, %b) with { aten.zero_(%a!)  aten.add_(%a!, %b) }",
    ),
    Case(
        "two names of one tensor may be read before they are written",
        IN_TURN,
        "replace aten.copy_(%a!, %b) with { %c = aten.clone(%b)  aten.copy_(%a!, %c) }",
        "changed",
    ),
    Case(
        "one number for a list is no tensor",
        IN_TURN,
        "fuse many aten.add_(%a!, %b) into aten._foreach_add_([*%a!], %b)",
        "same",
    ),
    Case(
        "an element is written once",
        "input %x : f32[1] in $x\ninput %y : f32[8] in $y\n"
        "%e = aten.expand(%x, size = [8]) : f32[8; 0] in $x\n"
        "%d = aten.add(%e, %y) : f32[8] in $d\nreturn %d\n",
        "replace %d = aten.add(%e, %y) with { aten.add_(%e!, %y)  %d = aten.clone(%e) }",
    ),
    Case(
        "an inserted write is seen by none, or refused",
        TWO_READERS,
        "insert aten.neg_(%y!) after %y = aten.neg(_)",
        "refused",
    ),
)


@pytest.mark.parametrize("case", TEMPLATES, ids=lambda case: case.name)
def test_templates_that_write(case: Case) -> None:
    assert judged(model(case.text), [case.script]) == case.outcome


def removed(text: str, script: str, schemas: tuple[str, ...] = ()) -> bool:
    """Tell whether a removal is accepted."""
    try:
        graph = model(text, schemas)
        return run(load_script(script), graph).graph is not graph
    except IrgraphError:
        return False


HEAD = "input %x : f32[4] in $x\nstate %s : f32[4] in $s\n%h = aten.neg(%x) : f32[4] in $h\n"
BLIND = {
    "an unknown op may do anything": (HEAD + "my.log(%h)\n", "remove my.log"),
    "what an unknown op may read stays": (
        HEAD + "aten.mul_(%h!, other = 2)\nmy.log(%x)\n",
        "remove aten.mul_",
    ),
    "an autograd node without body may read what was saved": (
        HEAD + "%y = aten.sigmoid(%h) : f32[4] in $y\naten.mul_(%y!, other = 2)\n"
        "%g = autograd.SigmoidBackward0(%x) : f32[4] in $g\naten.copy_(%s!, %g)\n",
        "remove aten.mul_",
    ),
    "a wait of the host stays": (
        HEAD + "%e = sync.record() : u8[] @cpu in $e\nsync.event(%e)\n",
        "remove sync.event",
    ),
    "a wait before a host read stays": (
        HEAD + "%w = _c10d_functional.wait_tensor(%h) : f32[4] in $h\n%i = aten.item(%w)"
        " : f32[] @cpu in $i\n",
        "remove %y = _c10d_functional.wait_tensor(%x) using %x for %y",
    ),
}


@pytest.mark.parametrize("name", BLIND)
def test_what_nobody_can_see_through_stays(name: str) -> None:
    assert not removed(*BLIND[name])


REDUCED = """
param %p : f32[4] in $p
input %g : f32[4] in $g
_c10d_functional.all_reduce_(%g!, reduce_op = "sum", group_name = "0")
%w = _c10d_functional.wait_tensor(%g) : f32[4] in $w
aten.add_(%p!, %g)
"""

MOVES = {
    "what is reduced is read behind the wait": (
        REDUCED,
        "reorder aten.add_ before _c10d_functional.wait_tensor",
    ),
    "nothing moves across a node without body": (
        HEAD + "%y = aten.sigmoid(%h) : f32[4] in $y\n"
        "%g = autograd.SigmoidBackward0(%x) : f32[4] in $g\naten.mul_(%y!, other = 2)\n",
        "reorder aten.mul_ before autograd.SigmoidBackward0",
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_what_stays_behind_what_nobody_can_see_through(name: str) -> None:
    assert judged(model(MOVES[name][0]), [MOVES[name][1]]) == "refused"


WRONG = {
    "the sign of an input": ("%y = aten.abs(%x) : f32[4] in $y", "aten.abs", "aten.clone"),
    "a relu of an input": ("%y = aten.relu(%x) : f32[4] in $y", "aten.relu", "aten.clone"),
    "integers above 1": ("%y = aten.mul(%i, %i) : i64[4] in $y", "aten.mul", "aten.bitwise_and"),
    "negative integers": ("%y = aten.abs(%i) : i64[4] in $y", "aten.abs", "aten.clone"),
    "nan": ("%y = aten.nan_to_num(%x) : f32[4] in $y", "aten.nan_to_num", "aten.clone"),
    "large values": (
        "%y = aten.clamp(%x, min = -3.0) : f32[4] in $y",
        "aten.clamp(%x, min = -3.0)",
        "aten.clone(%x)",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_values_that_show_a_mistake(name: str) -> None:
    line, old, new = WRONG[name]
    text = f"input %x : f32[4] in $x\ninput %i : i64[4] in $i\n{line}\n"
    assert compare(model(text), model(text)).same
    assert not compare(model(text), model(text.replace(old, new))).same


FIXED_SIZES = {
    "squeeze at 1": ("%y = aten.squeeze(%x) : f32[4, 8] in $x", 1),
    "slice": ("%y = aten.slice(%x, dim = 0, start = 0, end = 3) : f32[3, 8] in $x", 2),
    "chunk": (
        "[%y, %z] = aten.chunk(%x, chunks = 2) : [f32[2, 8] in $x, f32[2, 8] in $x+64]",
        1,
    ),
    "topk": ("%y, %z = aten.topk(%x, k = 3, dim = 0) : f32[3, 8] in $y, i64[3, 8] in $z", 2),
    "narrow": ("%y = aten.narrow(%x, dim = 0, start = 2, length = 2) : f32[2, 8] in $x+64", 3),
    "split": (
        "[%y, %z] = aten.split_with_sizes(%x, split_sizes = [1, 3])"
        " : [f32[1, 8] in $x, f32[3, 8] in $x+32]",
        8,
    ),
    "as_strided": (
        "%y = aten.as_strided(%x, size = [4, 2], stride = [8, 1]) : f32[4, 2; 8, 1] in $x",
        2,
    ),
}


@pytest.mark.parametrize("name", FIXED_SIZES)
def test_a_batch_that_an_op_does_not_take_is_refused(name: str) -> None:
    line, size = FIXED_SIZES[name]
    graph = model(f"input %x : f32[B, 8] in $x\n{line}\n")
    with pytest.raises(RefusedError) as caught:
        resize(graph, "B", size)
    assert caught.value.notes[0][0].name == graph.ops[0].name


def test_shapes_and_names_are_verified() -> None:
    found = verify(model("input %x : f32[B, 32] in $x\n%y = aten.relu(%x) : f32[B, 99] in $y\n"))
    assert [finding.rule for finding in found] == ["shapes"]


SMALL = (
    Case(
        "a template uses what it makes later",
        TWO_READERS,
        "replace { %y = aten.relu(%h)  %z = aten.add(%y, %h) }"
        " with { %z = aten.add(%y, %h)  %y = aten.relu(%h) }",
    ),
    Case(
        "numbers are a list of numbers",
        "input %x : f32[4] in $x\n%y = aten.mul(%x, other = 2.0) : f32[4] in $y\n",
        "fuse many %y = aten.mul(%a, %b) into [*%y] = aten._foreach_mul([*%a], [*%b])",
        "changed",
    ),
    Case(
        "numbers are no tensors of a list",
        "input %x : f32[4] in $x\n%y = aten.mul(%x, other = 2.0) : f32[4] in $y\n"
        "%z = aten.mul(%x, %x) : f32[4] in $z\n",
        "fuse many %y = aten.mul(%a, %b) into [*%y] = aten._foreach_mul([*%a], [*%b])",
        "same",
    ),
    Case(
        "columns that share no byte do not depend on each other",
        "state %s : f32[4, 8] in $s\n"
        "%a = aten.slice(%s, dim = 1, start = 0, end = 4) : f32[4, 4; 8, 1] in $s\n"
        "%b = aten.slice(%s, dim = 1, start = 4, end = 8) : f32[4, 4; 8, 1] in $s+16\n"
        "aten.neg_(%a!)\naten.exp_(%b!)\n",
        "reorder aten.exp_ before aten.neg_",
        "changed",
    ),
    Case(
        "a match that cannot be removed does not fail the others",
        "input %x : f32[4] in $x\nstate %s : f32[4] in $s\n"
        "%y = aten.mul(%x, other = 2.0) : f32[4] in $y\n"
        "%o = aten.ones_like(%y) : f32[4] in $o\n%z = aten.maximum(%y, %y) : f32[4] in $z\n"
        "aten.copy_(%s!, %z)\n",
        "remove many %b = aten.{mul,maximum}(%a, %k) using %k for %b",
        "changed",
    ),
    Case(
        "what is reduced already is not reduced again",
        "param %p : f32[4] in $p\ninput %x : f32[4] in $x\n%g = aten.neg(%x) : f32[4] in $g\n"
        "autograd.AccumulateGrad(%g)\nc10d.allreduce_([%g!], process_group = none,"
        " reduce_op = none)\naten.add_(%p!, %g)\n",
        "apply overlap-allreduce",
    ),
    Case(
        "a gelu is no part of a linear with a relu",
        "param %w : f32[4, 4] in $w\ninput %x : f32[4, 4] in $x\n"
        "%h = aten.linear(%x, %w) : f32[4, 4] in $h\n%y = aten.gelu(%h) : f32[4, 4] in $y\n"
        "return %y\n",
        "fuse %y = aten.gelu(aten.linear(%x, %w)) into %y = irgraph.linear_relu(%x, %w)",
    ),
    Case(
        "a relu is",
        "param %w : f32[4, 4] in $w\ninput %x : f32[4, 4] in $x\n"
        "%h = aten.linear(%x, %w) : f32[4, 4] in $h\n%y = aten.relu(%h) : f32[4, 4] in $y\n"
        "return %y\n",
        "fuse %y = aten.relu(aten.linear(%x, %w)) into %y = irgraph.linear_relu(%x, %w)",
        "changed",
    ),
    Case(
        "torch refuses to write another type",
        "input %x : i64[4] in $x\n%y = aten.neg(%x) : i64[4] in $y\n"
        "%z = aten.abs(%x) : i64[4] in $z\nreturn %z\n",
        "insert aten.mul_(%y!, other = 1.0) after %y = aten.neg(_)",
    ),
    Case(
        "what moved out of a node is not its operand",
        "state %s : f32[8] in $s\ninput %x : f32[8] in $x\n%a = aten.neg(%x) : f32[8] in $a\n"
        "autograd.A(%a) {\n  %t = aten.t(%x) : f32[8] in $x\n  %b = aten.sum(%a) : f32[] in $b\n}\n"
        "aten.copy_(%s!, %b)\n",
        "reorder many aten.{neg,sum} latest",
        "changed",
    ),
)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_smaller_defects(case: Case) -> None:
    assert judged(model(case.text), [case.script]) == case.outcome
