"""Runs the statements that are not ``fuse``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from irgraph.ir.op import Op, Value
from irgraph.ir.tensor import Tensor
from irgraph.language.match import Match
from irgraph.language.report import op_place
from irgraph.language.select import Handle, Selected
from irgraph.language.state import (
    ILLEGAL,
    Frame,
    State,
    call_of,
    entry,
    entry_of,
    illegal,
    members_of,
    nothing_matched,
    refusal,
)
from irgraph.language.tree import Apply, Call, Expect, Find, Let, Pass, Remove
from irgraph.language.values import spell
from irgraph.text.diagnostics import Diagnostic, IrgraphError, fail
from irgraph.verbs.ordered import Ordered
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import Removal, check_removal, remove

SHOWN = 3


def run_let(statement: Let, state: State, frame: Frame) -> None:
    """Give a value a name."""
    frame.names[statement.name] = state.value(statement.value, frame)


def run_find(statement: Find, state: State, frame: Frame) -> None:
    """Give the ops that match a name."""
    selected = state.select(statement.selection, frame)
    ops = [op for match in selected.matches for op in members_of(selected, match.ops)]
    frame.handles[statement.name] = Handle(tuple(ops))
    state.entries.append(entry_of(statement, frame, selected, statement.selection))


def run_expect(statement: Expect, state: State, frame: Frame) -> None:
    """Fail (exit code 1) where another number of ops match."""
    selected = state.select(statement.selection, frame, all_=True)
    if selected.total == statement.count:
        state.entries.append(replace(entry(statement, frame), matched=selected.total))
        return
    wanted = statement.count or "no"
    message = f"expected {wanted} {statement.selection.pattern}, found {selected.total}"
    notes = [
        Diagnostic(call_of(op), op_place(op, state.graph), severity="note")
        for match in selected.matches[:SHOWN]
        for op in [selected.op(match.root)]
    ]
    if not selected.total:
        notes = [replace(nothing_matched(selected, statement.selection), severity="note")]
    raise IrgraphError((Diagnostic(message, statement.place, tuple(notes)),), ILLEGAL)


def arguments_of(call: Call, called: Pass, state: State, frame: Frame) -> dict[str, Value]:
    """Return the values of a pass's parameters for a call."""
    given = {name: state.value(value, frame) for name, value in call.arguments}
    for parameter in called.parameters:
        if parameter.name not in given and parameter.default is not None:
            given[parameter.name] = state.value(parameter.default, Frame())
    for parameter in called.parameters:
        value = given[parameter.name]
        if parameter.type == "int" and (not isinstance(value, int) or isinstance(value, bool)):
            raise fail(f"{parameter.name!r} takes a whole number, not {spell(value)}", call.place)
    return given


def frame_of(statement: Apply, state: State, frame: Frame) -> tuple[Pass, Frame]:
    """Return the pass that is applied, and the names that it sees."""
    called = state.passes[statement.call.name]
    names = arguments_of(statement.call, called, state, frame)
    return called, Frame(names, {}, called.name)


def run_remove(statement: Remove, state: State, frame: Frame) -> None:
    """Take out what matches; users of a result may use another tensor instead.

    Removals that swap tensors of the same buffers are made one after the other, each checked
    against the graph that those before it left.
    """
    selected = state.select(statement.selection, frame)
    first = selected
    refused: list[Diagnostic] = []
    assumptions: list[str] = []
    done: list[int] = []
    while True:
        batch, waiting, refused = _batch(statement, selected, state)
        state.graph = remove(state.graph, [removal for removal, _ in batch])
        for removal, assumed in batch:
            state.drop(removal.ops, [old.name for old, _ in removal.swaps], statement)
            assumptions += assumed
            done.append(len(removal.ops))
        if not (batch and waiting):
            break
        selected = state.select(statement.selection, frame)
    swapped = "users read a tensor of the same type instead"
    legal = swapped if statement.swaps else "no result is in use"
    state.entries.append(
        replace(
            entry_of(statement, frame, first, statement.selection),
            groups=len(done),
            replaced=sum(done),
            legal=(legal,) if done else (),
            refused=tuple(refused),
            assumptions=tuple(assumptions),
        )
    )


