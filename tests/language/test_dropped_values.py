"""An argument that a pattern names must reach the new op."""

from __future__ import annotations

import pytest

from irgraph.language import load_script, run
from irgraph.text import IrgraphError, parse

MODEL = """model "m" { format = 1 }

device @gpu0 "v100"
input %x : f32[4] in $b1

%a = aten.add(%x, %x, alpha = 2) : f32[4] in $b2
%b = aten.add(%x, %x, alpha = 2) : f32[4] in $b3
"""

SCRIPT = """fuse many %y = aten.add(%p, %q, alpha = %s) group by %s having count >= 2
  into [*%y] = aten._foreach_add([*%p], [*%q]{carried})
"""


def test_a_value_used_only_to_group_is_not_dropped() -> None:
    outcome = run(load_script(SCRIPT.format(carried="")), parse(MODEL))
    assert len(outcome.graph.ops) == 2
    assert "%s is 2, but no new op takes it" in str(outcome.report)


def test_a_value_that_is_carried_may_group_as_well() -> None:
    outcome = run(load_script(SCRIPT.format(carried=", alpha = %s")), parse(MODEL))
    assert [op.name for op in outcome.graph.ops] == ["aten._foreach_add"]


def test_an_op_that_would_take_its_own_result_is_left_alone() -> None:
    graph = parse(
        'model "m" { format = 1 }\n\ndevice @gpu0 "v100"\ninput %a : f32[4] in $b1\n\n'
        "%y = aten.neg(%a) : f32[4] in $b2\n%z = aten.relu(%y) : f32[4] in $b3\n"
    )
    pattern = "{ %y = aten.neg(%a) %z = aten.relu(%b) }"
    script = f"fuse many {pattern} into [%y, %z] = aten._foreach_neg([%a, %b])"
    outcome = run(load_script(script), graph)
    assert len(outcome.graph.ops) == 2
    assert "the new op would need %y, which it makes itself" in str(outcome.report)


SLICED = parse(
    'model "m" { format = 1 }\n\ndevice @gpu0 "v100"\ninput %x : f32[4, 6] in $b1\n\n'
    "%a = aten.slice(%x, dim = 1, start = 0, end = 3) : f32[4, 3; 6, 1] in $b1\n"
    "%y = aten.relu(%a) : f32[4, 3] in $b2\n"
)
"""A slice, whose arguments decide what is read."""

HALVED = """replace { %a = aten.slice(%x, dim = %d, start = 0, end = %h)  %y = aten.relu(%a) }
  where {condition} with { %b, %c = aten.split_with_sizes(%x, [3, 3], 1)  %y = aten.relu(%b) }
"""


@pytest.mark.parametrize(
    ("condition", "problem"),
    [
        ("%d == %x.rank - 1 and 2 * %h == %x.shape[-1]", ""),
        ("%d == 1 and %h > 1", "%h is 3, but no new op takes it"),
        ("%d == 1 or 2 * %h == %x.shape[-1]", "%d is 1, but no new op takes it"),
        ("%d + 2 == %h", "%d is 1, but no new op takes it"),
        ("%x.shape[%d] == 6 and %h == 3", "%d is 1, but no new op takes it"),
        ("%d // 5 == 0 and %h == 3", "%d is 1, but no new op takes it"),
        ("0 * %d == 0 and %h == 3", "%d is 1, but no new op takes it"),
        ("%d == 1 and %h - %h == 0", "%h is 3, but no new op takes it"),
    ],
)
def test_an_equation_determines_an_argument(condition: str, problem: str) -> None:
    script = HALVED.replace("{condition}", condition).replace("%b, %c", "[%b, %c]")
    if problem:
        with pytest.raises(IrgraphError, match=problem):
            run(load_script(script), SLICED)
    else:
        assert "aten.split_with_sizes" in [
            op.name for op in run(load_script(script), SLICED).graph.ops
        ]
