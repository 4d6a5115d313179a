"""Scripts as text: what parses, how it prints, and what errors say."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irgraph.ir.quantity import Quantity
from irgraph.language import load_script, parse_pipeline
from irgraph.language.clauses import Swap
from irgraph.language.expressions.nodes import (
    Binary,
    Expression,
    ListOf,
    Literal,
    Name,
    Unary,
    Variable,
)
from irgraph.language.patterns.nodes import Bound, OpPattern, Selection, Series
from irgraph.language.script import Script
from irgraph.language.statements.let import Let
from irgraph.language.statements.remove import Remove
from irgraph.text import IrgraphError

SCRIPTS = {
    "insert": """pass norms "Try a norm behind each activation." {
        insert %z = aten.layer_norm(%y) after many %y = aten.relu(...) using %z for %y }""",
    "cast": 'pass narrow(to: dtype = bf16) "Narrow products." { cast many aten.{addmm,bmm} to to }',
    "as": """fuse many %y, ... = aten.embedding_bag(%w, %i, %o, ...) where %w.nbytes < 64MiB
        into *%y = irgraph.batched_embedding(*%w, *%i, *%o) as lookup
        reorder lookup earliest on stream side""",
    "repeat": """repeat at most 8 {
        remove many %y = aten.to(%x, ...) where %y.type == %x.type using %x for %y
        remove { %t = aten.t(%x)  %y = aten.t(%t) } using %x for %y
        } expect no aten.to within forward where op.bytes == 0B""",
    "sweep": """sweep batch in [512, 1_024], device in ["v100", "h100"] {
        target device apply tuned(to = batch) expect 1 irgraph.batched_embedding
        } report step.time, gpu.active best by step.time / batch""",
    "dropout": "remove many %y = aten.dropout(%x, ...) using %x for %y",
    "before": 'reorder module "bot_mlp" before first aten.embedding_bag',
    "replace": """replace { aten._foreach_mul_(%v!, %b)  %d = aten._foreach_sqrt(%v) } with
        aten._fused_adam_(%p!, %g, %m!, %v!, beta2 = %b)""",
    "group": """fuse many %y, ... = aten.embedding_bag(%w, %i, %o, ..., mode = %m)
        group by %m, %w.shape[1] having count >= 2
        into [*%y] = irgraph.batched_embedding([*%w], [*%i], [*%o], mode = %m)""",
    "nested": "fuse many %y = aten.relu(aten.addmm(%c, %x, %w)) into %y = my.op(%c, %x, %w)",
    "latest": "reorder many memcpy.h2d(%src, ...) latest",
    "insert-in-place": "insert nccl.all_reduce(%g!) after many %g = autograd.X(...) as reductions",
    "parallelize": """parallelize module "bot", many aten.embedding_bag where op.time >= 20us
        over 2 streams assuming "they share nothing" """,
    "resize": "resize B = 4096",
    "resize-axis": 'resize %w.shape[0] of aten.linear(%x, %w, ...) within "bot.0" = 128',
    "assuming": 'reorder aten.bmm(%x, _) before custom.opaque(...) assuming "it writes nothing"',
    "lists": "find cats = many %y = aten.cat([%x, *%xs], dim = 1)",
    "quoted": 'remove "CppNode<Mine>"(%x)',
    "labels": "remove { a: aten.relu(%x)  b: aten.sum(%x, ...) } where b.phase == forward",
    "let": "let x = (1 + 2) * -3 let y = not (x == 3 or x < 4 and true) let z = [x, 1.5, none]",
    "comment": "# nothing\nlet x = 3 # more",
    "empty": "",
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_statement_parses_and_prints_as_itself(name: str) -> None:
    script = load_script(SCRIPTS[name])
    again = load_script(str(script))
    assert again == script
    assert str(again) == str(script)


def test_scripts_print_in_one_layout() -> None:
    text = 'pass p(n:int=2,w:time=20us)\n"Do."{find r=aten.relu remove r} apply p(n=3)'
    assert str(load_script(text)) == (
        'pass p(n: int = 2, w: time = 20us)\n  "Do."\n{\n  find r = aten.relu\n  remove r\n}\n\n'
        "apply p(n = 3)\n"
    )


def test_scripts_can_be_built_without_text() -> None:
    pattern = OpPattern("aten.dropout", (Bound("x"),), (Bound("y"),))
    remove = Remove(Selection(Series((pattern,)), many=True), (Swap("x", "y"),))
    assert str(remove) == "remove many %y = aten.dropout(%x) using %x for %y"
    assert load_script(str(remove)) == Script((), (remove,))


def test_a_pipeline_applies_passes_in_order() -> None:
    script = parse_pipeline("fuse-embedding(least=4), tidy")
    assert str(script) == "apply fuse-embedding(least = 4)\napply tidy\n"


def test_every_node_knows_its_place() -> None:
    script = load_script("let a = 3\n  let b = a + 1", "my.irg")
    second = script.body[1]
    assert isinstance(second, Let)
    assert str(second.place) == "my.irg:2:3"
    assert str(second.value.place) == "my.irg:2:11"


ERRORS = {
    "fsue many aten.relu into x": (
        "1:1: error: unexpected 'fsue'; expected apply, bucket, capture, cast, compile or deprune, "
        "…; did you mean 'fuse'?"
    ),
    "fuse many aten.relu(%x into": "1:24: error: unexpected 'into'; expected",
    "remove aten.relu usng %x for %y": "1:18: error: unexpected 'usng'; expected the end,",
    "let x = 3 +": "1:12: error: the text ends too early; expected",
    "pass A {}": "1:6: error: unexpected 'A'; expected a pass's name",
    "let x = 9__9": "1:9: error: not a number: '9__9'",
    "repeat at most 2.5 {}": "1:16: error: expected a whole number",
    'let x = "a\\q"': "1:9: error: not a string: invalid \\escape",
    "let x = ?": "1:9: error: unexpected '?'; expected",
    "let x = " + "[" * 101 + "]" * 101: "1:107: error: this is nested too deeply",
    "let x = " + "-" * 9000 + "x": "1:107: error: this is nested too deeply",
    "remove " + "aten.t(" * 102 + ")" * 102: "1:350: error: this is nested too deeply",
}


@pytest.mark.parametrize(
    "text", ERRORS, ids=[e.rpartition("error: ")[2][:40] for e in ERRORS.values()]
)
def test_what_does_not_parse_is_shown_with_its_place(text: str) -> None:
    with pytest.raises(IrgraphError) as caught:
        load_script(text, "s.irg")
    assert str(caught.value).startswith(f"s.irg:{ERRORS[text]}")
    assert caught.value.exit_code == 4


def test_an_error_shows_line_and_carets() -> None:
    with pytest.raises(IrgraphError) as caught:
        load_script("let a = 1\nremove aten.relu usng %x for %y", "s.irg")
    assert str(caught.value).splitlines()[1:] == [
        "   2 | remove aten.relu usng %x for %y",
        "     |                  ^^^^",
    ]


def test_a_pipeline_says_where_it_is_wrong() -> None:
    with pytest.raises(IrgraphError, match=r"pipeline:1:3: error: the text ends too early"):
        parse_pipeline("a,")


WORDS = st.sampled_from(["x", "least", "op"])
LITERALS = st.one_of(
    st.integers(-9, 10**6),
    st.floats(-1e299, 1e299),
    st.booleans(),
    st.none(),
    st.text(max_size=5),
    st.sampled_from([Quantity(20.0, "us"), Quantity(1.5, "GiB"), Quantity(10.0, "%")]),
).map(Literal)
OPERATORS = ["or", "and", "==", "!=", "<", "<=", ">", ">=", "~", "+", "-", "*", "/", "//"]


def _compound(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    return st.one_of(
        st.builds(Binary, st.sampled_from(OPERATORS), inner, inner),
        st.builds(Unary, st.sampled_from(["not", "-"]), inner),
        st.builds(ListOf, st.lists(inner, max_size=3).map(tuple)),
    )


EXPRESSIONS = st.recursive(
    st.one_of(LITERALS, WORDS.map(Name), WORDS.map(Variable)), _compound, max_leaves=12
)


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(EXPRESSIONS)
def test_expressions_print_as_they_parse(value: Expression) -> None:
    script = Script((), (Let("v", value),))
    assert load_script(str(script)) == script


PIECES = sorted({word for text in SCRIPTS.values() for word in text.split()})


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(SCRIPTS)), st.integers(0, 10**9))
def test_mutated_scripts_raise_nothing_but_our_errors(name: str, seed: int) -> None:
    chance = random.Random(seed)
    text = SCRIPTS[name]
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(text) + 1)
        end = min(len(text), at + chance.choice([0, 1, 1, 5, 40]))
        filling = chance.choice(["", " ", chance.choice(PIECES), chr(chance.randrange(32, 500))])
        text = text[:at] + filling + text[end:]
    try:
        script = load_script(text)
    except IrgraphError as error:
        assert error.exit_code == 4
    else:
        assert load_script(str(script)) == script
