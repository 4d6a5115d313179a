"""Colours and completion come from the grammar."""

from __future__ import annotations

import re

import pytest

import irgraph
from irgraph.studio import words
from irgraph.studio.session import Session

PASSES = irgraph.passes()


def offered(text: str, graph: irgraph.Graph) -> tuple[str, list[str]]:
    part, found = words.completions(text, graph, PASSES)
    return part, [word for word, _ in found]


@pytest.mark.parametrize(
    ("text", "part", "some"),
    [
        ("", "", {"apply", "remove", "fuse", "resize"}),
        ("rem", "rem", {"remove"}),
        ("remove aten.relu\n", "", {"apply", "where"}),
        ("apply fuse-emb", "fuse-emb", {"fuse-embedding(least = 2)"}),
        ("remove many aten.re", "aten.re", {"aten.relu"}),
        ("remove aten.relu where op.mo", "mo", {"module"}),
        ("resize ", "", {"B"}),
        ("cast aten.addmm to bf", "bf", {"bf16"}),
        ("remove aten.relu within ", "", {'"top.0"', "forward"}),
        ('remove aten.relu within "to', '"to', {'"top.1"'}),
        ("find mine = aten.relu\nremove mi", "mi", {"mine"}),
        ("remove %y = aten.relu(%x) using %", "%", {"%y", "%x"}),
        ("remove aten.relu where %x.", "", {"dtype", "shape"}),
    ],
)
def test_what_may_follow(session: Session, text: str, part: str, some: set[str]) -> None:
    found = offered(text, session.step.graph)
    assert found[0] == part
    assert some <= set(found[1])


def test_what_may_not_follow_is_not_offered(session: Session) -> None:
    assert "remove" not in offered("remove ", session.step.graph)[1]
    assert set(offered("apply ", session.step.graph)[1]) >= {"fuse-qkv"}
    assert offered("apply ", session.step.graph)[1] == [words.call(one) for one in PASSES]


@pytest.mark.parametrize("text", ["((((", "\0", '"', "remove remove ", "%", "op.", "é"])
def test_what_is_wrong_already_gets_no_words(session: Session, text: str) -> None:
    part, _ = words.completions(text, session.step.graph, PASSES)
    assert text.endswith(part)


def test_each_completion_of_a_pass_applies_it(session: Session) -> None:
    """What must be given stands as a question mark, which the reader fills in."""
    for one in PASSES:
        text = words.call(one)
        if "?" not in text:
            irgraph.load_script(f"apply {text}")


def test_the_rules_are_those_of_the_lexer() -> None:
    found = words.rules()
    assert "number" in " ".join(kind for _, kinds in found for kind in kinds)
    for regex, kinds in found:
        assert re.compile(regex).groups in (0, len(kinds)) or len(kinds) == 1
