"""``shard`` rewrites the step to the step that one of several ranks runs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from irgraph.diagnostics import fail
from irgraph.files import read_text
from irgraph.language.checking.checker import Checker
from irgraph.language.expressions.nodes import Expression
from irgraph.language.expressions.values import format_count, spell
from irgraph.language.running.report import Entry
from irgraph.language.running.state import Frame, illegal, refusal
from irgraph.language.statement import Statement
from irgraph.plans.plan import Plan, uniform
from irgraph.plans.reading import read_plan
from irgraph.plans.torchrec import with_model_names
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.embeddings.tables import table_sizes
from irgraph.verbs.sharding.shard import shard


@dataclass(frozen=True)
class Shard(Statement):
    """``shard by "plan.json" for rank 3``, or ``shard by "row-wise" for rank 3 of 8``."""

    plan: Expression
    rank: Expression
    ranks: Expression | None = None

    def __str__(self) -> str:
        """Return the statement's text."""
        ranks_text = f" of {self.ranks}" if self.ranks is not None else ""
        return f"shard by {self.plan} for rank {self.rank}{ranks_text}"

    def check(self, check: Checker) -> None:
        """Check that the plan is a text, and ranks are numbers."""
        hint = 'a file such as "plan.json", or a scheme for all tables such as "row-wise"'
        check.kinds.require("text", self.plan, "a plan", hint)
        for expression in (self.rank, self.ranks):
            if expression is not None:
                check.kinds.require("number", expression, "a number")

    def run(self, frame: Frame) -> Entry:
        """Replace the graph with the graph of one rank."""
        graph, rank = frame.state.graph, self._integer(frame, self.rank)
        plan = self._plan(frame)
        try:
            done = shard(graph, plan, rank)
        except RefusedError as error:
            raise illegal(refusal(error, "the step is not sharded", self.place, graph)) from None
        frame.state.graph = done.graph
        description = f"rank {rank} of {plan.ranks}, {format_count(done.new_op_count, 'new op')}"
        return replace(
            frame.entry(self), done=description, made=done.new_op_count, legal=(done.legal,)
        )

    def _plan(self, frame: Frame) -> Plan:
        text, names = frame.value(self.plan), table_sizes(frame.state.graph)
        if not isinstance(text, str):
            raise fail(f"expected a plan, not {spell(text)}", self.plan.place)
        if text.endswith(".json"):
            plan = with_model_names(read_plan(read_text(text), text), names)
            if self.ranks is not None and self._integer(frame, self.ranks) != plan.ranks:
                message = f"{text} is for {plan.ranks} ranks, not {self.ranks}"
                raise fail(message, self.ranks.place)
            return plan
        if self.ranks is None:
            hint = f'as in: shard by "{text}" for rank {self.rank} of 8'
            raise fail("how many ranks there are is missing", self.plan.place, hint=hint)
        return uniform(text, self._integer(frame, self.ranks), names)

    def _integer(self, frame: Frame, expression: Expression) -> int:
        value = frame.value(expression)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            message = f"a rank, and how many there are, is a whole number, not {spell(value)}"
            raise fail(message, expression.place)
        return int(value)
