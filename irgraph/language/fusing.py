"""Runs a ``fuse`` statement: matches, groups, legality, and the new ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from irgraph.ir.op import Op
from irgraph.language.build import BuildError, Filler
from irgraph.language.evaluate import NoValueError, Scope, evaluate, holds
from irgraph.language.expressions import Splat, parts
from irgraph.language.losses import check_losses, rest_of
from irgraph.language.match import Match
from irgraph.language.misses import told
from irgraph.language.patterns import Given, NewOp, result_parts, template_parts
from irgraph.language.report import Entry
from irgraph.language.select import Handle, Selected, match_scope
from irgraph.language.state import (
    Frame,
    State,
    call_of,
    entry_of,
    illegal,
    members_of,
    refusal,
)
from irgraph.language.tree import Fuse
from irgraph.language.values import spell
from irgraph.text.diagnostics import Diagnostic, Place
from irgraph.verbs.partition import Parting, partition
from irgraph.verbs.pending import Pending
from irgraph.verbs.refusal import RefusedError, describe
from irgraph.verbs.sequence import Stretch


def has_splat(new: NewOp) -> bool:
    """Tell whether a template takes columns: all matches of a group at once."""
    found = [*template_parts(new), *result_parts(new)]
    values = [part.value for part in found if isinstance(part, Given)]
    inside = [inner for value in values for inner in parts(value)]
    return any(isinstance(part, Splat) for part in [*found, *inside])


@dataclass
class _Fusing:
    """One ``fuse`` statement while it runs."""

    statement: Fuse
    state: State
    frame: Frame
    selected: Selected
    scope: Scope
    pending: Pending
    scopes: dict[int, Scope] = field(default_factory=dict)
    groups: int = 0
    replaced: int = 0
    made: list[Op] = field(default_factory=list)
    legal: list[str] = field(default_factory=list)
    refused: list[Diagnostic] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)

    @property
    def new(self) -> NewOp:
        return self.statement.template.ops[0]

    def members(self, match: Match) -> list[Op]:
        return members_of(self.selected, match.ops)

    def scope_of(self, match: Match) -> Scope:
        known = self.scopes.get(id(match))
        if known is None:
            known = self.scopes[id(match)] = match_scope(self.scope, self.selected.index, match)
        return known

    def refuse(self, error: RefusedError, *matches: Match, place: Place | None = None) -> None:
        """Note that matches stay as they are; an error where the statement is about one match."""
        first = call_of(self.selected.index.ops[matches[0].root])
        more = len(matches) - 1
        what = f"{first} and {more} more are not fused" if more else f"{first} is not fused"
        where = place or self.statement.place
        diagnostic = refusal(error, what, where, self.selected.index.graph)
        if not self.statement.selection.many:
            raise illegal(diagnostic)
        self.refused.append(diagnostic)

    def run(self) -> Entry:
        sound = [match for match in self.selected.matches if self._is_sound(match)]
        if has_splat(self.new):
            for group in self._grouped(sound):
                self._fuse_group(group)
        else:
            for match in sound:
                self._fuse_set([match], None)
        self.state.graph = self.pending.commit()
        return replace(
            entry_of(self.statement, self.frame, self.selected, self.statement.selection),
            groups=self.groups,
            replaced=self.replaced,
            made=len(self.made),
            legal=tuple(self.legal),
            refused=tuple(self.refused),
            assumptions=tuple(self.assumptions),
        )

    def _is_sound(self, match: Match) -> bool:
        try:
            made = Filler([self.scope_of(match)], [()]).results(self.new)
            check_losses(self.selected.index, match, (self.new,), made, self.state.kept)
        except RefusedError as error:
            self.refuse(error, match)
            return False
        return True

    def _grouped(self, matches: Iterable[Match]) -> list[list[Match]]:
        """Return matches by the values of the group's keys, in order of first appearance."""
        found: dict[str, list[Match]] = {}
        for match in matches:
            scope = self.scope_of(match)
            try:
                values = [evaluate(key, scope) for key in self.statement.keys]
            except NoValueError as error:
                self.refuse(RefusedError(str(error)), match)
                continue
            found.setdefault(", ".join(map(spell, values)), []).append(match)
        return [group for group in found.values() if self._is_wanted(group)]

    def _is_wanted(self, group: Sequence[Match], why: RefusedError | None = None) -> bool:
        """Apply ``having``; groups that are too small are said, not dropped silently."""
        first = self.scope_of(group[0])
        known = {str(key): evaluate(key, first) for key in self.statement.keys}
        names = {**self.scope.names, "count": len(group)}
        reason = told(holds(self.statement.having, replace(self.scope, names=names, known=known)))
        if not reason:
            return True
        keys = ", ".join(f"{key} = {spell(value)}" for key, value in known.items())
        left_out = f"its group ({keys}) is left out: {reason}" if keys else reason
        having = self.statement.having
        place = having.place if having is not None else None
        at = why.at if why else ()
        more = f"; {why.reason}" if why else ""
        self.refuse(RefusedError(left_out + more, at), *group, place=place)
        return False

    def _fuse_group(self, group: Sequence[Match]) -> None:
        """Fuse what is independent in a group; the rest in later ops of their own."""
        try:
            members = [self.members(match) for match in group]
            parting = partition(self.pending.around(members), members)
        except ValueError:
            self.refuse(RefusedError("an earlier change took it apart"), *group)
            return
        for i in parting.knotted:
            chain = describe(parting.tie([i]), parting.stretch.atoms)
            self.refuse(RefusedError("a path leaves it and comes back to it", chain), group[i])
        whole = len(parting.sets) == 1 and not parting.knotted
        for number, chosen in enumerate(parting.sets):
            matches = [group[i] for i in chosen]
            if whole or self._is_wanted(matches, _tie_of(parting, number)):
                self._fuse_set(matches, parting.stretch if whole else None)

    def _fuse_set(self, matches: Sequence[Match], known: Stretch | None) -> None:
        filler = Filler([self.scope_of(m) for m in matches], [rest_of(m) for m in matches])
        groups = [self.members(match) for match in matches]
        by = self.frame.caller or "script"
        try:
            new = filler.make(self.new, self.state.graph.schemas)
            assuming = self.statement.assuming
            fusion = self.pending.fuse(groups, [new], by=by, assuming=assuming, known=known)
        except (BuildError, ValueError) as error:
            self.refuse(RefusedError(str(error)), *matches)
            return
        except RefusedError as error:
            self.refuse(error, *matches)
            return
        members = [op for group in groups for op in group]
        self.state.drop(members, [t.name for t in fusion.op.outputs], self.statement)
        self.groups += 1
        self.replaced += len(members)
        self.made.append(fusion.op)
        self.legal.append(fusion.legal)
        if fusion.assumed is not None:
            self.assumptions.append(f"{call_of(fusion.assumed)}: {assuming}")


def _tie_of(parting: Parting, number: int) -> RefusedError | None:
    """Return why a set of groups could not join the first one."""
    if number == 0 and len(parting.sets) == 1:
        return None
    other = 1 if number == 0 else 0
    both = sorted((*parting.sets[number], *parting.sets[other]))
    chain = describe(parting.tie(both), parting.stretch.atoms)
    return RefusedError("the others depend on it or it on them", chain)


def run_fuse(statement: Fuse, state: State, frame: Frame) -> None:
    """Run a ``fuse`` statement."""
    selected = state.select(statement.selection, frame)
    pending = Pending(state.graph)
    fusing = _Fusing(statement, state, frame, selected, state.scope(frame), pending)
    state.entries.append(fusing.run())
    if statement.named:
        frame.handles[statement.named] = Handle(tuple(fusing.made), statement.selection)
