"""Models with collectives run on several ranks with different inputs."""

from __future__ import annotations

import pytest

from irgraph.execute import Comparison, compare
from irgraph.execute.ranks.replicas import world_size
from irgraph.ir.graph import Graph
from irgraph.text import IrgraphError, parse

HEAD = """model "m" { format = 2  ranks = 2 }
device @gpu0 "v100"
input %x : f32[4, 6] in $x
param %w : f32[6, 6] in $w
"""
PRODUCT = "%y = aten.mm(%x, %w) : f32[4, 6] in $y\n"
REDUCED = (
    '%s = _c10d_functional.all_reduce(%y, reduce_op = "sum", group_name = "0") : f32[4, 6] in $s\n'
    "%d = _c10d_functional.wait_tensor(%s) : f32[4, 6] in $s\n"
)
SQUARE = "%z = aten.mul({}, {}) : f32[4, 6] in $z\nreturn %z\n"


def step(*parts: str) -> Graph:
    """Return the step of some lines."""
    return parse(HEAD + "".join(parts))


def difference(before: Graph, after: Graph) -> Comparison:
    """Return the comparison of two steps in two draws."""
    return compare(before, after, draws=2)


def test_functional_collectives_run() -> None:
    before = step(PRODUCT, REDUCED, SQUARE.format("%d", "%d"))
    result = difference(before, before)
    assert result.same
    assert "on ranks with different inputs" in str(result)


def test_values_of_other_ranks_matter() -> None:
    before = step(PRODUCT, REDUCED, SQUARE.format("%d", "%d"))
    local = step(PRODUCT, REDUCED, SQUARE.format("%d", "%y"))
    doubled = step(
        PRODUCT,
        "%d = aten.mul(%y, other = 2) : f32[4, 6] in $d\n",
        SQUARE.format("%d", "%d"),
    )
    assert not difference(before, local).same
    # a single process knows no other inputs: two ranks with equal ones stand for it
    assert difference(doubled, before).same


def test_a_reduction_moved_across_a_square_differs() -> None:
    before = step(PRODUCT, REDUCED, SQUARE.format("%d", "%d"))
    moved = step(
        PRODUCT,
        "%q = aten.mul(%y, %y) : f32[4, 6] in $q\n",
        REDUCED.replace("%y", "%q").replace("%d =", "%z ="),
        "return %z\n",
    )
    assert not difference(before, moved).same


ADDED = """model "m" { format = 2 }
device @gpu0 "v100"
input %x : f32[4] in $x
param %w "w" : f32[4] in $w
%g = aten.mul(%x, %w) : f32[4] in $g
%a = autograd.AccumulateGrad(%g) : f32[4] in $g {
  %a = aten.detach(%g) : f32[4] in $g
}
"""
UPDATE = "aten.add_(%w!, %g, alpha = -0.1)\n"


@pytest.mark.parametrize(
    ("inserted", "same"),
    [
        ('c10d.allreduce_([%g!], reduce_op = "avg")\n', True),
        ('c10d.allreduce_([%g!], reduce_op = "sum")\n', False),
        ('c10d.allreduce_([%g!], reduce_op = "avg")\n' * 2, True),
        ('aten.mul_(%g!, other = 0.5)\nc10d.allreduce_([%g!], reduce_op = "sum")\n', False),
    ],
)
def test_inserted_reductions_average_the_gradients(inserted: str, same: bool) -> None:
    result = compare(parse(ADDED + UPDATE), parse(ADDED + inserted + UPDATE), draws=4)
    assert result.same == same, str(result)


def test_a_gradient_that_stays_local_is_found() -> None:
    local = ADDED + 'aten.zero_(%x!)\nc10d.allreduce_([%x!], reduce_op = "avg")\n' + UPDATE
    kept = ADDED + "aten.zero_(%x!)\n" + UPDATE
    assert not compare(parse(kept), parse(local), draws=4).same


def test_groups_of_several_sizes_are_refused() -> None:
    mixed = step(
        "%a = _c10d_functional.all_gather_into_tensor(%x, group_size = 2, group_name = \"0\")"
        " : f32[8, 6] in $a\n"
        "%b = _c10d_functional.all_gather_into_tensor(%x, group_size = 4, group_name = \"1\")"
        " : f32[16, 6] in $b\nreturn %a, %b\n"
    )  # fmt: skip
    with pytest.raises(IrgraphError, match="of 2 and 4 ranks cannot be computed"):
        world_size(mixed, 0)
