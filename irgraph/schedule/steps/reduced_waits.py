"""What tasks have to wait for, without what follows from their other waits."""

from __future__ import annotations

from collections.abc import Collection

from irgraph.schedule.tasks import Tasks


def reduced_waits(tasks: Tasks, work: Collection[int] = ()) -> list[list[int]]:
    """Return what each task waits for, without what comes before another of its waits anyway.

    For each task it is known up to which task it comes after, on every resource: of those that wait
    for the one before. No task takes less than no time, so times stay the same. The task before on
    the same resource stays where only tasks of ``work`` come after it.
    """
    last: dict[int, int] = {}
    reach: list[dict[int, int]] = []
    ordered: list[int] = []  # the resource of which a task is one in order, -1 for none
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
    """Return a task's waits without those that another of them comes after."""
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
    """Return the last task of each resource that something comes after which waits for some."""
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
