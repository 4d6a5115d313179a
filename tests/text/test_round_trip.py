"""Printing and reading are inverse, and both readers agree."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from irgraph.ops.verify import describe, verify
from irgraph.text import IrgraphError, parse, print_graph
from irgraph.text.canonical import NotCanonicalError, read_canonical
from irgraph.text.parser import parse_any
from tests.strategies import random_graph

GOLDEN = Path(__file__).parents[1] / "golden" / "passes"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_every_graph_survives_its_text(seed: int) -> None:
    graph = random_graph(seed)
    assert [describe(graph, f) for f in verify(graph)] == []
    text = print_graph(graph)
    for read in (read_canonical, parse_any):
        again = read(text)
        assert again == graph
        assert print_graph(again) == text


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9), st.integers(0, 10**6), st.sampled_from('[]{}()%$@=:,;" x1-\n'))
def test_damaged_text_gives_an_error_and_nothing_else(seed: int, at: int, char: str) -> None:
    text = print_graph(random_graph(seed, 15))
    at %= len(text)
    for damaged in (text[:at], text[:at] + char + text[at + 1 :], text[:at] + text[at + 1 :]):
        try:
            graph = parse(damaged, "x.ir")
        except IrgraphError as error:
            assert "x.ir" in str(error)
        else:
            verify(graph)


def test_any_layout_reads_as_the_same_graph() -> None:
    text = """model "m" { format = 1  dims = {B = 8} }

device @gpu0 "v100"
input %x : f32[B, 4] in $b1

aten.relu_(%x!) on backward [time = 3us +- 0.5us, by = learned] from "t#1"
%y = aten.sum(%x, dim = [0]) : f32[4] in $b2 phase backward
"""
    assert print_graph(parse(text)) == text
    loose = text.replace(" = ", "  =\n   ").replace("{", "{ # a comment\n")
    assert parse(loose) == parse(text)
    assert print_graph(parse(loose)) == text


def test_what_was_read_again_is_not_unequal() -> None:
    text = 'model "m" { format = 1 }\n\ndevice @gpu0 "v100"\n'
    assert not parse(text) != parse(text)  # noqa: SIM202  (a struct's own would say so)
    assert parse(text) != parse(text.replace('"m"', '"n"'))


ARGUMENTS = (
    "%x, %w, 1, -1, 2*B, true, none, f32, @cpu, 0.5, dim = 1",
    "%x!, %w, alpha = -0.1",
    "[%x, %w!], [], dim = [0, 1], keep = true",
    "[[%x, %w], [1, 2]], by = [%w]",
    '"a, [b", %x, mode = "c = ], \\" %w", size = [B, 2]',
    '["x", "y]"], %w, last = %x',
)
"""Operands and attributes as they are printed."""


@pytest.mark.parametrize("given", ARGUMENTS)
def test_both_readers_read_all_kinds_of_arguments(given: str) -> None:
    text = _model(given)
    assert print_graph(read_canonical(text)) == text
    assert read_canonical(text) == parse_any(text)


@pytest.mark.parametrize(
    "given",
    [
        "%x!!",
        "%, 1",
        "dim = 1, %x",
        "dim = 1, dim = 2",
        "[%x, 1",
        "%x,1",
        "%y",
        "1]",
        "[a = 1]",
        "%x , 1",
        "dim = %x, %w",
        "[%x,1]",
        "a = [1]x",
        ", %x",
    ],
)
def test_the_fast_reader_takes_nothing_else(given: str) -> None:
    with pytest.raises(NotCanonicalError):
        read_canonical(_model(given))


def _model(given: str) -> str:
    """Return a canonical text with one call of these arguments."""
    return f"""model "m" {{ format = 1  dims = {{B = 8}} }}

device @gpu0 "v100"
input %x : f32[B, 4] in $b1
input %w : f32[B, 4] in $b2

%z = aten.made({given}) : f32[B, 4] in $b3
"""


@pytest.mark.parametrize("path", sorted(GOLDEN.glob("*.before.ir")), ids=lambda path: path.stem)
def test_both_readers_agree_on_captured_steps(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert print_graph(read_canonical(text)) == text
    assert read_canonical(text) == parse_any(text)


def test_reading_leaves_garbage_collection_as_it_was() -> None:
    for switch in (gc.disable, gc.enable):
        switch()
        before = gc.isenabled()
        parse(_model("%x"))
        with pytest.raises(IrgraphError):
            parse("model")
        assert gc.isenabled() == before
