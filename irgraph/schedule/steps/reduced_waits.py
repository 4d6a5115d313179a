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
    after: list[dict[int, int]] = []
    ordered: list[int] = []  # the resource of which a task is one in order, -1 for none
    found = []
    for task, (waits, resource) in enumerate(
        zip(tasks.wait_lists, tasks.resource.tolist(), strict=True)
    ):
        before = last.get(resource, task)
        needed = waits if len(waits) < 2 else _without_implied(waits, before, work, ordered, after)
        found.append(needed)
        if before != task and needed == [before]:
            after.append(after[before])
        else:
            after.append(_merged_reach(needed, ordered, after))
        if before == task or before in waits:
            last[resource] = task
            ordered.append(resource)
        else:
            ordered.append(-1)
    return found


def _without_implied(
    waits: list[int],
    before: int,
    work: Collection[int],
    ordered: list[int],
    after: list[dict[int, int]],
) -> list[int]:
    """Return a task's waits without those that another of them comes after."""
    found = []
    for wait in waits:
        resource = ordered[wait]
        for other in waits:
            later = after[other].get(resource, -1) >= wait
            if later and not (wait == before and other in work):
                break
        else:
            found.append(wait)
    return found


def _merged_reach(
    waits: list[int], ordered: list[int], after: list[dict[int, int]]
) -> dict[int, int]:
    """Return the last task of each resource that something comes after which waits for some."""
    found = after[waits[0]].copy() if waits else {}
    for wait in waits[1:]:
        for resource, at in after[wait].items():
            if at > found.get(resource, -1):
                found[resource] = at
    for wait in waits:
        resource = ordered[wait]
        if resource >= 0 and wait > found.get(resource, -1):
            found[resource] = wait
    return found
