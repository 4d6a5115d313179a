"""``insert`` inserts new ops before or after matches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from msgspec.structs import replace as changed

from irgraph.diagnostics import Diagnostic, suggestion
from irgraph.ir.edit import names_of
from irgraph.ir.op import Value
from irgraph.ir.tensor import Tensor
from irgraph.language.checking.checker import Checker
from irgraph.language.checking.templates import check_sequence, check_used
from irgraph.language.clauses import Anchor, Swap, clause, join_words
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.patterns.nodes import Bound, Template, flatten_lists
from irgraph.language.patterns.select import match_scope
from irgraph.language.running.legality import Legality
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, Refusals, call_of
from irgraph.language.statement import Statement
from irgraph.language.templates.make import make_ops
from irgraph.verbs.insert import Insertion, check_insertion, communicates, insert
from irgraph.verbs.meanings import compare_insertion


@dataclass(frozen=True)
class Insert(Statement):
    """``insert template after selection using %z for %y as name``."""

    template: Template
    anchor: Anchor
    swaps: tuple[Swap, ...] = ()
    ops_name: str = ""

    def __str__(self) -> str:
        tail = join_words(clause("using", self.swaps), clause("as", self.ops_name))
        return join_words("insert", self.template, self.anchor, tail)

    def check(self, check: Checker) -> None:
        """Check the anchor, and the template against the names that it binds."""
        kinds = check.anchor(self.anchor)
        bound = kinds.variables
        names = check_sequence(check, self.template, kinds)
        for part in (p for new in self.template.ops for p in flatten_lists(new.results)):
            if isinstance(part, Bound) and part.name in bound:
                message = f"%{part.name} is already defined; choose another name for the new tensor"
                check.note(message, part.place)
        for swap in self.swaps:
            for name in (swap.new, swap.old):
                if name not in names:
                    check.note(f"nothing binds %{name}{suggestion(name, names)}", swap.place)
        check_used(check, self.anchor.selection, self.template, bound, swaps=self.swaps)
        check.name_ops(self.ops_name, self.place)

    def run(self, frame: Frame) -> Entry:
        """Insert the template's ops before or after each match of the anchor."""
        state, anchor, graph = frame.state, self.anchor, frame.state.graph
        selected = frame.select(anchor.selection, all_=bool(anchor.nth))
        match_slice = {"first": slice(1), "last": slice(-1, None)}.get(anchor.nth, slice(None))
        scope, used_names = frame.scope, names_of(graph)
        refusals = Refusals(frame, self.place, anchor.selection.many)
        insertions: list[Insertion] = []
        legality = Legality()
        for match in selected.matches[match_slice]:
            with refusals.attempt(
                f"nothing is inserted next to {call_of(selected.op(match.root))}"
            ):
                inner_scope = match_scope(scope, selected.index, match)
                ops, values = make_ops(self.template.ops, inner_scope, match, graph, used_names)
                swaps = [(_tensor(values, s.old), _tensor(values, s.new)) for s in self.swaps]
                origin = f"{frame.caller or 'script'}: insert"
                new_ops = tuple(changed(op, origin=origin) for op in ops)
                after = anchor.side == "after"
                neighbour = selected.op(match.ops[-1] if after else match.ops[0])
                insertion = Insertion(new_ops, neighbour, after, tuple(swaps))
                check_insertion(graph, insertion)
                insertions.append(insertion)
                comparison = compare_insertion(graph, selected.members(match), new_ops, swaps)
                reason = "all operands are defined there"
                legality.add(comparison, reason, is_required=bool(swaps))
        state.graph, inserted = insert(graph, insertions)
        frame.name_ops(self.ops_name, inserted, anchor.selection)
        entry = frame.entry_of(self, selected, anchor.selection)
        if any(map(communicates, inserted)) and not any(map(communicates, graph.leaves())):
            entry = replace(entry, warnings=(self._first_communication_note(len(inserted)),))
        return replace(
            entry,
            groups=len(insertions),
            made=len(inserted),
            **legality.sentences(),
            refused=tuple(refusals.diagnostics),
        )

    def _first_communication_note(self, count: int) -> Diagnostic:
        added = format_count(count, "added op")
        message = f"the model had no collectives before; running {added} needs several processes"
        return Diagnostic(message, self.place, severity="note")


def _tensor(values: Mapping[str, Value], name: str) -> Tensor:
    value = values.get(name)
    if not isinstance(value, Tensor):
        raise ValueError(f"%{name} is {spell(value)}, not a tensor")
    return value
