"""What tasks have to wait for, without what their own resource has waited for before."""

from __future__ import annotations

from irgraph.schedule.tasks import Tasks


def needed_waits(tasks: Tasks) -> list[list[int]]:
    """Return what each task waits for, without what comes before the task before it anyway.

    That is the last task of its resource that waited for the one before itself. For each task it is
    known up to which of them it comes after, on every resource. No task takes less than no time, so
    times stay the same.
    """
    last: dict[int, int] = {}
    after: list[dict[int, int]] = []
    ordered: list[int] = []  # the resource of which a task is one in order, -1 for none
    found = []
    for task, (waits, resource) in enumerate(
        zip(tasks.waited, tasks.resource.tolist(), strict=True)
    ):
        before = last.get(resource, task)
        known = after[before] if before in waits else {}
        needed = [w for w in waits if w == before or known.get(ordered[w], -1) < w]
        found.append(needed)
        if before != task and needed == [before]:
            after.append(known)
        else:
            after.append(_joined(needed, ordered, after))
        if before == task or before in waits:
            last[resource] = task
            ordered.append(resource)
        else:
            ordered.append(-1)
    return found


def _joined(waits: list[int], ordered: list[int], after: list[dict[int, int]]) -> dict[int, int]:
    """Return the last task of each resource that something comes after which waits for some."""
    found: dict[int, int] = {}
    for wait in waits:
        for resource, at in after[wait].items():
            found[resource] = max(at, found.get(resource, -1))
        if ordered[wait] >= 0:
            found[ordered[wait]] = max(wait, found.get(ordered[wait], -1))
    return found
