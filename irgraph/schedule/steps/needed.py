"""What tasks have to wait for, without what follows from their other waits."""

from __future__ import annotations

from collections.abc import Collection

from irgraph.schedule.tasks import Tasks


def needed_waits(tasks: Tasks, work: Collection[int] = ()) -> list[list[int]]:
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
        zip(tasks.waited, tasks.resource.tolist(), strict=True)
    ):
        before = last.get(resource, task)
        needed = waits
        if len(waits) > 1:
            needed = [w for w in waits if _is_needed(w, waits, before, work, ordered, after)]
        found.append(needed)
        if before != task and needed == [before]:
            after.append(after[before])
        else:
            after.append(_joined(needed, ordered, after))
        if before == task or before in waits:
            last[resource] = task
            ordered.append(resource)
        else:
            ordered.append(-1)
    return found


def _is_needed(
    wait: int, waits: list[int], before: int, work: Collection[int], ordered: list[int],
    after: list[dict[int, int]],
) -> bool:  # fmt: skip
    """Return whether none of a task's waits comes after one of them."""
    others = (v for v in waits if wait != before or v not in work)
    return all(after[other].get(ordered[wait], -1) < wait for other in others)


def _joined(waits: list[int], ordered: list[int], after: list[dict[int, int]]) -> dict[int, int]:
    """Return the last task of each resource that something comes after which waits for some."""
    found: dict[int, int] = {}
    for wait in waits:
        for resource, at in after[wait].items():
            found[resource] = max(at, found.get(resource, -1))
        if ordered[wait] >= 0:
            found[ordered[wait]] = max(wait, found.get(ordered[wait], -1))
    return found
