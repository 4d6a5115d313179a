"""Transitive reduction of the waits of tasks."""

from __future__ import annotations

from collections.abc import Collection

from irgraph.schedule.tasks import Tasks


def reduced_waits(tasks: Tasks, work: Collection[int] = ()) -> list[list[int]]:
    """Return the waits of each task without those that its other waits imply.

    For each task the algorithm tracks the last task on every resource that is known to precede it;
    only tasks that wait for their predecessor on the resource form such an order. Durations are
    never negative, so end times do not change. A wait for the predecessor on the same resource is
    removed only if a task outside ``work`` implies it.
    """
    last: dict[int, int] = {}
    reach: list[dict[int, int]] = []
    ordered: list[int] = []  # resource in whose order each task is, -1 if in none
    reduced = []
    for task, (waits, resource) in enumerate(
        zip(tasks.wait_lists, tasks.resource.tolist(), strict=True)
    ):
        predecessor = last.get(resource, task)
        task_waits = (
            waits if len(waits) < 2 else _without_implied(waits, predecessor, work, ordered, reach)
        )
        reduced.append(task_waits)
        if predecessor != task and task_waits == [predecessor]:
            reach.append(reach[predecessor])
        else:
            reach.append(_merged_reach(task_waits, ordered, reach))
        if predecessor == task or predecessor in waits:
            last[resource] = task
            ordered.append(resource)
        else:
            ordered.append(-1)
    return reduced


def _without_implied(
    waits: list[int],
    predecessor: int,
    work: Collection[int],
    ordered: list[int],
    reach: list[dict[int, int]],
) -> list[int]:
    """Return the waits of a task that none of its other waits implies."""
    reduced = []
    for wait in waits:
        resource = ordered[wait]
        for other in waits:
            is_later = reach[other].get(resource, -1) >= wait
            if is_later and not (wait == predecessor and other in work):
                break
        else:
            reduced.append(wait)
    return reduced


def _merged_reach(
    waits: list[int], ordered: list[int], reach: list[dict[int, int]]
) -> dict[int, int]:
    """Return, by resource, the last task that a task with these waits follows."""
    last_by_resource = reach[waits[0]].copy() if waits else {}
    for wait in waits[1:]:
        for resource, position in reach[wait].items():
            if position > last_by_resource.get(resource, -1):
                last_by_resource[resource] = position
    for wait in waits:
        resource = ordered[wait]
        if resource >= 0 and wait > last_by_resource.get(resource, -1):
            last_by_resource[resource] = wait
    return last_by_resource
