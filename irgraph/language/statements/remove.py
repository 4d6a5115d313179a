"""``remove`` takes ops out; users of a result may use another tensor instead."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from irgraph.ir.op import Op
from irgraph.ir.tensor import Tensor
from irgraph.language.checking.checker import Checker
from irgraph.language.clauses import Swap, assuming_clause, check_phase, clause, join_words
from irgraph.language.expressions.values import spell
from irgraph.language.patterns.index import Index
from irgraph.language.patterns.match import Match
from irgraph.language.patterns.nodes import Selection, Series
from irgraph.language.patterns.select import SelectionResult
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, State, call_of
from irgraph.language.statement import Statement
from irgraph.verbs.autograd.bind import has_backward
from irgraph.verbs.autograd.splice import with_backward
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.remove import RemainingOps, Removal, check_removal, is_order_independent, remove
from irgraph.verbs.stream_order import StreamOrder


@dataclass(frozen=True)
class Remove(Statement):
    """``remove selection using %x for %y, ... and backward assuming "..."``."""

    selection: Selection
    swaps: tuple[Swap, ...] = ()
    phase: str = ""
    assuming: str = ""

    def __str__(self) -> str:
        swaps = clause("using", self.swaps)
        both = clause("and", self.phase)
        return join_words("remove", self.selection, swaps, both, assuming_clause(self.assuming))

    def check(self, check: Checker) -> None:
        """Check the selection, and that it binds what is swapped."""
        check_phase(check, self.phase, self.place)
        check.swaps(self.swaps, check.selection(self.selection))

    def instead(self, name: str) -> str:
        """Return what to write where a result is still in use."""
        return f"give its users another tensor: using %... for %{name}"

    def run(self, frame: Frame) -> Entry:
        """Take out what matches.

        Removals that swap tensors of the same buffers are made one after the other, each checked
        against the graph that those before it left. Single ops go from the last to the first, so
        that what only those read that go can go with them.
        """
        state = frame.state
        chosen: list[SelectionResult] = []
        done: list[Removal] = []
        assumptions: list[str] = []
        while True:
            batch = _Batch(self, frame)
            chosen.append(batch.collect())
            state.graph = remove(state.graph, batch.removals)
            for removal in batch.removals:
                state.drop(removal.ops, [old.name for old, _ in removal.swaps], self)
            done += batch.removals
            assumptions += batch.assumed
            if not (batch.removals and batch.waiting):
                break
        swapped = "users read a tensor of the same type instead"
        legal = swapped if self.swaps else "no result is used"
        if any(removal.zeroed for removal in done):
            legal += "; parameters of removed ops get gradients of zeros"
        return replace(
            frame.entry_of(self, chosen[0], self.selection),
            groups=len(done),
            replaced=sum(len(removal.ops) for removal in done),
            legal=(legal,) if done else (),
            refused=tuple(batch.refusals.found),
            assumptions=tuple(assumptions),
        )


@dataclass
class _Batch:
    """Removals of different buffers, which can be made together."""

    statement: Remove
    frame: Frame
    removals: list[Removal] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    waiting: bool = False

    def __post_init__(self) -> None:
        graph = self.frame.state.graph
        self.index = self.frame.state.index
        self.order, self.left = StreamOrder(graph), RemainingOps(graph)
        self.refusals = Refusals(self.frame, self.statement.place, self.statement.selection.many)

    def collect(self) -> SelectionResult:
        """Collect the removals of all matches; some may have to wait for the next batch."""
        selection, swaps = self.statement.selection, self.statement.swaps
        alone = isinstance(selection.pattern, Series) and len(selection.pattern.ops) == 1
        if alone and selection.many and not swaps:
            selected = self.frame.select(selection, going=self._goes)
            self.refusals.found.reverse()
            return selected
        selected = self.frame.select(selection)
        given: set[str] = set()
        taken: set[str] = set()
        shared = False
        for match in selected.matches:
            removal = self._attempted(match)
            if removal is None:
                continue
            olds, news = ({pair[i].buffer for pair in removal.swaps} for i in (0, 1))
            apart = is_order_independent(self.frame.state.graph, removal) and not olds & news
            touched = olds if apart else olds | news
            if (olds | news) & taken or touched & given:
                self.waiting = True
                continue
            shared = shared or bool(news & given)
            if self._made(removal):
                taken |= touched
                given |= news
        self.waiting = self.waiting or (shared and bool(self.refusals.found))
        return selected

    def _goes(self, match: Match) -> bool:
        """Collect the removal of a match, if it is legal; return whether it is."""
        removal = self._attempted(match)
        return removal is not None and self._made(removal)

    def _attempted(self, match: Match) -> Removal | None:
        with self.refusals.attempt(f"{call_of(self.index.ops[match.root])} is not removed"):
            return self._removal(match)
        return None

    def _made(self, removal: Removal) -> bool:
        """Collect a removal if it is legal; return whether it is."""
        with self.refusals.attempt(f"{call_of(removal.ops[0])} is not removed"):
            _check_kept(removal, self.frame.state, self.index)
            self._check(removal)
            self.removals.append(removal)
            self.left.drop(removal.ops)
            return True
        return False

    def _removal(self, match: Match) -> Removal:
        swaps = tuple(
            (self._tensor(match, swap.old), self._tensor(match, swap.new))
            for swap in self.statement.swaps
        )
        members = [self.index.ops[here] for here in match.ops]
        if swaps:
            going = [op for op in members if not _stays(op, members, swaps, self.index)]
            members = going or members  # that nothing can go is for the check to say
        removal, graph = Removal(tuple(members), swaps), self.frame.state.graph
        both = self.statement.phase and has_backward(graph)
        return with_backward(graph, removal) if both else removal

    def _tensor(self, match: Match, name: str) -> Tensor:
        value = match.values[name]
        if not isinstance(value, Tensor):
            raise RefusedError(f"%{name} is {spell(value)}, not a tensor")
        return value

    def _check(self, removal: Removal) -> None:
        """Check a removal, unless what its order depends on is assumed away."""
        try:
            check_removal(self.frame.state.graph, removal, self.left)
            self._check_streams(removal)
        except RefusedError as error:
            if not self.statement.assuming or not error.of_order:
                raise
            self.assumed.append(f"{call_of(removal.ops[0])}: {self.statement.assuming}")

    def _check_streams(self, removal: Removal) -> None:
        """Refuse to lose the order of what depends on each other across streams."""
        leaves = [leaf for op in removal.ops for leaf in op.leaves()]
        if any(leaf.name.startswith("sync.") for leaf in leaves):
            self.order.check(self.left.removed | {id(leaf) for leaf in leaves})


def _stays(
    op: Op, members: Sequence[Op], swaps: Sequence[tuple[Tensor, Tensor]], index: Index
) -> bool:
    """Return whether a member is needed by others, although they were given other results."""
    made = {t.name for inner in op.walk() for t in inner.outputs}
    if made & {old.name for old, _ in swaps}:
        return False
    inside = [index.position[id(member)] for member in members]
    users = {i for name in made for i in index.users.get(name, ()) if not index.ops[i].body}
    return any(not any(index.is_inside(i, member) for member in inside) for i in users)


def _check_kept(removal: Removal, state: State, index: Index) -> None:
    """Refuse what would take away a result that some op needs in the end."""
    rewired = {old.name for old, _ in removal.swaps}
    for tensor in (t for op in removal.ops for inner in op.walk() for t in inner.outputs):
        if tensor.name in state.kept and tensor.name not in rewired:
            users = [index.ops[i] for i in index.users.get(tensor.name, [])]
            at = [(op, f"{op.name} uses %{tensor.name}") for op in users if not op.body]
            raise RefusedError(f"its result %{tensor.name} is still in use", at[-1:])
