"""Several removals in one statement: each is checked against what those before it left."""

from __future__ import annotations

import pytest

from irgraph.manage.run import run_stages
from irgraph.manage.stage import PipelineStep, stages
from irgraph.text import parse

HEAD = 'model "m" { format = 1 }\n\ndevice @gpu0 "v100"\nparam %w "w" : f32[4] in $b1\n\n'


def cleaned(body: str) -> list[str]:
    """Return the lines of a model after ``clean-copies``."""
    from irgraph.text import print_graph

    graph = run_stages(parse(HEAD + body), stages([PipelineStep("pass", "clean-copies")])).graph
    return print_graph(graph).split("\n\n")[2].splitlines()


@pytest.mark.parametrize(
    ("body", "left"),
    [
        (  # two copies of one tensor, the first of them overwritten
            "%a = aten.neg(%w) : f32[4] in $b2\n"
            "%y1 = aten.clone(%a) : f32[4] in $b3\n"
            "%y2 = aten.clone(%a) : f32[4] in $b4\n"
            "aten.relu_(%y1!)\n"
            "%o = aten.add(%y1, %y2) : f32[4] in $b5\n",
            ["aten.relu_(%a!)", "%o = aten.add(%a, %y2) : f32[4] in $b5"],
        ),
        (  # a copy of a copy, overwritten: the parameter must not be
            "%y1 = aten.clone(%w) : f32[4] in $b2\n"
            "%y2 = aten.clone(%y1) : f32[4] in $b3\n"
            "aten.relu_(%y2!)\n"
            "%o = aten.neg(%y2) : f32[4] in $b4\n",
            ["aten.relu_(%y2!)", "%o = aten.neg(%y2) : f32[4] in $b4"],
        ),
        (  # a copy of a copy that keeps what is overwritten
            "%y1 = aten.clone(%w) : f32[4] in $b2\n"
            "%y2 = aten.clone(%y1) : f32[4] in $b3\n"
            "aten.relu_(%w!)\n"
            "%o = aten.neg(%y2) : f32[4] in $b4\n",
            ["aten.relu_(%w!)", "%o = aten.neg(%y2) : f32[4] in $b4"],
        ),
        (  # views follow to the buffer that stays
            "%y1 = aten.clone(%w) : f32[4] in $b2\n"
            "%y2 = aten.clone(%y1) : f32[4] in $b3\n"
            "%v = aten.slice(%y2, dim = 0, end = 2) : f32[2] in $b3\n"
            "%o = aten.neg(%v) : f32[2] in $b4\n",
            [
                "%v = aten.slice(%w, dim = 0, end = 2) : f32[2] in $b1",
                "%o = aten.neg(%v) : f32[2] in $b4",
            ],
        ),
    ],
)
def test_chains_of_copies_keep_their_meaning(body: str, left: list[str]) -> None:
    assert cleaned(body)[-2:] == left
