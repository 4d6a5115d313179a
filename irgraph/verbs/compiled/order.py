"""Which ops run together: kernels put in an order that keeps every dependence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from irgraph.ir.dependence import Dependence
from irgraph.verbs.compiled.inductor import Kernel


class Group(Struct, frozen=True):
    """Ops that run together.

    Attributes:
        members: their positions, in order.
        launches: kernels that compute them, 0 where an op runs as it would outside.
    """

    members: tuple[int, ...]
    launches: int = 0


def groups_of(
    kernels: Sequence[Kernel], alone: Sequence[bool], views: Mapping[int, int]
) -> list[Group]:
    """Return groups of ops, each op in one of them.

    An op that several kernels compute anew belongs to the first. A kernel all of whose ops belong
    to earlier ones is a further launch of the one that has most of them. A view goes with what made
    the memory.

    Args:
        kernels: Inductor's, in order.
        alone: for each op, whether it stays outside of kernels, as views and a library's ops do.
        views: from the position of a view to that of the op that made what it is a view of.
    """
    owner: dict[int, int] = {}
    members: list[list[int]] = []
    launches: list[int] = []
    for kernel in kernels:
        mine = [i for i in kernel.members if not alone[i]]
        if kernel.library or not mine:
            continue
        fresh = [i for i in mine if i not in owner]
        if fresh:
            owner.update(dict.fromkeys(fresh, len(members)))
            members.append(fresh)
            launches.append(1)
        else:
            held = [owner[i] for i in mine]
            launches[max(held, key=held.count)] += 1
    for view, made in sorted(views.items()):
        if made in owner:
            owner[view] = owner[made]
            members[owner[view]].append(view)
    single = [Group((i,)) for i in range(len(alone)) if i not in owner]
    return [*(Group(tuple(sorted(m)), n) for m, n in zip(members, launches, strict=True)), *single]


def ordered(groups: Sequence[Group], ties: Sequence[Dependence]) -> list[Group]:
    """Return groups in an order that keeps all dependences between their ops.

    A group that depends on itself by way of another is split. Early ops come first.
    """
    before: dict[int, set[int]] = {i: set() for group in groups for i in group.members}
    for tie in ties:
        before[tie.after].add(tie.before)
    waiting = sorted(groups, key=lambda group: group.members[0])
    done: set[int] = set()
    found: list[Group] = []
    while waiting:
        group = next((g for g in waiting if _ready(g, before, done)), None)
        if group is None:
            first, rest = _split(waiting[0], before, done)
            waiting[:1] = [first, rest]
            waiting.sort(key=lambda group: group.members[0])
            continue
        waiting.remove(group)
        done.update(group.members)
        found.append(group)
    return found


def _ready(group: Group, before: dict[int, set[int]], done: set[int]) -> bool:
    return all(before[i] <= done.union(group.members) for i in group.members)


def _split(group: Group, before: dict[int, set[int]], done: set[int]) -> tuple[Group, Group]:
    """Return what of a group can run now, and the rest; its first op can where it is the first."""
    now = list(_now(group, before, done))
    rest = tuple(i for i in group.members if i not in now)
    return Group(tuple(now), group.launches), Group(rest, max(group.launches, 1))


def _now(group: Group, before: dict[int, set[int]], done: set[int]) -> Iterator[int]:
    there = set(done)
    for i in group.members:
        if before[i] <= there:
            there.add(i)
            yield i
