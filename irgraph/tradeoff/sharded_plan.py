"""Services with tables sharded over several devices, the exchange between them included.

The plan is searched as for training on several GPUs, with the bytes of the tables in their formats.
The step is then sharded for every rank, quantised, and simulated with all ranks. Sharding does not
change the values of rows, so a plan has the same divergence as on one device: tables are sharded
as a whole or in blocks of rows, never by columns, because a row has one scale. Tables in f8 are
never split, because all their rows share one scale.
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
from irgraph.planning.placement_costs import PlacementProblem, TableCosts
from irgraph.planning.search import search
from irgraph.plans.plan import ROW, TABLE, TABLE_ROW, Plan
from irgraph.predict.options import PredictOptions
from irgraph.predict.ranks import predict_each_rank, rank_groups
from irgraph.schedule.ranks import simulate_ranks
from irgraph.serving.fleet import Host, fleet
from irgraph.serving.problem import store
from irgraph.serving.service import Service, ServiceLoad, limits_of, mean_latency
from irgraph.tiers.tier import Platform
from irgraph.verbs.quantize import quantize
from irgraph.verbs.refusal import RefusedError
from irgraph.verbs.sharding.shard import shard
from irgraph.verbs.tiered_lookups import placeable_lookups

SEARCH_SECONDS = 2.0
"""Time limit of the search for a plan."""

MIN_DEVICES = 2
"""Minimum number of devices to shard tables over."""

MAX_DEVICE_COUNTS = 2
"""Maximum number of device counts to simulate: the smallest that fits the tables, and its double.
"""


class ShardedPlan(Struct, frozen=True):
    """A plan that shards tables in their formats, and the model of every rank."""

    plan: Plan
    models: tuple[Graph, ...]


class PlanSharder:
    """Shards the tables of one model over devices of a platform, in given formats.

    Attributes:
        device_bytes: fast memory of one device.
        reasons: why a number of devices has no service, by the number of devices.
    """

    def __init__(
        self, graph: Graph, platform: Platform, service_load: ServiceLoad, options: PredictOptions
    ) -> None:
        self.graph, self.platform = graph, platform
        self.service_load, self.options = service_load, options
        self.device_bytes = store(platform.fast).nbytes / platform.devices
        self.tables = {name: weight for name, weight, _ in placeable_lookups(graph)}
        if not self.tables or platform.devices < MIN_DEVICES:
            reason = (
                f"a host of {platform.name} has one device" if self.tables else "no table is read"
            )
            raise fail(f"nothing is spread: {reason}", exit_code=2)
        self._problems: dict[int, PlacementProblem | None] = {}
        self.reasons: dict[int, str] = {}

    def services(self, formats: Mapping[str, str]) -> list[tuple[Service, ShardedPlan]]:
        """Return the services of tables in these formats, by table, on devices of one host.

        Device counts without a plan, a sharding rule or a measured collective are omitted, with
        their reasons in ``reasons``.
        """
        pairs: list[tuple[Service, ShardedPlan]] = []
        count = MIN_DEVICES
        while count <= self.platform.devices and len(pairs) < MAX_DEVICE_COUNTS:
            sharded = self._shard_tables(count, formats)
            service = None if sharded is None else self._service(sharded)
            pairs += [] if sharded is None or service is None else [(service, sharded)]
            count *= 2
        return pairs

    def fits_one_device(self, formats: Mapping[str, str]) -> bool:
        """Return whether all tables in their formats fit on one device, without any exchange."""
        sizes = (
            int(w.shape[0]) * row_bytes(formats.get(name, "f32"), int(w.shape[1]))
            for name, w in self.tables.items()
        )
        return sum(sizes) <= self.device_bytes

    def _problem(self, ranks: int) -> PlacementProblem | None:
        """Return the sharding problem of the f32 tables for ``ranks`` devices; priced once."""
        if ranks not in self._problems:
            self._problems[ranks] = None
            try:
                problem = problem_of(self.graph, ranks, 0.0, self.options)
                self._problems[ranks] = replace(problem, capacity=self.device_bytes)
            except RefusedError as error:
                self.reasons[ranks] = error.reason
            except IrgraphError as error:
                self.reasons[ranks] = error.diagnostics[0].message
        return self._problems[ranks]

    def _shard_tables(self, ranks: int, formats: Mapping[str, str]) -> ShardedPlan | None:
        problem = self._problem(ranks)
        if problem is None:
            return None
        tables = tuple(self._narrow(t, formats.get(t.name, "f32")) for t in problem.tables)
        layout = search(replace(problem, tables=tables), seconds=SEARCH_SECONDS)
        if layout is None:
            self.reasons[ranks] = (
                f"{self.device_bytes / 1e9:,.0f} GB on each do not hold the tables"
            )
            return None
        plan = layout.plan()
        models = (shard(self.graph, plan, rank).graph for rank in range(ranks))
        return ShardedPlan(plan, tuple(quantize_tables(model, formats) for model in models))

    def _narrow(self, table: TableCosts, target: str) -> TableCosts:
        """Return a table with the memory of a format, unsplit or in blocks of rows."""
        share = row_bytes(target, table.columns) / row_bytes("f32", table.columns)
        schemes = (TABLE,) if target in PARTS[SCALE] else (TABLE, ROW, TABLE_ROW)
        choices = (c for c in table.choices if c.scheme in schemes)
        return replace(table, choices=tuple(replace(c, memory=c.memory * share) for c in choices))

    def _service(self, sharded: ShardedPlan) -> Service | None:
        """Return the service of a sharded model, with all its ranks simulated together."""
        predictions = predict_each_rank(sharded.models, self.options)
        timelines = [prediction.timeline for prediction in predictions]
        step = simulate_ranks(timelines, groups=rank_groups(sharded.models)).step_time
        ranks = sharded.plan.ranks
        servers = self.platform.devices // ranks
        limits = limits_of(servers, step, self.service_load)
        if not limits["latency"] > 0:
            self.reasons[ranks] = "a query takes longer than the limit"
            return None
        qps, bound = min((rate, cause) for cause, rate in limits.items())
        base = self.platform.base_usd
        usd = None if base is None else base.value
        hosts = fleet(Host(qps, self.platform.base_watts.value, usd), self.service_load.qps)
        host_qps = self.service_load.qps / hosts.hosts
        return Service(
            name=f"spread over {ranks} devices",
            step=step,
            qps=qps,
            bound=bound,
            limits=limits,
            latency=mean_latency(step, host_qps, servers),
            fleet=hosts,
            ranks=ranks,
        )


def quantize_tables(graph: Graph, formats: Mapping[str, str]) -> Graph:
    """Quantise the tables of a rank's model to their formats, by label."""
    for target in dict.fromkeys(formats.values()):
        ops = [op for name, _, op in placeable_lookups(graph) if formats.get(name) == target]
        graph = quantize(graph, ops, target).graph if ops else graph
    return graph
