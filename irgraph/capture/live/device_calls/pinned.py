"""Detection of pinned host memory from the copies of a capture."""

from __future__ import annotations

from collections.abc import Sequence


def pinned_memory(copies: Sequence[tuple[bool, bool]], forced: bool) -> tuple[bool, list[str]]:
    """Return whether a graph's host tensors are pinned, and notes if copies contradict this.

    ``copies`` has, for each copy to the device, whether its memory is pinned and whether it is
    non-blocking; with ``forced``, the user specified pinned memory.
    """
    if forced:
        return True, []
    pinned_flags = [pinned for pinned, _ in copies]
    if pinned_flags and all(pinned_flags):
        return True, []
    notes = []
    if any(pinned_flags):
        notes.append(
            f"{sum(pinned_flags)} of {len(pinned_flags)} copied host tensors lie in pinned memory: "
            "all are priced as pageable; --pinned prices all as pinned"
        )
    staged = sum(non_blocking and not pinned for pinned, non_blocking in copies)
    if staged:
        notes.append(
            f"copies with non_blocking from pageable memory ({staged}): the host stages them and "
            "waits all the same; --pinned if the real program pins it"
        )
    return False, notes
