"""The simulator: host threads, streams of devices, events, waits and shared resources.

It models: the autograd thread runs while the main one is blocked; other threads run independently;
a launch waits for room in its stream's queue; streams preserve their order and wait for events; the
host waits for blocking copies and synchronisation, and runs the kernels of a CPU itself; one launch
may start many kernels (``cuda.graph_launch``); concurrent tasks share hardware
(``irgraph.schedule.sharing``). On one thread and one stream without syncs all this is Algorithm 1,
to the last digit.
"""

from __future__ import annotations

from irgraph.ir.cost import Host, Priced
from irgraph.schedule.accounting import BLOCKING, Accounting
from irgraph.schedule.building.call_reuse import CallReuse
from irgraph.schedule.building.step import Step
from irgraph.schedule.charges import Charges
from irgraph.schedule.sharing import run_sharing
from irgraph.schedule.timeline import Intervals, Resource, Timeline


def simulate(priced: Priced, host: Host, *, accounting: Accounting = BLOCKING) -> Timeline:
    """Return the timeline of a step by the rules of ``accounting``.

    Raises ``IrgraphError`` if an operation waits for an event that is never recorded.
    """
    step = Step(priced, accounting)
    charges = Charges(priced, host, accounting)
    for charge in charges.all(CallReuse(step, charges)):
        step.run(charge)
    tasks = step.build.tasks()
    start, end = run_sharing(tasks)
    return Timeline(
        Intervals(tasks, start, end, step.ops, step.kernels),
        tuple(Resource(*names) for names in step.resources),
        priced.device,
        host.name,
        accounting.name,
        dict(charges.levels),
        priced.unknown,
    )
