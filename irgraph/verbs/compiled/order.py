"""Groups of ops that run together, in an order that preserves every dependence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from irgraph.ir.dependence import Dependence
from irgraph.verbs.compiled.inductor import Kernel


class Group(Struct, frozen=True):
    """Ops that run together.

    Attributes:
        members: their positions, in order.
        launches: kernels that compute them, 0 for an op that runs as outside of compiled code.
    """

    members: tuple[int, ...]
    launches: int = 0


def groups_of(
    kernels: Sequence[Kernel], is_outside: Sequence[bool], views: Mapping[int, int]
) -> list[Group]:
    """Return groups of ops, each op in one of them.

    An op that several kernels compute is in the group of the first one. A kernel all of whose ops
    are in earlier groups is a further launch of the group that has most of them. A view is in the
    group of the op that made the memory.

    Args:
        kernels: Inductor's, in order.
        is_outside: for each op, whether it stays outside of kernels, as views and library ops do.
        views: from the position of a view to the position of the op that made its memory.
    """
    owner: dict[int, int] = {}
    members: list[list[int]] = []
    launches: list[int] = []
    for kernel in kernels:
        own_members = [i for i in kernel.members if not is_outside[i]]
        if kernel.library or not own_members:
            continue
        new_members = [i for i in own_members if i not in owner]
        if new_members:
            owner.update(dict.fromkeys(new_members, len(members)))
            members.append(new_members)
            launches.append(1)
        else:
            owners = [owner[i] for i in own_members]
            launches[max(owners, key=owners.count)] += 1
    for view, maker in sorted(views.items()):
        if maker in owner:
            owner[view] = owner[maker]
            members[owner[view]].append(view)
    single_groups = [Group((i,)) for i in range(len(is_outside)) if i not in owner]
    return [
        *(Group(tuple(sorted(m)), n) for m, n in zip(members, launches, strict=True)),
        *single_groups,
    ]


def order_groups(groups: Sequence[Group], ties: Sequence[Dependence]) -> list[Group]:
    """Return groups in an order that preserves all dependences between their ops.

    A group that depends on itself via another is split. Early ops come first.
    """
    return list(_Order(groups, ties).run())


class _Order:
    """Groups that wait for ops of others; groups that wait for none run, the earliest first."""

    def __init__(self, groups: Sequence[Group], ties: Sequence[Dependence]) -> None:
        self._before: dict[int, set[int]] = defaultdict(set)
        self._after: dict[int, set[int]] = defaultdict(set)
        for tie in ties:
            self._before[tie.after].add(tie.before)
            self._after[tie.before].add(tie.after)
        self._done: set[int] = set()
        self._owner: dict[int, Group] = {}
        self._needs: dict[Group, set[int]] = {}
        self._ready: list[tuple[int, Group]] = []
        self._waiting: list[tuple[int, Group]] = []
        for group in groups:
            self._add(group)

    def _add(self, group: Group) -> None:
        needs = set().union(*(self._before[i] for i in group.members))
        self._needs[group] = needs - self._done - set(group.members)
        self._owner.update(dict.fromkeys(group.members, group))
        heappush(self._waiting, (group.members[0], group))
        if not self._needs[group]:
            heappush(self._ready, (group.members[0], group))

    def run(self) -> Iterator[Group]:
        """Yield all groups in order."""
        while self._needs:
            if self._ready:
                group = heappop(self._ready)[1]
                del self._needs[group]
            else:
                group = self._split(self._first())
            self._finish(group)
            yield group

    def _first(self) -> Group:
        """Return the group of the earliest op that has not run."""
        while self._waiting[0][1] not in self._needs:
            heappop(self._waiting)
        return self._waiting[0][1]

    def _split(self, group: Group) -> Group:
        """Return the part of a group that can run now, as its first op can; the rest waits."""
        runnable: list[int] = []
        for i in group.members:
            if not self._before[i].difference(self._done, runnable):
                runnable.append(i)
        del self._needs[group]
        rest = tuple(i for i in group.members if i not in runnable)
        self._add(Group(rest, min(group.launches, 1)))
        return Group(tuple(runnable), group.launches)

    def _finish(self, group: Group) -> None:
        self._done.update(group.members)
        for after in {after for i in group.members for after in self._after[i]} - self._done:
            dependent = self._owner[after]
            if self._needs[dependent]:
                self._needs[dependent].difference_update(group.members)
                if not self._needs[dependent]:
                    heappush(self._ready, (dependent.members[0], dependent))
