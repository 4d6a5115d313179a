"""``remove`` removes ops; users of a result may use another tensor instead."""

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
from irgraph.verbs.autograd.find_backward import has_backward
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
        phase_clause = clause("and", self.phase)
        return join_words(
            "remove", self.selection, swaps, phase_clause, assuming_clause(self.assuming)
        )

    def check(self, check: Checker) -> None:
        """Check the selection, and that it binds the swapped names."""
        check_phase(check, self.phase, self.place)
        check.swaps(self.swaps, check.selection(self.selection))

    def remedy(self, name: str) -> str:
        """Return a hint for a result that is still in use."""
        return f"give its users another tensor: using %... for %{name}"

    def run(self, frame: Frame) -> Entry:
        """Remove the ops that match.

        Removals that swap tensors of the same buffers are made in sequence, each checked against
        the graph after the ones before. Single ops are removed from the last to the first, so that
        an op whose results only removed ops read can be removed with them.
        """
        state = frame.state
        selections: list[SelectionResult] = []
        removals: list[Removal] = []
        assumptions: list[str] = []
        while True:
            batch = _Batch(self, frame)
            selections.append(batch.collect())
            state.graph = remove(state.graph, batch.removals)
            for removal in batch.removals:
                state.drop(removal.ops, [old.name for old, _ in removal.swaps], self)
            removals += batch.removals
            assumptions += batch.assumed
            if not (batch.removals and batch.has_waiting):
                break
        legal = "no result is used"
        if self.swaps:
            legal = "users read a tensor of the same type instead"
        if any(removal.zeroed for removal in removals):
            legal += "; parameters of removed ops get gradients of zeros"
        return replace(
            frame.entry_of(self, selections[0], self.selection),
            groups=len(removals),
            replaced=sum(len(removal.ops) for removal in removals),
            legal=(legal,) if removals else (),
            refused=tuple(batch.refusals.diagnostics),
            assumptions=tuple(assumptions),
        )


@dataclass
class _Batch:
    """Removals of different buffers, which are made together."""

    statement: Remove
    frame: Frame
    removals: list[Removal] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)
    has_waiting: bool = False

    def __post_init__(self) -> None:
        graph = self.frame.state.graph
        self.index = self.frame.state.index
        self.order, self.remaining = StreamOrder(graph), RemainingOps(graph)
        self.refusals = Refusals(self.frame, self.statement.place, self.statement.selection.many)

    def collect(self) -> SelectionResult:
        """Collect the removals of all matches; some may have to wait for the next batch."""
        selection, swaps = self.statement.selection, self.statement.swaps
        is_single = isinstance(selection.pattern, Series) and len(selection.pattern.ops) == 1
        if is_single and selection.many and not swaps:
            selected = self.frame.select(selection, try_remove=self._collect_removal)
            self.refusals.diagnostics.reverse()
            return selected
        selected = self.frame.select(selection)
        replacement_buffers: set[str] = set()
        touched_buffers: set[str] = set()
        has_shared = False
        for match in selected.matches:
            removal = self._attempt_removal(match)
            if removal is None:
                continue
            old_buffers, new_buffers = ({pair[i].buffer for pair in removal.swaps} for i in (0, 1))
            is_independent = (
                is_order_independent(self.frame.state.graph, removal)
                and not old_buffers & new_buffers
            )
            buffers = old_buffers if is_independent else old_buffers | new_buffers
            if (old_buffers | new_buffers) & touched_buffers or buffers & replacement_buffers:
                self.has_waiting = True
                continue
            has_shared = has_shared or bool(new_buffers & replacement_buffers)
            if self._collect(removal):
                touched_buffers |= buffers
                replacement_buffers |= new_buffers
        self.has_waiting = self.has_waiting or (has_shared and bool(self.refusals.diagnostics))
        return selected

    def _collect_removal(self, match: Match) -> bool:
        """Collect the removal of a match, if it is legal; return whether it is."""
        removal = self._attempt_removal(match)
        return removal is not None and self._collect(removal)

    def _attempt_removal(self, match: Match) -> Removal | None:
        with self.refusals.attempt(f"{call_of(self.index.ops[match.root])} is not removed"):
            return self._removal(match)
        return None

    def _collect(self, removal: Removal) -> bool:
        """Collect a removal if it is legal; return whether it is."""
        with self.refusals.attempt(f"{call_of(removal.ops[0])} is not removed"):
            _check_required(removal, self.frame.state, self.index)
            self._check(removal)
            self.removals.append(removal)
            self.remaining.drop(removal.ops)
            return True
        return False

    def _removal(self, match: Match) -> Removal:
        swaps = tuple(
            (self._tensor(match, swap.old), self._tensor(match, swap.new))
            for swap in self.statement.swaps
        )
        members = [self.index.ops[position] for position in match.ops]
        if swaps:
            removable = [op for op in members if not _is_needed(op, members, swaps, self.index)]
            members = removable or members  # if none can be removed, the check reports it
        removal, graph = Removal(tuple(members), swaps), self.frame.state.graph
        with_gradients = self.statement.phase and has_backward(graph)
        return with_backward(graph, removal) if with_gradients else removal

    def _tensor(self, match: Match, name: str) -> Tensor:
        value = match.values[name]
        if not isinstance(value, Tensor):
            raise RefusedError(f"%{name} is {spell(value)}, not a tensor")
        return value

    def _check(self, removal: Removal) -> None:
        """Check a removal; a violated order is accepted if the statement assumes it away."""
        try:
            check_removal(self.frame.state.graph, removal, self.remaining)
            self._check_streams(removal)
        except RefusedError as error:
            if not self.statement.assuming or not error.of_order:
                raise
            self.assumed.append(f"{call_of(removal.ops[0])}: {self.statement.assuming}")

    def _check_streams(self, removal: Removal) -> None:
        """Refuse to lose the order of dependent ops on different streams."""
        leaves = [leaf for op in removal.ops for leaf in op.leaves()]
        if any(leaf.name.startswith("sync.") for leaf in leaves):
            self.order.check(self.remaining.removed | set(leaves))


def _is_needed(
    op: Op, members: Sequence[Op], swaps: Sequence[tuple[Tensor, Tensor]], index: Index
) -> bool:
    """Return whether ops outside the match still use a member's results after the swaps."""
    results = {t.name for inner in op.walk() for t in inner.outputs}
    if results & {old.name for old, _ in swaps}:
        return False
    member_positions = [index.position[member] for member in members]
    users = {i for name in results for i in index.users.get(name, ()) if not index.ops[i].body}
    return any(not any(index.is_inside(i, member) for member in member_positions) for i in users)


def _check_required(removal: Removal, state: State, index: Index) -> None:
    """Refuse to remove a result that some op uses in the end."""
    replaced_names = {old.name for old, _ in removal.swaps}
    for tensor in (t for op in removal.ops for inner in op.walk() for t in inner.outputs):
        if tensor.name in state.required_results and tensor.name not in replaced_names:
            users = [index.ops[i] for i in index.users.get(tensor.name, [])]
            uses = [(op, f"{op.name} uses %{tensor.name}") for op in users if not op.body]
            raise RefusedError(f"its result %{tensor.name} is still in use", uses[-1:])
