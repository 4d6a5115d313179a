"""Whatever a script says, running it ends with a sound graph or with an error of ours."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import passes
from irgraph.language import load_script, parse_pipeline, run
from irgraph.ops.verify import verify
from irgraph.text import IrgraphError
from tests.language.models import mlp, training
from tests.verbs.test_fuse_verb import graph_of

GRAPHS = (mlp(), training(3))
SCRIPTS = (
    "fuse many %y = aten.relu(aten.addmm(%c, %x, %w)) where %x.rank == 2 and op.bytes > 3B"
    " into %y = irgraph.addmm_relu(%c, %x, %w) as made expect 1 made",
    "fuse many %y, ... = aten.embedding_bag(%w, %i, %o, mode = %m, ...) group by %m, %w.shape[1]"
    " having count >= 2 into [*%y] = irgraph.batched_embedding([*%w], [*%i], [*%o], mode = %m)",
    "fuse many { %d = aten._embedding_bag_backward(%g, %i, %o, _, _, _, num_weights = %n, mode ="
    " %m, ...) } into [*%d] = irgraph.batched_embedding_backward([*%g], [*%i], [*%o],"
    " num_weights = [*%n], mode = %m, sparse = false)",
    "repeat at most 3 { remove many %y = aten.{relu,detach}(%x) within forward using %x for %y }",
    'find r = many module "bot" expect no r where op.phase == backward remove r',
    'let n = 2 * 3 - 1 resize B = n + 4 expect 2 a: aten.linear where a.module ~ "*.0"',
    'pass p(n: int = 2, t: bytes = 1KiB) "P." { expect n aten.addmm(_, %x, ...) where'
    " %x.nbytes < t } apply p apply p(n = 2, t = 4GiB)",
    'remove { %h = aten.addmm(%c, %x, %w)  aten.relu_(%h!) } using %x for %h assuming "it is"',
    "replace many %y = aten.relu(%x) with { %m = aten.neg(%x) %y = aten.add(%x, %m) } as made",
    "cast many aten.{linear,relu} to bf16 remove aten.sum expect 2 aten._to_copy",
    "reorder aten.t before first aten.addmm reorder many aten.relu* latest on stream side",
    'parallelize module "bot", many aten.t within "top" over 2 streams reorder aten.sum latest',
    "insert %z = aten.neg(%y) after first %y = aten.addmm(...) using %z for %y as new expect 1 new",
)
WORDS = sorted({word for text in SCRIPTS for word in text.split()})


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9))
def test_mutated_scripts_run_or_say_why_not(seed: int) -> None:
    chance = random.Random(seed)
    words = chance.choice(SCRIPTS).split()
    for _ in range(chance.randrange(1, 4)):
        at = chance.randrange(len(words))
        new = chance.choice([[], [chance.choice(WORDS)], [words[at], words[at]]])
        words[at : at + 1] = new or ([] if len(words) > 1 else words)
    graph = chance.choice(GRAPHS)
    try:
        outcome = run(load_script(" ".join(words)), graph)
    except IrgraphError as error:
        assert str(error)
    else:
        assert verify(outcome.graph) == []
        assert str(outcome.report) is not None


SERIES = (
    "fuse many { %a = aten.neg(%x)  %b = aten.neg(%a) } into %b = aten.clone(%x)",
    "fuse many { aten.neg(%x)  %b = aten.neg(%y) } into %b = aten.add(%x, %y)",
    "fuse many %a = aten.neg(%x) into [*%a] = aten._foreach_neg([*%x])",
    "fuse many { aten.neg_(%x!)  %b = aten.neg(%x) } into %b = aten.abs(%x)",
    "remove many %a = aten.neg(%x) using %x for %a",
    "remove many { %a = aten.neg(%x)  aten.neg_(%a!) } using %x for %a",
    "remove many aten.{neg,view}",
    "replace many %a = aten.neg(%x) with { %m = aten.abs(%x)  %a = aten.neg(%m) }",
    "replace many { aten.neg_(%x!)  %b = aten.neg(%x) } with { %b = aten.abs(%x)  aten.neg_(%x!) }",
    "insert %z = aten.abs(%a) after many %a = aten.neg(_) using %z for %a",
    "insert aten.neg_(%x!) before many aten.neg(%x)",
    "reorder many aten.neg_ earliest on stream side",
    "cast many aten.neg to bf16 reorder many aten._to_copy earliest",
    "reorder many aten.neg latest reorder many aten.neg_ earliest on stream side",
)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(SERIES))
def test_random_models_stay_sound(seed: int, script: str) -> None:
    graph = graph_of(seed)
    outcome = run(load_script(script), graph)
    assert verify(outcome.graph) == []
    if not any(entry.changed for entry in outcome.report.entries):
        assert outcome.graph == graph


@pytest.mark.parametrize("name", passes.names())
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10**9))
def test_passes_leave_random_models_sound(name: str, seed: int) -> None:
    try:
        after = run(parse_pipeline(name), graph_of(seed)).graph
    except IrgraphError as error:
        assert "needs" in str(error) or error.exit_code == 1
    else:
        assert verify(after) == []
