"""Runs the models of several ranks in one process, in the order in which each launches its ops.

A rank runs up to its next collective, or to a receive for which nothing was sent yet. A collective
is computed when all ranks of its process group have reached it. Sent tensors are queued until the
other rank receives them, in order.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from irgraph.diagnostics import fail
from irgraph.execute.machine import Inspect, Machine, Watch, precision, without_autograd
from irgraph.execute.random_values import TAME, Drawer
from irgraph.execute.ranks.collectives import computations
from irgraph.execute.records import Result
from irgraph.execute.torch_values import Torch
from irgraph.ir.graph import Graph
from irgraph.ir.op import Op
from irgraph.ir.ranks import PEERS, group_of, groups_of, peer_of
from irgraph.ops.live_out import is_label

Mail: TypeAlias = dict[tuple[int, int], deque[list[Torch]]]
"""Queues of tensors that were sent and not yet received, by sending and receiving rank."""


def run_ranks(
    models: Sequence[Graph],
    rank_inputs: Sequence[Mapping[str, Any]],
    seeds: Sequence[int],
    manner: str = TAME,
    watch: Watch | None = None,
    inspect: Inspect | None = None,
) -> list[Result]:
    """Run the models of all ranks; ``rank_inputs`` and ``seeds`` are the initial values of each.

    Raises:
        IrgraphError: an op cannot be executed, the ranks reach different collectives, wait for each
            other, or send tensors that are not received.
    """
    with without_autograd(precision(models[0])):
        ranks = [
            _Rank(number, graph, values, Drawer(graph, seed, manner))
            for number, (graph, values, seed) in enumerate(
                zip(models, rank_inputs, seeds, strict=True)
            )
        ]
        for rank in ranks:
            rank.machine.watch, rank.machine.inspect = watch, inspect
        mail: Mail = defaultdict(deque)
        while not all(rank.done for rank in ranks):
            progress = [rank.advance(mail) for rank in ranks]
            if not any([*progress, *_run_collectives(ranks)]):
                raise fail(f"ranks wait for each other: {', '.join(map(str, ranks))}")
    for (source, target), unreceived in mail.items():
        if unreceived:
            message = f"rank {source} sends {len(unreceived)} times more to rank {target}"
            raise fail(f"ranks do not match: {message} than that receives")
    return [Result(r.machine.values, r.machine.initial, r.machine.read) for r in ranks]


class _Rank:
    """Execution of one rank.

    Attributes:
        op: the op at which it waits, if any.
        done: whether it has run to its end.
    """

    def __init__(
        self, number: int, graph: Graph, values: Mapping[str, Any], drawer: Drawer
    ) -> None:
        self.number, self.graph, self.groups = number, graph, groups_of(graph)
        self.machine = Machine(graph, values, drawer, excluded=(*computations(), *PEERS))
        self.op: Op | None = None
        self.done = False
        self._ops = iter(op for op in graph.leaves() if not is_label(op))

    def __str__(self) -> str:
        """Return a description of the op at which the rank waits."""
        if self.op is None:
            return f"rank {self.number} has ended"
        peer = peer_of(self.op)
        activity = f"a receive from rank {self.other(self.op)}" if peer else self.op.name
        return f"rank {self.number} is at {activity}"

    @property
    def at_collective(self) -> bool:
        """Whether the rank has reached a collective."""
        return self.op is not None and peer_of(self.op) is None

    def members(self, op: Op) -> tuple[int, ...]:
        """Return the ranks of a collective's process group, none if the model names none."""
        return self.groups.get(group_of(op), ())

    def other(self, op: Op) -> int:
        """Return the rank to which an op sends, or from which it receives."""
        peer = peer_of(op)
        assert peer is not None
        members = self.members(op)
        return members[peer[1]] if members else peer[1]

    def advance(self, mail: Mail) -> bool:
        """Run up to the next op that must wait; return whether any ran."""
        progressed = False
        while not self.done:
            self.op = self.op or next(self._ops, None)
            if self.op is None:
                self.done = True
                return True
            if not self._step(self.op, mail):
                return progressed
            self.op, progressed = None, True
        return progressed

    def _step(self, op: Op, mail: Mail) -> bool:
        """Run an op; return whether it could run now."""
        if op.name in computations():
            return False
        if op.name not in PEERS:
            self.machine.step(op)
            return True
        other = self.other(op)
        values = [self.machine.values[tensor.name] for tensor in op.inputs]
        if PEERS[op.name][0] == "to":
            mail[self.number, other].append([value.clone() for value in values])
        else:
            waiting = mail[other, self.number]
            if not waiting:
                return False
            self._receive(op, waiting.popleft(), values)
        self.machine.finish(op, None)
        return True

    def _receive(self, op: Op, sent: Sequence[Torch], targets: Sequence[Torch]) -> None:
        shapes = [[(v.dtype, tuple(v.shape)) for v in values] for values in (sent, targets)]
        if shapes[0] != shapes[1]:
            direction = f"rank {self.other(op)} sends to rank {self.number}"
            raise fail(f"ranks do not match: what {direction} is not what that receives")
        for value, target in zip(sent, targets, strict=True):
            target.copy_(value)


def _run_collectives(ranks: Sequence[_Rank]) -> Iterator[bool]:
    """Compute the collectives that all ranks of their group have reached; yield for each."""
    for rank in ranks:
        if rank.op is None or not rank.at_collective:
            continue
        numbers = rank.members(rank.op) or range(len(ranks))
        members = [ranks[number] for number in numbers]
        if all(member.at_collective or member.done for member in members):
            _run_collective(members)
            yield True


def _run_collective(members: Sequence[_Rank]) -> None:
    """Compute a collective that all ranks of a group have reached."""
    names = ["nothing" if member.op is None else member.op.name for member in members]
    groups = [member.op is not None and member.members(member.op) for member in members]
    if len(set(names)) > 1 or len(set(groups)) > 1:
        index = next(
            (n for n, name in enumerate(names) if name != names[0]), groups.index(groups[-1])
        )
        first, other = members[0].number, members[index].number
        ops_text = f"{names[0]} on rank {first} and {names[index]} on rank {other}"
        raise fail(f"ranks do not match: {ops_text}")
    ops = [member.op for member in members if member.op is not None]
    values = [
        [member.machine.values[tensor.name] for tensor in op.inputs]
        for member, op in zip(members, ops, strict=True)
    ]
    try:
        results = computations()[ops[0].name](ops, values)
    except (RuntimeError, ValueError) as error:
        first_line = str(error).partition("\n")[0]
        message = f"{ops[0].name}: what the ranks bring does not fit together: {first_line}"
        raise fail(message) from None
    for member, op, value in zip(members, ops, results, strict=True):
        member.machine.finish(op, value)
        member.op = None