Checked = tuple[Removal, list[str]]


def _batch(
    statement: Remove, selected: Selected, state: State
) -> tuple[list[Checked], bool, list[Diagnostic]]:
    """Return removals of different buffers, whether others must wait, and what is refused."""
    batch: list[Checked] = []
    refused: list[Diagnostic] = []
    taken: set[str] = set()
    waiting = False
    syncs = _Syncs(Ordered(state.graph))
    for match in selected.matches:
        removal = _removal(statement, selected, match)
        buffers = {tensor.buffer for swap in removal.swaps for tensor in swap}
        if buffers & taken:
            waiting = True
            continue
        try:
            _check_kept(removal, state, selected)
            batch.append((removal, _check(removal, statement, state, syncs)))
            taken |= buffers
        except RefusedError as error:
            what = f"{call_of(removal.ops[0])} is not removed"
            diagnostic = refusal(error, what, statement.place, state.graph)
            if not statement.selection.many:
                raise illegal(diagnostic) from None
            refused.append(diagnostic)
    return batch, waiting, refused


def _removal(statement: Remove, selected: Selected, match: Match) -> Removal:
    def tensor(name: str) -> Tensor:
        value = match.values[name]
        if not isinstance(value, Tensor):
            raise fail(f"%{name} is {spell(value)}, not a tensor", statement.place)
        return value

    swaps = tuple((tensor(swap.old), tensor(swap.new)) for swap in statement.swaps)
    members = members_of(selected, match.ops)
    if swaps:
        going = [op for op in members if not _stays(op, members, swaps, selected)]
        members = going or members  # that nothing can go is for the check to say
    return Removal(tuple(members), swaps)


def _stays(
    op: Op, members: Sequence[Op], swaps: Sequence[tuple[Tensor, Tensor]], selected: Selected
) -> bool:
    """Tell whether a member is needed by others, although they were given other results."""
    index = selected.index
    made = {t.name for inner in op.walk() for t in inner.outputs}
    if made & {old.name for old, _ in swaps}:
        return False
    inside = [index.position[id(member)] for member in members]
    users = {i for name in made for i in index.users.get(name, ()) if not index.ops[i].body}
    return any(not any(index.inside(i, member) for member in inside) for i in users)


def _check_kept(removal: Removal, state: State, selected: Selected) -> None:
    """Refuse what would take away a result that some op needs in the end."""
    rewired = {old.name for old, _ in removal.swaps}
    index = selected.index
    for tensor in (t for op in removal.ops for inner in op.walk() for t in inner.outputs):
        if tensor.name in state.kept and tensor.name not in rewired:
            users = [index.ops[i] for i in index.users.get(tensor.name, [])]
            at = [(op, f"{op.name} uses %{tensor.name}") for op in users if not op.body]
            raise RefusedError(f"its result %{tensor.name} is still in use", at[-1:])


@dataclass
class _Syncs:
    """The order of a graph's streams, and the ids of what was taken from it so far."""

    order: Ordered
    gone: set[int] = field(default_factory=set)

    def check(self, removal: Removal) -> None:
        """Refuse to lose the order of what depends on each other across streams."""
        leaves = [leaf for op in removal.ops for leaf in op.leaves()]
        if any(leaf.name.startswith("sync.") for leaf in leaves):
            gone = {id(leaf) for leaf in leaves}
            self.order.check(self.gone | gone)
            self.gone |= gone


def _check(removal: Removal, statement: Remove, state: State, syncs: _Syncs) -> list[str]:
    """Check a removal; return what was assumed for it."""
    try:
        check_removal(state.graph, removal)
        syncs.check(removal)
    except RefusedError as error:
        if not statement.assuming or not error.of_order:
            raise
        return [f"{call_of(removal.ops[0])}: {statement.assuming}"]
    return []
