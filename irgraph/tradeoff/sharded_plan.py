"""Tables spread over several devices: what all of them need for one query, exchange included.

A plan is searched as for training over several GPUs, with the bytes that tables take in their
formats; the step is then written for every rank, brought to the formats, and simulated together.
Rows keep what they hold wherever they lie, so that a plan's divergence is that of one device: whole
tables and blocks of rows are spread, columns not, since a row has one scale, and tables in f8 are
not cut at all, since all their rows share one.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from irgraph.diagnostics import IrgraphError, fail
from irgraph.ir.graph import Graph
from irgraph.ir.narrow.prepared import PARTS, SCALE
from irgraph.ir.narrow.rows import row_bytes
from irgraph.planning.costs import problem_of
from irgraph.planning.problem import Problem, Table
from irgraph.planning.search import search
from irgraph.plans.plan import ROW, TABLE, TABLE_ROW, Plan
from irgraph.predict.options import PredictOptions
from irgraph.predict.ranks import each_rank, rank_groups
from irgraph.schedule.ranks import simulate_ranks
from irgraph.serving.fleet import Host, fleet
from irgraph.serving.problem import store
from irgraph.serving.service import Service, ServiceLoad, limits_of, mean_latency
from irgraph.tiers.tier import Platform
from irgraph.verbs.quantize import quantize
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.shard import shard
from irgraph.verbs.tiered_lookups import placeable

SECONDS = 2.0
"""How long the search for a plan goes on."""

FEWEST = 2
"""Devices that tables are spread over at least."""

WAYS = 2
"""Numbers of devices that are simulated: the fewest that hold the tables, and twice as many."""


class ShardedPlan(Struct, frozen=True):
    """A way to spread tables in their formats: the plan, and the model of every rank."""

    plan: Plan
    models: tuple[Graph, ...]


class PlanSharder:
    """Spreads the tables of one model over devices of a platform, in formats that vary."""

    def __init__(
        self, graph: Graph, platform: Platform, wanted: ServiceLoad, options: PredictOptions
    ) -> None:
        self.graph, self.platform, self.wanted, self.options = graph, platform, wanted, options
        self.each = store(platform.fast).nbytes / platform.devices
        self.tables = {name: weight for name, weight, _ in placeable(graph)}
        if not self.tables or platform.devices < FEWEST:
            what = (
                f"a host of {platform.name} has one device" if self.tables else "no table is read"
            )
            raise fail(f"nothing is spread: {what}", exit_code=2)
        self._problems: dict[int, Problem | None] = {}
        self.reasons: dict[int, str] = {}

    def services(self, formats: Mapping[str, str]) -> list[tuple[Service, ShardedPlan]]:
        """Return the services of tables in these formats, by table, on devices of one host.

        What no plan, no rule or no measured collective allows is left out; ``reasons`` say why.
        """
        found: list[tuple[Service, ShardedPlan]] = []
        count = FEWEST
        while count <= self.platform.devices and len(found) < WAYS:
            one = self._spread(count, formats)
            service = None if one is None else self._service(one)
            found += [] if one is None or service is None else [(service, one)]
            count *= 2
        return found

    def alone(self, formats: Mapping[str, str]) -> bool:
        """Return whether one device holds all tables in their formats, and exchanges nothing."""
        sizes = (
            int(w.shape[0]) * row_bytes(formats.get(name, "f32"), int(w.shape[1]))
            for name, w in self.tables.items()
        )
        return sum(sizes) <= self.each

    def _problem(self, ranks: int) -> Problem | None:
        """Return the tables to be spread over so many ranks, in f32; priced once."""
        if ranks not in self._problems:
            self._problems[ranks] = None
            try:
                known = problem_of(self.graph, ranks, 0.0, self.options)
                self._problems[ranks] = replace(known, capacity=self.each)
            except RefusedError as error:
                self.reasons[ranks] = error.reason
            except IrgraphError as error:
                self.reasons[ranks] = error.diagnostics[0].message
        return self._problems[ranks]

    def _spread(self, ranks: int, formats: Mapping[str, str]) -> ShardedPlan | None:
        problem = self._problem(ranks)
        if problem is None:
            return None
        tables = tuple(self._narrow(t, formats.get(t.name, "f32")) for t in problem.tables)
        layout = search(replace(problem, tables=tables), seconds=SECONDS)
        if layout is None:
            self.reasons[ranks] = f"{self.each / 1e9:,.0f} GB on each do not hold the tables"
            return None
        plan = layout.plan()
        models = (shard(self.graph, plan, rank).graph for rank in range(ranks))
        return ShardedPlan(plan, tuple(in_formats(model, formats) for model in models))

    def _narrow(self, table: Table, to: str) -> Table:
        """Return a table whose parts take the bytes of a format, whole or in blocks of rows."""
        share = row_bytes(to, table.columns) / row_bytes("f32", table.columns)
        kept = (TABLE,) if to in PARTS[SCALE] else (TABLE, ROW, TABLE_ROW)
        ways = (c for c in table.choices if c.scheme in kept)
        return replace(table, choices=tuple(replace(c, memory=c.memory * share) for c in ways))

    def _service(self, one: ShardedPlan) -> Service | None:
        """Return the service of a spread model, all its ranks simulated together."""
        found = each_rank(one.models, self.options)
        timelines = [prediction.timeline for prediction in found]
        step = simulate_ranks(timelines, groups=rank_groups(one.models)).step_time
        ranks = one.plan.ranks
        servers = self.platform.devices // ranks
        limits = limits_of(servers, step, self.wanted)
        if not limits["latency"] > 0:
            self.reasons[ranks] = "a query takes longer than the limit"
            return None
        qps, bound = min((rate, cause) for cause, rate in limits.items())
        base = self.platform.base_usd
        usd = None if base is None else base.value
        hosts = fleet(Host(qps, self.platform.base_watts.value, usd), self.wanted.qps)
        each = self.wanted.qps / hosts.hosts
        return Service(
            name=f"spread over {ranks} devices",
            step=step,
            qps=qps,
            bound=bound,
            limits=limits,
            latency=mean_latency(step, each, servers),
            fleet=hosts,
            ranks=ranks,
        )


def in_formats(graph: Graph, formats: Mapping[str, str]) -> Graph:
    """Return a rank's model with its tables, by label, in their formats."""
    for to in dict.fromkeys(formats.values()):
        ops = [op for name, _, op in placeable(graph) if formats.get(name) == to]
        graph = quantize(graph, ops, to).graph if ops else graph
    return graph
