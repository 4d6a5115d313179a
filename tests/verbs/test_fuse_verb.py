"""The verb ``fuse`` against an oracle: no dependence of the graph before is turned round."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from irgraph.ir.dependence import Dependence
from irgraph.ir.effects import effects
from irgraph.ir.graph import Declared, Graph
from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor, overlap
from irgraph.language import load_script, run
from irgraph.text import parse
from irgraph.verbs import RefusedError, fuse
from irgraph.verbs.partition import partition
from irgraph.verbs.sequence import Segment
from tests.language.models import model
from tests.strategies import random_graph


def loose_graph(seed: int) -> Graph:
    """Return ops that seldom depend on each other, some in scopes, some writing in place."""
    chance = random.Random(seed)
    inputs = [Tensor(f"i{k}", "f32", (4,), f"i{k}") for k in range(6)]
    known = list(inputs)

    def op(depth: int) -> Op:
        taken = chance.choice(known if chance.random() < 0.4 else inputs)
        kind = chance.random()
        if depth and kind < 0.25:
            return Op(
                "autograd.X", body=tuple(op(depth - 1) for _ in range(chance.randrange(1, 4)))
            )
        if kind < 0.32:
            return Op("aten.neg_", (taken,), written=frozenset([taken.name]))
        name = f"t{len(known)}"
        if kind < 0.4:
            view = replace(taken, name=name, shape=(2,), offset=chance.choice([0, 8]))
            made, called = (view, "aten.view") if taken.shape == (4,) else (taken, "")
            if called:
                known.append(made)
                return Op(called, (taken,), (made,), {"size": (2,)})
        made = Tensor(name, "f32", taken.shape, f"b{name}")
        known.append(made)
        return Op("aten.neg", (taken,), (made,))

    ops = tuple(op(2) for _ in range(16))
    return Graph("loose", tensors=tuple(Declared("input", t) for t in inputs), ops=ops)


def graph_of(seed: int) -> Graph:
    """Return a random graph, of one kind or another."""
    return loose_graph(seed) if seed % 3 else random_graph(seed, 24)


def conflict(a: Op, b: Op) -> bool:
    """Tell whether a later op depends directly on an earlier one."""
    x, y = effects(a), effects(b)
    names = {t.name for op in a.walk() for t in op.outputs}
    return (
        any(overlap(t, u) for t in x.writes for u in (*y.reads, *y.writes))
        or any(overlap(t, u) for t in x.reads for u in y.writes)
        or (x.random and y.random)
        or x.barrier
        or y.barrier
        or any(t.name in names for op in b.walk() for t in op.inputs)
    )


def chosen(graph: Graph, seed: int) -> list[list[Op]]:
    """Return some groups of leaves, no op in two."""
    chance = random.Random(seed)
    leaves = list(graph.leaves())
    picked = chance.sample(leaves, min(len(leaves), chance.randrange(1, 6)))
    picked.sort(key=leaves.index)
    cut = chance.randrange(1, len(picked) + 1) if chance.random() < 0.5 else len(picked)
    return [group for group in (picked[:cut], picked[cut:]) if group]


def whole(groups: list[list[Op]]) -> Op:
    """Return an op that takes and gives all that the members take and give."""
    members = [op for group in groups for op in group]
    made = [t for op in members for t in op.outputs]
    held = {t.name for t in made}
    taken = {t.name: t for op in members for t in op.inputs if t.name not in held}
    written = {name for op in members for name in op.written} - held
    return Op("irgraph.whole", tuple(taken.values()), tuple(made), written=frozenset(written))


def reachable(leaves: list[Op], groups: list[list[Op]]) -> bool:
    """Tell, by trying every pair, whether a path ties the groups or leaves one and returns."""
    owner = {op: i for i, group in enumerate(groups) for op in group}
    reached: list[set[int]] = [set() for _ in leaves]
    for j, later in enumerate(leaves):
        mine = owner.get(later, -1)
        for i in range(j):
            if not conflict(leaves[i], later):
                continue
            other = owner.get(leaves[i], -1)
            found = reached[i] if other < 0 else {other}
            if mine < 0:
                reached[j] |= found
            elif (other < 0 and found) or other not in (-1, mine):
                return True
    return False


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 10**9))
def test_a_fusion_keeps_every_dependence_and_only_knots_are_refused(seed: int) -> None:
    graph = graph_of(seed)
    groups = chosen(graph, seed)
    leaves = list(graph.leaves())
    try:
        fusion = fuse(graph, groups, whole(groups))
    except RefusedError as error:
        other = ("cannot be separated", "on different streams")
        assert any(word in error.reason for word in other) or reachable(leaves, groups)
        return
    assert not reachable(leaves, groups)
    members = {op for group in groups for op in group}
    place = {op: i for i, op in enumerate(fusion.graph.leaves())}
    where = {op: place[fusion.op if op in members else op] for op in kept(leaves, place, members)}
    for j, later in enumerate(leaves):
        for earlier in leaves[:j]:
            both = earlier in where and later in where
            same = earlier in members and later in members
            if both and not same and conflict(earlier, later):
                assert where[earlier] < where[later]


def kept(leaves: list[Op], place: Collection[Op], members: Collection[Op]) -> Iterator[Op]:
    """Yield the leaves that are still there, members as the op that took their place."""
    return (op for op in leaves if op in members or op in place)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_nothing_but_the_members_is_lost(seed: int) -> None:
    graph = graph_of(seed)
    groups = chosen(graph, seed)
    try:
        fusion = fuse(graph, groups, whole(groups))
    except RefusedError:
        return
    members = {op for group in groups for op in group}
    before = sorted(op.name for op in graph.leaves() if op not in members)
    after = sorted(op.name for op in fusion.graph.leaves() if op is not fusion.op)
    assert after == before


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 10**9))
def test_groups_part_into_sets_that_can_be_fused(seed: int) -> None:
    graph = graph_of(seed)
    groups = [[op] for group in chosen(graph, seed) for op in group]
    parting = partition(graph, groups)
    assert sorted([*parting.knotted, *(i for s in parting.sets for i in s)]) == list(
        range(len(groups))
    )
    for some in parting.sets:
        assert not reachable(list(graph.leaves()), [groups[i] for i in some])


def line(count: int) -> Graph:
    """Return a chain of ops."""
    return model(
        "input %x0 : f32[4] in $x0\n"
        + "".join(f"%x{k + 1} = aten.neg(%x{k}) : f32[4] in $x{k + 1}\n" for k in range(count))
    )


def test_members_that_are_not_in_the_graph_are_an_error() -> None:
    with pytest.raises(ValueError, match="no ops of this graph"):
        fuse(line(2), [[line(2).ops[0]]], Op("irgraph.whole"))


def test_a_new_op_runs_where_its_first_member_ran() -> None:
    graph = model(
        "input %x : f32[4] in $x\n"
        '%y = aten.neg(%x) : f32[4] in $y on backward/s in module "a.b.c" phase backward\n'
        '%z = aten.neg(%y) : f32[4] in $z on main/s in module "a.b.d" phase optimizer\n'
    )
    made = fuse(graph, [list(graph.ops)], Op("irgraph.whole")).op
    assert (made.thread, made.stream, made.module, made.phase) == (
        "backward",
        "s",
        "a.b",
        "backward",
    )


def test_origins_are_kept_in_short() -> None:
    graph = model(
        "input %x0 : f32[4] in $x0\n"
        + "".join(
            f'%x{k + 1} = aten.neg(%x{k}) : f32[4] in $x{k + 1} from "et#{k}"\n' for k in range(5)
        )
    )
    made = fuse(graph, [list(graph.ops)], Op("irgraph.whole"), caller="mine").op
    assert made.origin == "mine: 5 x aten.neg (et#0 et#1 et#2 and 2 more)"


def test_an_assumption_does_not_cover_what_must_move() -> None:
    graph = model(
        "input %x : f32[4] in $x\ninput %z : f32[4] in $z\n"
        "%a = aten.neg(%x) : f32[4] in $a\n"
        "%u = aten.neg(%a) : f32[4] in $u\n"
        "custom.opaque(%z)\n"
        "%j = aten.abs(%z) : f32[4] in $j\n"
        "%b = aten.neg(%j) : f32[4] in $b\n"
    )
    members = [[graph.ops[0]], [graph.ops[4]]]
    with pytest.raises(RefusedError, match="an op that must move after the new op depends on"):
        fuse(graph, members, Op("irgraph.whole"), assuming="it writes nothing")


IN = "input %x : f32[4] in $x\ninput %z : f32[4] in $z\n"
PLACED = "; placed at its first member"


@pytest.mark.parametrize(
    ("between", "groups", "why"),
    [
        (0, 2, "2 independent groups, nothing in between" + PLACED),
        (0, 1, "one group, nothing in between" + PLACED),
        (1, 2, "2 independent groups, no dependence path through the 1 op in between" + PLACED),
        (2, 1, "one group, no dependence path through the 2 ops in between" + PLACED),
    ],
)
def test_a_fusion_says_why_it_is_legal(between: int, groups: int, why: str) -> None:
    others = "".join(f"%o{k} = aten.abs(%z) : f32[4] in $o{k}\n" for k in range(between))
    first, last = (f"%{name} = aten.neg(%x) : f32[4] in ${name}\n" for name in "ab")
    graph = model(IN + first + others + last)
    members = [graph.ops[0], graph.ops[-1]]
    chosen = [[op] for op in members] if groups == 2 else [members]
    assert fuse(graph, chosen, Op("irgraph.whole")).legal == why


@pytest.mark.parametrize(("count", "moved"), [(1, "1 consumer moves"), (2, "2 consumers move")])
def test_consumers_move_behind_what_the_new_op_needs(count: int, moved: str) -> None:
    users = "".join(f"%u{k} = aten.neg(%a) : f32[4] in $u{k}\n" for k in range(count))
    graph = model(
        f"{IN}%a = aten.neg(%x) : f32[4] in $a\n{users}"
        "%j = aten.abs(%z) : f32[4] in $j\n%b = aten.neg(%j) : f32[4] in $b\n"
    )
    fusion = fuse(graph, [[graph.ops[0]], [graph.ops[-1]]], Op("irgraph.whole"))
    assert fusion.legal.endswith(f"placed after aten.abs, which it needs; {moved} after it")
    names = [op.name for op in fusion.graph.ops]
    assert names == ["aten.abs", "irgraph.whole", *["aten.neg"] * count]


def test_an_assumption_passes_one_op_and_is_noted() -> None:
    graph = model(
        f"{IN}%a = aten.neg(%x) : f32[4] in $a\ncustom.opaque(%z)\n"
        "%b = aten.neg(%z) : f32[4] in $b\n"
    )
    members = [[graph.ops[0]], [graph.ops[2]]]
    with pytest.raises(RefusedError, match=r"a dependence path leaves aten\.neg and returns"):
        fuse(graph, members, Op("irgraph.whole"))
    fusion = fuse(graph, members, Op("irgraph.whole"), assuming="it writes nothing")
    assert fusion.assumed is graph.ops[1]
    assert fusion.op.notes == {"assuming": "it writes nothing"}
    free = fuse(graph, [[graph.ops[0]]], Op("irgraph.whole"), assuming="it writes nothing")
    assert free.assumed is None and not free.op.notes
    tied = model(f"{IN}%a = aten.neg(%x) : f32[4] in $a\n%b = aten.neg(%a) : f32[4] in $b\n")
    both = [[tied.ops[0]], [tied.ops[1]]]
    with pytest.raises(RefusedError, match="a dependence path"):
        fuse(tied, both, Op("irgraph.whole"), assuming="nothing lies between")


def test_a_user_of_what_is_assumed_away_does_not_hold_what_need_not_move() -> None:
    """Only what must move behind the new op may not depend on the op that is passed."""
    graph = model(
        f"{IN}%a = aten.neg(%x) : f32[4] in $a\n"
        "custom.opaque(%z)\n"
        "%j = aten.abs(%z) : f32[4] in $j\n"
        "%b = aten.neg(%j) : f32[4] in $b\n"
    )
    fusion = fuse(graph, [[graph.ops[0]], [graph.ops[3]]], Op("irgraph.whole"), assuming="pure")
    assert [op.name for op in fusion.graph.ops] == ["custom.opaque", "aten.abs", "irgraph.whole"]


def test_three_origins_are_shown_without_a_rest() -> None:
    graph = model(
        "input %x0 : f32[4] in $x0\n"
        + "".join(
            f'%x{k + 1} = aten.neg(%x{k}) : f32[4] in $x{k + 1} from "et#{k}"\n' for k in range(3)
        )
    )
    made = fuse(graph, [list(graph.ops)], Op("irgraph.whole"), caller="mine").op
    assert made.origin == "mine: 3 x aten.neg (et#0 et#1 et#2)"
    bare = model(f"{IN}%a = aten.neg(%x) : f32[4] in $a\n")
    assert fuse(bare, [list(bare.ops)], Op("irgraph.whole"), caller="mine").op.origin.startswith(
        "mine: 1 x aten.neg"
    )


def test_members_on_several_streams_are_told_by_their_streams() -> None:
    graph = model(
        "stream s @gpu0\ninput %x : f32[4] in $x\n"
        "%a = aten.neg(%x) : f32[4] in $a\n%b = aten.neg(%x) : f32[4] in $b on main/s\n"
    )
    with pytest.raises(RefusedError, match="they run on different streams") as caught:
        fuse(graph, [list(graph.ops)], Op("irgraph.whole"))
    told = [said for _, said in caught.value.notes]
    assert told == ["aten.neg runs on the default stream", "aten.neg runs on s"]


@pytest.mark.parametrize("swapped", [False, True])
def test_a_unit_that_cannot_be_separated_is_shown_with_both_ties(swapped: bool) -> None:
    """It needs one member and is needed by another, by different ops in it."""
    inside = ["  %u = aten.neg(%a) : f32[4] in $u\n", "  %j = aten.abs(%z) : f32[4] in $j\n"]
    body = "".join(reversed(inside) if swapped else inside)
    graph = model(
        f"{IN}%a = aten.neg(%x) : f32[4] in $a\nautograd.X() {{\n{body}}}\n"
        "%b = aten.neg(%j) : f32[4] in $b\n"
    )
    with pytest.raises(RefusedError, match="cannot be separated from those that need it") as caught:
        fuse(graph, [[graph.ops[0]], [graph.ops[2]]], Op("irgraph.whole"))
    told = " ".join(said for _, said in caught.value.notes)
    assert "%a" in told and "%j" in told


def test_ties_are_sought_between_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ties the sets of a chain grows with the chain, not with its square."""
    import irgraph.verbs.partition as module

    looked = 0
    entangled = module.entangling_chain

    def counted(part: Segment) -> list[Dependence]:
        nonlocal looked
        looked += len(part.atoms)
        return entangled(part)

    monkeypatch.setattr(module, "entangling_chain", counted)
    count = 50
    lines = [f"%h{i + 1} = aten.mm(%h{i}, %w) : f32[4, 4] in $b{i + 1}" for i in range(count)]
    head = 'model "m" {}\n\ndevice @gpu0 "v100"\n'
    given = "input %h0 : f32[4, 4] in $b0\nparam %w : f32[4, 4] in $w\n\n"
    graph = parse(head + given + "\n".join(lines) + "\n")
    entry = run(load_script("apply batch-gemm"), graph).report.entries[0]
    assert len(entry.refused) == count
    assert 0 < looked <= 4 * count


@pytest.mark.parametrize(
    ("modules", "shared"),
    [
        (("net.top.0", "net.top.1"), "net.top"),
        (("net.top", "net.top.1"), "net.top"),
        (("net.top.0", "net.bottom.0"), "net"),
        (("net", "other"), ""),
    ],
)
def test_a_new_op_belongs_to_the_innermost_module_of_all_members(
    modules: tuple[str, str], shared: str
) -> None:
    graph = line(2)
    ops = [replace(op, module=m) for op, m in zip(graph.ops, modules, strict=True)]
    graph = replace(graph, ops=tuple(ops))
    new = Op("irgraph.pair", ops[0].operands, ops[1].results)
    assert fuse(graph, [ops], new).op.module == shared
